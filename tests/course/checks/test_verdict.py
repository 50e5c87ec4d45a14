"""Checkers and shown sources: what a reader is told, right, wrong or not yet begun."""

import copy
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from lib.course.checks.difference import difference
from lib.course.checks.numbers import Numbers
from lib.course.checks.on_ranks import Exercise, Par
from lib.course.checks.sent_bytes import critical, rounds, sent
from lib.course.checks.verdict import Hints, Verdict
from lib.course.source import source
from lib.ledger import Ledger, Row
from lib.predict.collectives import formulas
from lib.ranks import algorithms
from tests.every import every


@pytest.fixture
def world(worlds):
    return worlds(4)


# --- where results first differ


@pytest.mark.parametrize(
    ("got", "wanted", "words"),
    [
        (torch.ones(2), torch.ones(2), ""),
        (torch.ones(2) + 1e-7, torch.ones(2), ""),
        (torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 5.0, 6.0]),
         "it is 2 at [1], not 5 (2 of 3 entries differ)"),
        (torch.tensor([[1.0], [float("nan")]]), torch.ones(2, 1), "it is nan at [1, 0], not 1"),
        (torch.ones(2), torch.ones(3), "it has shape [2], not [3]"),
        (torch.ones(2).double(), torch.ones(2), "it is float64, not float32"),
        ([torch.ones(1), torch.zeros(1)], [torch.ones(1)] * 2, "entry 1 of it is 0 at [0], not 1"),
        ({"w": torch.zeros(1)}, {"w": torch.ones(1)}, "w of it is 0 at [0], not 1"),
        ({"v": torch.zeros(1)}, {"w": torch.ones(1)}, "it is a dict, not a dict of w"),
        (torch.tensor(1.0), torch.tensor(3.5), "it is 1, not 3.5"),
        (None, torch.ones(2), "it is nothing (None), not a tensor of shape [2]"),
        ([], [1], "it is a list of 0, not a list of 1"),
        (3, 4, "it is 3, not 4"),
        (0.5, 0.25, "it is 0.5, not 0.25"),
        (0.25, 0.25, ""),
    ],
)  # fmt: skip
def test_the_first_difference_is_named(got, wanted, words):
    said = difference(got, wanted, "it")
    assert said.startswith(words) if words else said == ""


# --- numbers


def test_a_wrong_number_with_a_known_reason_is_told_it():
    asks = Numbers(name="asks", answers={"a": 8, "b": 2}, mistakes={"a": {4: "Count both."}})
    text = asks.check(a=4, b=4).text
    assert "  a: 4 is too little\n    Count both.\n  b: 4 is too much" in text
    assert "Count both" not in asks.check(a=8, b=2).text + asks.check(a=5, b=2).text


# --- what a run moved


def pass_on(laps):
    """A message to the right, `laps` times, each after the one before has come."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    x, y = torch.ones(3), torch.empty(3)
    for _ in range(laps):
        ops = [dist.P2POp(dist.isend, x, (rank + 1) % ranks)]
        ops += [dist.P2POp(dist.irecv, y, (rank - 1) % ranks)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()


def down_the_line():
    """Rank 0 tells rank 1, which tells rank 2, ...: each waits for the one before."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    x = torch.ones(2)
    if rank > 0:
        dist.recv(x, rank - 1)
    if rank + 1 < ranks:
        dist.send(x, rank + 1)


def all_to_rank_0():
    if dist.get_rank():
        dist.send(torch.ones(1), 0)
        return
    for other in range(1, dist.get_world_size()):
        dist.recv(torch.empty(1), other)


def no_message():
    dist.all_reduce(torch.ones(1000))


def test_bytes_and_rounds_of_a_run(worlds):
    for ranks in (2, 4):
        world = worlds(ranks)
        for laps in (1, 3):
            ledger = world.record(pass_on, laps)
            assert sent(ledger) == [12 * laps] * ranks and rounds(ledger) == laps
        ledger = world.record(down_the_line)
        assert sent(ledger) == [8] * (ranks - 1) + [0] and rounds(ledger) == ranks - 1
        assert rounds(world.record(all_to_rank_0)) == ranks - 1  # one message in a round
        ledger = world.record(no_message)
        assert rounds(ledger) == 0
        assert sent(ledger) == [round(formulas.collective("all_reduce", ranks, 4000).bytes)] * ranks


# --- the engine


def numbers(ranks, size):
    return [(torch.arange(float(size)) + 100 * rank,) for rank in range(ranks)]


def total(given):
    return [sum(x for (x,) in given)] * len(given)


