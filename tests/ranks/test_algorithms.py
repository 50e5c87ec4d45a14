"""Six all-reduces from send and receive: the sum is right, and so is every byte and round."""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from lib.predict.collectives import formulas, plans
from lib.ranks import RankError
from lib.ranks.algorithms import ALGORITHMS, all_reduce, exchange, follow
from lib.ranks.mesh import mesh
from tests.every import every

RANKS = [1, 2, 3, 4, 5, 8]
NUMELS = [0, 1, 3, 7, 64, 1001]
every_algorithm = pytest.mark.parametrize("name", ALGORITHMS)


def values(rank, numel, dtype=torch.float64):
    """Small whole numbers, other ones on each rank: their sums are exact in every dtype."""
    noise = torch.Generator(device="cpu").manual_seed(rank)
    return torch.randint(-8, 8, (numel,), generator=noise).to(dtype)


def summed(name, numel, dtype=torch.float64, **options):
    x = values(dist.get_rank(), numel, dtype)
    back = all_reduce(x, name, **options)
    return back is x, x


def the_sum(ranks, numel, dtype=torch.float64):
    return sum(values(rank, numel, dtype) for rank in range(ranks))


# Rounds and bytes


@every_algorithm
@pytest.mark.parametrize("n", RANKS)
@pytest.mark.parametrize("numel", NUMELS)
def test_sum_rounds_and_bytes(worlds, name, n, numel):
    ledger = worlds(n).record(summed, name, numel, torch.float32)
    for in_place, x in ledger.results:
        assert in_place and torch.equal(x, the_sum(n, numel, torch.float32))
    predicted = formulas.all_reduce(name, n, numel, itemsize=4)
    assert moved(ledger, "send") == predicted.sent
    assert moved(ledger, "recv") == predicted.received
    assert messages(ledger) == planned(name, n, numel, 4)
    if numel >= n:  # else there are rounds in which all pieces are empty
        assert len({number for number, *_ in messages(ledger)}) == predicted.rounds


def moved(ledger, op):
    ranks = range(ledger.meta["ranks"])
    return tuple(sum(r.bytes for r in ledger.where(lane="comm", op=op, rank=n)) for n in ranks)


def messages(ledger):
    """Every message as (round, source, destination, bytes), from the rows of its sender."""
    rows = ledger.where(lane="comm", op="send")
    for row in rows:  # on one rank there is none
        assert row.members == (row.rank, row.peer)
    return sorted((int(row.note.split(" round ")[1]), *row.members, row.bytes) for row in rows)


def planned(name, n, numel, itemsize):
    plan = plans.PLANS[name](n)
    sizes = plan.sizes(numel)
    found = []
    for number, moves in enumerate(plan.rounds):
        for m in moves:
            size = itemsize * sum(sizes[m.piece : m.piece + m.count])
            found += [(number, m.source, m.destination, size)] * (size > 0)
    return sorted(found)


def whole_ring():
    """The ring that many a blog shows: what travels is the whole buffer, n-1 times."""
    x, n, rank = values(dist.get_rank(), 64), dist.get_world_size(), dist.get_rank()
    total, travelling = x.clone(), x
    for number in range(n - 1):
        arrived = torch.empty_like(x)
        sends, receives = {(rank + 1) % n: travelling}, {(rank - 1) % n: arrived}
        exchange(sends, receives, note=f"whole ring round {number}")
        total, travelling = total + arrived, arrived
    return total


def test_a_ring_of_whole_buffers_gives_the_sum_and_moves_too_much(worlds):
    ledger = worlds(4).record(whole_ring)
    assert every(torch.equal(x, the_sum(4, 64)) for x in ledger.results)
    predicted = formulas.all_reduce("ring", 4, 64, itemsize=8)
    assert [2 * sent for sent in predicted.sent] == list(moved(ledger, "send"))
    assert messages(ledger) != planned("ring", 4, 64, 8)


