"""Plans of six all-reduces: acted out they give the sum, and they move what the formulas say."""

from dataclasses import replace

import numpy as np
import pytest

from lib.predict.collectives import formulas
from lib.predict.collectives.plans import PLANS, Move, ring, two_level
from tests.every import every

RANKS = [*range(1, 10), 12, 16, 17]
NUMELS = [0, 1, 3, 7, 16, 1001]
every_plan = pytest.mark.parametrize("name", PLANS)


def buffers(ranks, numel):
    return np.random.default_rng(0).integers(-1000, 1000, (ranks, numel))


def act(plan, given):
    """What every rank holds in the end, piece by piece; all messages of a round leave at once."""
    if plan.whole:
        held = [[x if r == owner else 0 * x for owner, x in enumerate(given)]
                for r in range(plan.ranks)]  # fmt: skip
    else:
        held = [np.array_split(x, plan.pieces) for x in given]
    for moves in plan.rounds:
        parcels = [(m, held[m.source][m.piece : m.piece + m.count]) for m in moves]
        for move, parcel in parcels:
            mine = held[move.destination]
            for piece, arrived in enumerate(parcel, move.piece):
                mine[piece] = mine[piece] + arrived if move.add else arrived
    return [sum(pieces) if plan.whole else np.concatenate(pieces) for pieces in held]


def right(plan, given):
    return all(np.array_equal(x, given.sum(axis=0)) for x in act(plan, given))


@every_plan
@pytest.mark.parametrize("n", RANKS)
def test_every_rank_ends_with_the_sum(name, n):
    assert right(PLANS[name](n), buffers(n, 23))


@every_plan
@pytest.mark.parametrize("n", [2, 3, 4, 6, 8])
def test_no_move_can_be_left_out(name, n):
    plan, given = PLANS[name](n), buffers(n, 23)
    for number, moves in enumerate(plan.rounds):
        for move in moves:
            rounds = list(plan.rounds)
            rounds[number] = [m for m in moves if m != move]
            assert not right(replace(plan, rounds=tuple(rounds)), given), f"{number}: {move}"


@every_plan
@pytest.mark.parametrize("n", RANKS)
@pytest.mark.parametrize("numel", NUMELS)
def test_rounds_and_elements_equal_the_formulas(name, n, numel):
    plan, counted = PLANS[name](n), formulas.all_reduce(name, n, numel, itemsize=1)
    sizes = plan.sizes(numel)
    sent, received, critical = [0] * n, [0] * n, 0
    for moves in plan.rounds:
        elements = [sum(sizes[m.piece : m.piece + m.count]) for m in moves]
        for move, size in zip(moves, elements):
            sent[move.source] += size
            received[move.destination] += size
        critical += max(elements)
    assert len(plan.rounds) == counted.rounds
    assert (tuple(sent), tuple(received)) == (counted.sent, counted.received)
    assert critical == counted.critical_bytes


@pytest.mark.parametrize(("n", "node"), [(4, 1), (4, 2), (4, 4), (6, 3), (8, 2), (8, 4), (12, 3)])
def test_nodes_of_any_size_that_divides(n, node):
    plan, counted = two_level(n, node), formulas.all_reduce("two_level", n, 24, 1, node=node)
    assert right(plan, buffers(n, 24)) and len(plan.rounds) == counted.rounds
    assert every(m.source // node == m.destination // node or not (m.source % node or
               m.destination % node) for moves in plan.rounds for m in moves)  # fmt: skip


@pytest.mark.parametrize("node", [0, 3, 5])
def test_nodes_that_do_not_fill_are_refused(node):
    with pytest.raises(
        ValueError, match=f"nodes of {node} cannot share them equally. Choose a divisor"
    ):
        two_level(4, node)


@every_plan
@pytest.mark.parametrize("n", RANKS)
def test_in_a_round_a_rank_sends_at_most_once_and_receives_at_most_once(name, n):
    for moves in PLANS[name](n).rounds:
        assert moves, "a round in which nobody speaks"
        for ends in ([m.source for m in moves], [m.destination for m in moves]):
            assert len(set(ends)) == len(ends)


@every_plan
@pytest.mark.parametrize("n", [2, 5, 8])
def test_moves_print_as_their_notation_and_read_back(name, n):
    for moves in PLANS[name](n).rounds:
        assert [Move.read(str(move)) for move in moves] == list(moves)


@pytest.mark.parametrize("text", ["", "0>1", "0>1 2", "0>1 *2", "0>1 +2:", "a>1 +2", "0>1 +2 "])
def test_what_is_no_move_is_refused(text):
    with pytest.raises(ValueError, match="is not a move"):
        Move.read(text)


def test_a_plan_prints_as_a_line_for_each_round():
    assert str(ring(3)) == (
        "ring on 3 ranks, 4 rounds\n"
        "  1  0>1 +0   1>2 +1   2>0 +2\n"
        "  2  0>1 +2   1>2 +0   2>0 +1\n"
        "  3  0>1 =1   1>2 =2   2>0 =0\n"
        "  4  0>1 =0   1>2 =1   2>0 =2"
    )
