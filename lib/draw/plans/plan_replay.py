"""A plan acted out on labels: after each round, whose parts are in each rank's pieces.

A piece is a set of ranks, as bits: 0b101 holds the parts of ranks 0 and 2. It is negative once its
rank has handed it on to be added elsewhere: the bytes are still there, and nobody needs them.
"""

from typing import NamedTuple

from lib.predict.collectives.plans import Plan

Held = list[list[int]]  # for each rank, the set of each piece
MOST = 8  # ranks that a picture can tell apart by colour


class Acted(NamedTuple):
    """What a plan comes to, before its first round and after each one."""

    held: list[Held]
    sent: list[list[int]]  # bytes sent so far, by rank
    fresh: list[set[tuple[int, int]]]  # (rank, piece) that arrived in that round
    bytes: list[int]  # of each piece


def act(plan: Plan, numel: int, itemsize: int) -> Acted:
    """Follow `plan` where every rank has `numel` elements of `itemsize` bytes."""
    _check(plan, numel, itemsize)
    n, sizes = plan.ranks, [itemsize * size for size in plan.sizes(numel)]
    acted = Acted([_start(plan)], [[0] * n], [set()], sizes)
    for moves in plan.rounds:
        before, sent, fresh = acted.held[-1], acted.sent[-1][:], set()
        now = [pieces[:] for pieces in before]
        for move in moves:  # what leaves, before anything arrives
            for p in range(move.piece, move.piece + move.count):
                sent[move.source] += sizes[p]
                if plan.personal:
                    now[move.source][p] = 0
                elif move.add:
                    now[move.source][p] = -abs(before[move.source][p])
        for move in moves:
            for p in range(move.piece, move.piece + move.count):
                own = abs(before[move.destination][p]) if move.add else 0
                now[move.destination][p] = own | abs(before[move.source][p])
                fresh.add((move.destination, p))
        for part, new in zip(acted[:3], (now, sent, fresh)):
            part.append(new)
    return acted


def _start(plan: Plan) -> Held:
    n = plan.ranks
    if plan.personal:
        return [[(1 << r) * (p // n == r) for p in range(plan.pieces)] for r in range(n)]
    if plan.whole:
        return [[(1 << r) * (p == r) for p in range(plan.pieces)] for r in range(n)]
    return [[1 << r] * plan.pieces for r in range(n)]


def _check(plan: Plan, numel: int, itemsize: int) -> None:
    if not 2 <= plan.ranks <= MOST:
        raise ValueError(
            f"{plan.name} on {plan.ranks} ranks cannot be drawn step by step: 2 to {MOST} ranks "
            "can be told apart. What more would move, lib.predict.collectives.formulas counts."
        )
    if numel < 0 or itemsize < 1:
        raise ValueError(f"{numel} elements of {itemsize} bytes: at least 0 elements of 1 byte.")
    if not plan.rounds:
        raise ValueError(f"{plan.name} has no rounds: there is nothing to step through.")
    for number, moves in enumerate(plan.rounds, 1):
        for move in moves:
            if not {move.source, move.destination} <= set(range(plan.ranks)):
                last = plan.ranks - 1
                raise ValueError(
                    f"Round {number} of {plan.name} says {move}: ranks are 0 to {last}."
                )
            if not 0 <= move.piece < move.piece + move.count <= plan.pieces:
                last = plan.pieces - 1
                raise ValueError(
                    f"Round {number} of {plan.name} says {move}: its pieces are 0 to {last}."
                )