@pytest.mark.parametrize("node", [1, 2, 4])
def test_two_level_sends_little_between_nodes(worlds, node):
    ledger = worlds(4).record(summed, "two_level", 64, torch.float32, node=node)
    assert every(torch.equal(x, the_sum(4, 64, torch.float32)) for _, x in ledger.results)
    predicted = formulas.all_reduce("two_level", 4, 64, itemsize=4, node=node)
    assert moved(ledger, "send") == predicted.sent
    across = [s for _, a, b, s in messages(ledger) if a // node != b // node]
    assert len(across) == 2 * (4 // node - 1) * (4 // node)
    assert across == [64 * 4 // (4 // node)] * len(across)


def not_a_divisor():
    all_reduce(torch.ones(4), "two_level", node=3)


def test_nodes_that_ranks_do_not_fill_are_refused(worlds):
    with pytest.raises(
        RankError, match="nodes of 3 cannot share them equally. Choose a divisor of 4"
    ):
        worlds(4).run(not_a_divisor)


# The sum


def beside_gloo(name, dtype, numel=1000):
    noise = torch.Generator(device="cpu").manual_seed(dist.get_rank())
    x = torch.randn(numel, generator=noise, dtype=torch.float64).to(dtype)
    want, exact = x.clone(), x.to(torch.float64, copy=True)
    dist.all_reduce(want)
    dist.all_reduce(exact)
    all_reduce(x, name)
    return x, want, exact


# Of the largest entry, from the rounding of n-1 sums in that dtype.
BOUNDS = {torch.float64: 1e-14, torch.float32: 3e-6, torch.bfloat16: 3e-2, torch.float16: 4e-3}


@every_algorithm
@pytest.mark.parametrize("n", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_as_gloo_sums_and_everywhere_the_same_bits(worlds, name, n, dtype):
    answers = worlds(n).run(beside_gloo, name, dtype)
    for x, want, exact in answers:
        assert torch.equal(x, answers[0][0])  # else the ranks' models would drift apart
        if n == 2:
            assert torch.equal(x, want)  # a + b = b + a, to the bit
        assert (x.double() - exact).abs().max() <= BOUNDS[dtype] * exact.abs().max()
        assert x.dtype == dtype


@every_algorithm
@pytest.mark.parametrize("n", RANKS)
def test_whole_numbers(worlds, name, n):
    for _, x in worlds(n).run(summed, name, 23, torch.int64):
        assert x.dtype == torch.int64 and torch.equal(x, the_sum(n, 23, torch.int64))


def strange_tensors(name):
    rank = dist.get_rank()
    base = torch.arange(24.0).view(4, 6) + rank
    parameter = torch.nn.Parameter(torch.ones(3) * rank)
    all_reduce(base.T[1:3], name)  # a view with gaps: only it may change
    all_reduce(parameter, name)
    return base, all_reduce(torch.tensor(float(rank)), name), parameter.detach()


@every_algorithm
def test_views_scalars_and_parameters_are_summed_in_place(worlds, name):
    plain = torch.arange(24.0).view(4, 6)
    for rank, (base, scalar, parameter) in enumerate(worlds(4).run(strange_tensors, name)):
        want = plain + rank
        want[:, 1:3] = 4 * plain[:, 1:3] + 6
        assert torch.equal(base, want)
        assert scalar == 6 and torch.equal(parameter, torch.full((3,), 6.0))


def in_groups(name):
    x = values(dist.get_rank(), 10)
    return all_reduce(x, name, mesh(dp=2, tp=2)["dp"].group)


@every_algorithm
def test_in_a_group_of_some_ranks(worlds, name):
    ledger = worlds(4).record(in_groups, name)
    for rank, x in enumerate(ledger.results):
        assert torch.equal(x, values(rank, 10) + values((rank + 2) % 4, 10))
    rows = ledger.where(lane="comm", op="send")
    assert {abs(row.peer - row.rank) for row in rows} == {2} and set(rows.column("group")) == {"dp"}


# Bites


def one_move_short(name):
    """The sum with each move of the plan left out in turn: True where it was right all the same."""
    plan, n = plans.PLANS[name](dist.get_world_size()), dist.get_world_size()
    found = []
    for number, moves in enumerate(plan.rounds):
        for move in moves:
            left = list(plan.rounds)
            left[number] = [m for m in moves if m != move]
            x = follow(replace(plan, rounds=tuple(left)), values(dist.get_rank(), 23))
            found.append(torch.equal(x, the_sum(n, 23)))
    return found


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "everyone"])
def test_without_one_message_some_rank_has_another_sum(worlds, name):
    answers = worlds(4).run(one_move_short, name)
    assert len(answers[0]) >= 6 and not any(map(all, zip(*answers)))


def plan_of_three():
    follow(plans.ring(3), torch.ones(3))


def test_a_plan_for_other_ranks_is_refused(worlds):
    with pytest.raises(RankError, match="This plan needs 3 ranks, but the group has 4"):
        worlds(4).run(plan_of_three)


def unknown_name():
    all_reduce(torch.ones(3), "butterfly")


def test_an_unknown_name_gets_the_six(worlds):
    with pytest.raises(
        RankError, match="'butterfly'. Choose one of central, everyone, ring, tree, halving"
    ):
        worlds(2).run(unknown_name)


def test_the_six_are_the_six_of_the_formulas():
    assert tuple(ALGORITHMS) == tuple(plans.PLANS) == formulas.ALGORITHMS
