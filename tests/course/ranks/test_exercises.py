"""The exercises of chapter 0, played as a reader plays them: unbegun, with mistakes, solved."""

import re

import pytest
import torch
import torch.distributed as dist

from lib.course.ranks import exercises
from lib.draw.parts.style import amount
from lib.predict import hardware
from lib.predict.collectives import formulas
from lib.ranks import algorithms
from lib.ranks.algorithms import exchange
from tests.course.stored_chapter import main_path, stored_chapter
from tests.every import every


@pytest.fixture
def world(worlds):
    return worlds(4)


def unbegun(*given): ...


def neighbours():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    return (rank + 1) % ranks, (rank - 1) % ranks


# --- exercise 1: predict


def test_predict_from_the_first_call_to_the_last():
    check = exercises.predict.check
    start = check(all_gather=None, all_reduce=None, ring_rounds=None, tree_rounds=None)
    assert not start.solved and "Put a number in place of each None." in start.text
    some = check(all_gather=8_000_000, all_reduce=None, ring_rounds=16, tree_rounds=6).text
    assert "all_gather: 8,000,000 is too much" in some and "all_reduce: not answered yet" in some
    assert "ring_rounds: 16 is too much" in some and "tree_rounds: right, 6" in some
    # by the words of the hints: a piece has S/8 bytes, all but one of 8; twice that; two laps
    piece = 8_000_000 / 8
    done = check(all_gather=7 * piece, all_reduce=14 * piece, ring_rounds=2 * 7, tree_rounds=6)
    assert done.solved and done.text.startswith("Solved.")


# --- exercise 2: write


def all_gather_by_hints(x):
    """Hint 2: in round k, pass on rank r-k's tensor and receive that of rank r-k-1."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    right, left = neighbours()
    parts = {rank: x}
    for k in range(ranks - 1):
        incoming = torch.empty_like(x)
        exchange({right: parts[(rank - k) % ranks]}, {left: incoming})
        parts[(rank - k - 1) % ranks] = incoming
    return torch.cat([parts[r] for r in range(ranks)])


def in_the_order_of_arrival(x):
    """A typical mistake: the parts are not put into the order of ranks."""
    right, left = neighbours()
    parts = [x]
    for _ in range(dist.get_world_size() - 1):
        incoming = torch.empty_like(x)
        exchange({right: parts[-1]}, {left: incoming})
        parts.append(incoming)
    return torch.cat(parts)


def all_send_first(x):
    """A typical mistake: every send waits for its receiver."""
    right, left = neighbours()
    dist.send(x, right)
    dist.recv(x, left)
    return x


def straight_to_everyone(x):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    parts = [x.clone() for _ in range(ranks)]
    for k in range(1, ranks):
        to, source = (rank + k) % ranks, (rank - k) % ranks
        exchange({to: x}, {source: parts[source]})
    return torch.cat(parts)


def test_write_from_the_empty_function_to_par(world):
    check = exercises.write.check
    assert "`unbegun` returns nothing" in check(unbegun, world).text
    mistaken = check(in_the_order_of_arrival, world).text
    assert "rank 0 differs first" in mistaken and "Ranks 1, 2 and 3 differ too." in mistaken
    assert "they wait for each other" in check(all_send_first, world).text
    assert check(straight_to_everyone, world).solved  # as the fold for teachers says
    done = check(all_gather_by_hints, world)
    assert done.solved and "Solved, with no more traffic" in done.text
    assert "bytes sent by the busiest rank: 12,000\n    of a good solution: 12,000" in done.text
    assert "rounds: 3\n    of a good solution: 3" in done.text


# --- exercises 2, 3 and 5: messages only


def all_gather_in_one_call(x):
    gathered = x.new_empty(dist.get_world_size() * x.numel())
    dist.all_gather_into_tensor(gathered, x)
    return gathered


def all_reduce_in_one_call(x):
    total = x.clone()
    dist.all_reduce(total)
    return total


def a_barrier_first(x):
    dist.barrier()
    return repaired(x)


# --- exercise 3: repair


def as_given(x):
    right, left = neighbours()
    total, passing, part = x.clone(), x, torch.empty_like(x)
    for _ in range(dist.get_world_size() - 1):
        exchange({right: passing}, {left: part})
        total += part
        passing = part.clone()
    return total


def half_repaired(x):
    """Hint 2 alone: the first lap, without the second."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    right, left = neighbours()
    pieces = x.clone().tensor_split(ranks)
    for k in range(ranks - 1):
        own = pieces[(rank - k - 1) % ranks]
        part = torch.empty_like(own)
        exchange({right: pieces[(rank - k) % ranks]}, {left: part})
        own += part
    return torch.cat(pieces)