def exercise(**more):
    return Exercise(task="Add up.", name="add", inputs=numbers, reference=total, **more)


def right(x):
    dist.all_reduce(x)
    return x


def unbegun(x): ...


def wrong_on_rank_2(x):
    dist.all_reduce(x)
    if dist.get_rank() == 2:
        x[3] += 1
    return x


def sends_the_wrong_way(x):
    rank, y = dist.get_rank(), torch.empty_like(x)
    ops = [dist.P2POp(dist.isend, x, (rank + 1) % 4), dist.P2POp(dist.irecv, y, (rank - 1) % 4)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return x + y


def sums_three_times_and_broadcasts(x):
    for _ in range(3):
        dist.all_reduce(x)
    dist.broadcast(x, 0)
    return x


def nothing_done(x):
    return x


def fails_on_rank_1(x):
    if dist.get_rank() == 1:
        raise ValueError("no idea")
    return right(x)


def rank_0_does_not_come(x):
    return x if dist.get_rank() == 0 else right(x)


def test_a_right_attempt_is_solved(world):
    verdict = exercise(sizes=(5, 1000)).check(right, world)
    assert verdict.solved
    said = "Solved. Right on ranks 0, 1, 2 and 3, for 5 and 1,000 numbers a rank."
    assert verdict.text == said and " ".join(repr(verdict).splitlines()) == said


def test_an_unsolved_cell_runs_and_says_what_to_do(world):
    verdict = exercise(hints=("Use a collective.",)).check(unbegun, world)
    assert not verdict.solved
    assert repr(verdict) == (
        "Not solved yet: `unbegun` returns nothing. Add up.\n"
        "Then run this cell again. For a hint: add.hint()"
    )


def test_a_wrong_attempt_hears_which_rank_and_which_entry(world):
    verdict = exercise().check(wrong_on_rank_2, world)
    assert not verdict.solved
    assert verdict.text == (
        "Not yet. With 8 numbers a rank, rank 2 differs first:\n"
        "  what it returned is 613 at [3], not 612 (1 of 8 entries differ). "
        "Ranks 0, 1 and 3 are right.\n"
        "Rank 2 launched all_reduce (32 bytes)."
    )
    text = exercise().check(sends_the_wrong_way, world).text
    assert "Rank 0 launched send to rank 1 (32 bytes), recv from rank 3 (32 bytes)." in text
    text = exercise().check(sums_three_times_and_broadcasts, world).text
    assert "Rank 0 launched 3 times all_reduce (32 bytes), broadcast (32 bytes)." in text
    text = exercise().check(nothing_done, world).text
    assert text.endswith("Rank 0 launched no collective and no message.")
    assert "rank 0 differs first" in exercise().check(nothing_done, world).text
    assert "Ranks 1, 2 and 3 differ too." in exercise().check(nothing_done, world).text


def test_a_failing_attempt_hears_the_ranks_own_words(world):
    text = exercise().check(fails_on_rank_1, world).text
    assert text.startswith("Not yet. With 8 numbers a rank, it failed:\n\nrank 1 raised ValueError")
    text = exercise().check(rank_0_does_not_come, world).text
    assert "rank 0 has finished without it" in text and "all_reduce float32 [8] SUM" in text
    assert exercise().check(right, world).solved  # the world is as good as before


def slow_sum(x):
    """Everybody to everybody: right, and n/2 times the bytes of a ring."""
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    rank, ranks = dist.get_rank(), dist.get_world_size()
    parts[rank] = x
    for k in range(1, ranks):
        ops = [dist.P2POp(dist.isend, x, (rank + k) % ranks)]
        ops += [dist.P2POp(dist.irecv, parts[(rank - k) % ranks], (rank - k) % ranks)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
    return sum(parts)


def test_a_right_sum_that_moves_too_much_is_scored_and_at_par_it_is_refused(world):
    par = {"par": lambda ranks, size: Par(6 * size, 6), "sizes": (8,)}
    verdict = exercise(**par).check(slow_sum, world)
    assert verdict.solved
    assert verdict.text.split("\n", 1)[1] == (
        "  bytes sent by the busiest rank: 96\n    of a good solution: 48\n"
        "  rounds: 3\n    of a good solution: 6\n"
        "Yours moves 2 times the bytes of a good solution."
    )
    refused = exercise(**par, at_par=True, model=pass_x_on).check(slow_sum, world)
    assert not refused.solved and "The sums are right, the traffic is not." in refused.text
    assert "Rank 0 sends 3 messages; in a good solution it sends 1." in refused.text
    same = exercise(par=lambda ranks, size: Par(12 * size, 3), sizes=(8,)).check(slow_sum, world)
    assert same.text.startswith("Solved, with no more traffic than needed.")


def pass_x_on(x):
    pass_on_x = [dist.P2POp(dist.isend, x, (dist.get_rank() + 1) % 4)]
    pass_on_x += [dist.P2POp(dist.irecv, torch.empty_like(x), (dist.get_rank() - 1) % 4)]
    for work in dist.batch_isend_irecv(pass_on_x):
        work.wait()


def test_long_lines_are_folded_for_small_screens():
    first, second, *others = repr(Verdict(False, "Not yet.\n  " + "word " * 40)).splitlines()
    assert first == "Not yet." and second.startswith("  word")
    assert every(line.startswith("    word") for line in others)  # not another item
    assert 44 < max(map(len, [second, *others])) <= 52
    table = "Scores:\n" + "1F1B" + " " * 60 + "33"
    assert repr(Verdict(True, table)) == table


def test_hints_come_by_degrees(capsys):
    hints = Hints("add", ("first", "a second one that is longer than a line of a phone"))
    for _ in range(3):
        hints.hint()
    Hints().hint()
    assert capsys.readouterr().out.splitlines() == [
        "Hint 1 of 2: first",
        *["Hint 2 of 2: a second one that is longer than a line", "of a phone"] * 2,
        "There is no hint for this exercise.",
    ]


def test_numbers_are_compared_one_by_one():
    numbers = Numbers(task="Put numbers.", answers={"a": 1000, "b": lambda: 6})
    assert numbers.check(a=None, b=None).text.startswith("Not solved yet: no number")
    assert "Put numbers." in numbers.check().text
    some = numbers.check(a=3000, b=None)
    assert not some.solved
    assert some.text == "Not yet. Your numbers:\n  a: 3,000 is too much\n  b: not answered yet"
    assert "a: 10 is too little" in numbers.check(a=10, b=6).text
    assert numbers.check(a=1000, b=6).text == "Solved.\n  a: right, 1,000\n  b: right, 6"


# --- what a run costs


@pytest.mark.parametrize("numel", [1001, 250_000])
def test_a_plan_that_equals_one_of_the_six_costs_the_same(worlds, numel):
    """Case 15: the exercise charged the reader `max(sent)`, and the six their longest messages."""
    world = worlds(4)
    for name, algorithm in algorithms.ALGORITHMS.items():
        counted = formulas.all_reduce(name, 4, numel)
        found = critical(world.record(algorithm, torch.ones(numel)))
        assert found == (counted.rounds, counted.critical_bytes), name


def test_a_collective_inside_an_invention_is_not_free(worlds):
    """Case 15: an all_reduce among the reader's messages costs what a ring needs."""
    found = critical(worlds(4).record(no_message))
    assert found == (6, formulas.collective("all_reduce", 4, 4000).bytes)
    assert critical(Ledger([])) == (0, 0)


# --- shown sources


def test_the_text_shown_is_the_text_of_the_file():
    shown = source(rounds)
    data = shown._repr_mimebundle_()
    assert shown.where == "lib/course/checks/sent_bytes.py"
    assert shown.text in (Path(__file__).parents[3] / shown.where).read_text()
    assert data["text/plain"].startswith("# lib/course/checks/sent_bytes.py\ndef rounds(")
    assert "```python\ndef rounds(" in data["text/markdown"]
    assert source(Ledger).where == "lib/ledger/ledger.py" and "class Row" in source(Row).text


def test_several_things_of_one_file_are_shown_together():
    shown = source(rounds, sent)
    assert shown.text == f"{source(rounds).text}\n\n\n{source(sent).text}"
    with pytest.raises(TypeError, match="one file"):
        source(rounds, source)


@pytest.mark.parametrize("thing", [3, len, "text"])
def test_what_has_no_text_is_refused(thing):
    with pytest.raises(TypeError, match="has no text to show"):
        source(thing)


def test_the_readers_own_functions_are_not_the_librarys():
    with pytest.raises(TypeError, match=r"unbegun is not in lib/"):
        source(unbegun)


@pytest.mark.parametrize(
    ("typed", "meant"), [("checks", "check"), ("Check", "check"), ("hnt", "hint")]
)
def test_a_misspelled_method_is_told_the_two_that_there_are(typed, meant):
    exercise = Numbers(name="some", task="", answers={})
    with pytest.raises(AttributeError, match=f"Perhaps you mean `{meant}`"):
        getattr(exercise, typed)
    assert not hasattr(exercise, "_repr_html_") and copy.copy(exercise).name == "some"