def repaired(x):
    """Hint 3: the second lap passes the complete pieces on."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    right, left = neighbours()
    x = half_repaired(x)
    pieces = x.tensor_split(ranks)
    for k in range(ranks - 1):
        outgoing, incoming = pieces[(rank + 1 - k) % ranks], pieces[(rank - k) % ranks]
        exchange({right: outgoing}, {left: incoming})
    return x


def test_repair_from_the_given_function_to_par(world):
    check = exercises.repair.check
    start = check(as_given, world)
    assert not start.solved and "The sums are right, the traffic is not." in start.text
    assert "bytes sent by the busiest rank: 12,000\n    of a good solution: 6,000" in start.text
    assert "rank 0 differs first" in check(half_repaired, world).text
    done = check(repaired, world)
    assert done.solved and "Solved, with no more traffic" in done.text


@pytest.mark.parametrize(
    ("exercise", "attempt", "op"),
    [
        ("write", all_gather_in_one_call, "all_gather"),
        ("repair", all_reduce_in_one_call, "all_reduce"),
        ("invent", all_reduce_in_one_call, "all_reduce"),
        ("repair", a_barrier_first, "barrier"),
    ],
)
def test_a_collective_does_not_solve_what_asks_for_messages(world, exercise, attempt, op):
    """They got "Solved, with no more traffic than needed", in 0 rounds."""
    verdict = getattr(exercises, exercise).check(attempt, world)
    assert not verdict.solved
    assert f"Not yet. Rank 0 called the collective {op}." in " ".join(verdict.text.split())
    assert "Use send and receive only." in " ".join(verdict.text.split())


def last_bits(world, function):
    """Give how many different results the ranks hold, of random numbers."""
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(1000, generator=generator) for _ in range(world.size)]
    results = world.map(function, inputs)
    assert every(torch.allclose(r, sum(inputs), atol=1e-5) for r in results)
    return len({r.numpy().tobytes() for r in results})


def test_the_ring_to_repair_gives_every_rank_other_last_bits(world):
    """Each rank adds in another order; a repaired ring adds each piece on one rank only."""
    assert last_bits(world, as_given) == 4
    assert last_bits(world, repaired) == 1
    for name in algorithms.ALGORITHMS:
        assert last_bits(world, algorithms.ALGORITHMS[name]) == 1


# --- exercise 4: measure


def rows(ledger):
    return list(ledger.where(lane="comm"))


def ring_bytes(x):
    """2(n-1)/n · S, from a ledger."""
    ranks = len(rows(x)[0].members)
    return 2 * (ranks - 1) / ranks * rows(x)[0].bytes


def test_slips_in_the_bus_bandwidth_are_named():
    check = exercises.measure.check
    assert "returns nothing" in check(unbegun).text
    answers = {
        "Solved. The example gives 6 GB/s.":
            lambda x: ring_bytes(x) / max(r.moving for r in rows(x)),
        "your time includes the waiting for the late rank.":
            lambda x: ring_bytes(x) / max(r.seconds for r in rows(x)),
        "your bytes are S, and": lambda x: rows(x)[0].bytes / max(r.moving for r in rows(x)),
        "and your bytes are S in place":
            lambda x: rows(x)[0].bytes / max(r.seconds for r in rows(x)),
        "your function returns 1 B/s, but the bus bandwidth is 6 GB/s.": lambda x: 1.0,
    }  # fmt: skip
    for words, attempt in answers.items():
        assert words in check(attempt).text
        assert check(attempt).solved == words.startswith("Solved")


def test_the_bus_bandwidth_must_be_computed_from_the_ledger():
    """The constant of the example passed, and so did a function that a later rank changed."""
    sent = 2 * 3 / 4 * 8_000_000
    check = exercises.measure.check
    constant = check(lambda ledger: 6e9)
    assert not constant.solved
    assert "For another ledger (n = 6, S = 3,000,000 bytes, moved in 5 ms, " in constant.text
    assert "but the bus bandwidth is 1 GB/s." in constant.text.replace("\n", " ")
    for attempt in (
        lambda x: sent / (max(r.seconds for r in rows(x)) - 0.005),  # knows S, n and the delay
        lambda x: 1.5 * rows(x)[0].bytes / rows(x)[0].moving,  # knows n
        lambda x: sent / rows(x)[0].moving,  # knows n and S
        lambda x: 1.5 * rows(x)[3].bytes / rows(x)[3].seconds,  # knows which rank is late
    ):
        assert attempt(exercises.measure.example()) == pytest.approx(6e9)
        assert not check(attempt).solved


def test_the_example_of_measure_is_what_its_text_says():
    example = rows(exercises.measure.example())
    assert [row.members for row in example] == [(0, 1, 2, 3)] * 4
    assert [row.bytes for row in example] == [8_000_000] * 4
    assert [round(row.waiting * 1e3) for row in example] == [5, 5, 5, 0]
    assert [round(row.moving * 1e3) for row in example] == [2] * 4


# --- exercise 5: open


@pytest.mark.parametrize("name", algorithms.ALGORITHMS)
def test_one_of_the_six_handed_in_as_the_readers_costs_what_ours_does(world, name):
    """Case 15: `central` cost 2.48 ms as the reader's and 4.88 ms as ours, on Ethernet 10."""
    text = exercises.invent.check(algorithms.ALGORITHMS[name], world).text
    counted = formulas.all_reduce(name, 4, 250_000)
    for link in map(hardware.link, exercises.invent.links):
        ours = amount(formulas.seconds(counted, link.alpha, link.beta), "s")
        assert re.search(rf"^{link.name} +{re.escape(ours)}  ", text, re.M), text


def by_hint(x):
    """Every rank sends piece r to rank r, which adds up and sends the sum back to all."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    pieces = list(x.tensor_split(ranks))
    own, part = pieces[rank].clone(), torch.empty_like(pieces[rank])
    for k in range(1, ranks):
        right, left = (rank + k) % ranks, (rank - k) % ranks
        exchange({right: pieces[right]}, {left: part})
        own += part
    pieces[rank] = own
    for k in range(1, ranks):
        right, left = (rank + k) % ranks, (rank - k) % ranks
        exchange({right: own}, {left: pieces[left]})
    return torch.cat(pieces)


def test_an_invented_all_reduce_is_timed_beside_the_six(world):
    check = exercises.invent.check
    assert not check(unbegun, world).solved
    text = check(by_hint, world).text
    assert "The sums are right: 6 rounds, 1,500,000 bytes from the busiest rank." in text
    assert re.search(r"NVLink4 +\S+ \S+  \w+ ", text) and "Ethernet 10" in text


# --- all of them


def test_hints_are_sentences(capsys):
    for name in ("predict", "write", "repair", "measure", "invent"):
        exercise = getattr(exercises, name)
        assert every(re.search(r"[.?]$", hint) for hint in exercise.hints), name
        assert exercise.task.endswith(".")


def test_the_main_path_is_short():
    """At most 2,700 words before Going further, without what is folded and without pictures."""
    cells, words = main_path(stored_chapter("00-ranks"))
    assert 0 < cells <= 45 and 0 < words <= 2700


def test_all_three_algorithms_move_as_many_bytes():
    moved = [sum(formulas.all_reduce(name, ranks=4, numel=250_000).sent)
             for name in ("central", "ring", "tree")]  # fmt: skip
    assert moved == [6_000_000] * 3
    text = "\n".join(c.source for c in stored_chapter("00-ranks").cells)
    assert "All three move 6 MB in total." in text
