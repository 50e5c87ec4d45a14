"""What makes a schedule impossible, in words, with the grid and an arrow at the bad cell.

[Note: the rules of a schedule]
They are asked in this order; the first that fails is told, at its first bad cell, rank by rank.

1. Every rank has something to do.
2. All actions of a stage stand on one rank.
3. Nothing is there twice; a backward is whole (B) or split (I and W), not both.
4. Every microbatch goes forward once and backward once through every stage; I has its W.
5. On its rank a forward comes before its backward, and I before W.
6. Played from the start, no rank waits for ever.
"""

import numpy as np

from lib.predict._clock import earliest

_WINDOW = 10  # cells shown of each row


def first_fault(rows, grid):
    """(sentence, bad cells as (rank, step)) of the first rule that `rows` break; None if none."""
    for rule in (_idle, _two_ranks, _twice, _missing, _order):
        if found := rule(rows):
            return found[0], [found[1]] if found[1] else []
    return _deadlock(rows, grid)


def _cells(rows):
    return ((rank, step, a) for rank, row in enumerate(rows) for step, a in enumerate(row))


def _idle(rows):
    if not rows:
        return "A schedule has a row of actions for each rank, and this one has none.", None
    for rank, row in enumerate(rows):
        if not row:
            return f"Rank {rank} has nothing to do: give it a stage, or leave it out.", (rank, 0)


def _two_ranks(rows):
    home: dict[int, int] = {}
    for rank, step, action in _cells(rows):
        first = home.setdefault(action.stage, rank)
        if first != rank:
            return (
                f"{action} stands on rank {rank}, but stage {action.stage} is on rank {first}: "
                "all actions of a stage stand on one rank."
            ), (rank, step)


def _twice(rows):
    seen = set()
    for rank, step, action in _cells(rows):
        if action in seen:
            return f"{action} is there twice.", (rank, step)
        seen.add(action)
        whole, parts = action._replace(kind="B"), [action._replace(kind=k) for k in "IW"]
        if action.kind != "F" and whole in seen and any(part in seen for part in parts):
            part = next(part for part in parts if part in seen)
            return (
                f"{whole} and {part} are both there: a backward is whole (B) or split (I and W)."
            ), (rank, step)


def _missing(rows):
    there = {action for _, _, action in _cells(rows)}
    home = {action.stage: rank for rank, _, action in _cells(rows)}
    some = next(iter(there))
    stages = 1 + max(action.stage for action in there)
    for microbatch in range(1 + max(action.microbatch for action in there)):
        for stage in range(stages):
            F, B, I, W = (some._replace(stage=stage, kind=k, microbatch=microbatch) for k in "FBIW")
            end = (home[stage], len(rows[home[stage]])) if stage in home else None
            if F not in there:
                return f"{F} is missing: every microbatch goes once through every stage.", end
            if W in there and I not in there:
                return f"{W} has no {I}: the backward for the input comes with it.", end
            if I in there and W not in there:
                return f"{I} has no {W}: the backward for the weights comes with it.", end
            if I not in there and B not in there:
                return f"{F} has no backward: write {B}, or {I} and {W}.", end


def _order(rows):
    done = set()
    for rank, step, action in _cells(rows):
        before = action._replace(kind="I" if action.kind == "W" else "F")
        if action.kind != "F" and before not in done:
            name = "backward for the input" if action.kind == "W" else "forward"
            return f"{action} comes before its {name}, {before}.", (rank, step)
        done.add(action)


def _deadlock(rows, grid):
    nothing = np.zeros(len(grid.codes))
    first, needs = grid.first.tolist(), grid.waits.tolist()
    undone = np.isnan(earliest(grid.first, grid.waits, nothing, nothing))
    left = [np.flatnonzero(undone[a:b]) for a, b in zip(first, first[1:])]
    stuck = {rank: first[rank] + int(places[0]) for rank, places in enumerate(left) if len(places)}
    if not stuck:
        return None
    rank_of = grid.rank.tolist()
    rank, circle = min(stuck), []
    while rank not in circle:  # whom a stuck rank waits for is stuck too: somewhere a circle closes
        circle.append(rank)
        rank = rank_of[needs[stuck[rank]]]
    circle = circle[circle.index(rank) :]
    flat, words = [action for row in rows for action in row], []
    for rank in circle:
        want = needs[stuck[rank]]
        pair = want - 1 in grid.overlapped  # what a pair makes is there when both are done
        wanted = f"({flat[want - 1]};{flat[want]})OVERLAP_F_B" if pair else flat[want]
        whose = "later in its row" if rank_of[want] == rank else f"of rank {rank_of[want]}"
        words.append(
            f"rank {rank} stands before {flat[stuck[rank]]} and waits for {wanted} {whose}"
        )
    bad = [(rank, stuck[rank] - first[rank]) for rank in circle]
    return "Deadlock: " + "; ".join(words) + ".", bad


def picture(rows, bad) -> str:
    """The grid around the bad cells, an arrow under each; long rows and many ranks are cut."""
    steps = [step for _, step in bad] or [0]
    left = max(0, min(steps) - _WINDOW // 2)
    right = max(steps) + _WINDOW // 2
    shown = [[str(action) for action in row[left:right]] for row in rows]
    width = max((len(text) for row in shown for text in row), default=3) + 1
    near = {r for rank, _ in bad for r in range(rank - 3, rank + 4)} or set(range(8))
    label = len(f"rank {len(rows) - 1}  ")
    lines = []
    for rank, row in enumerate(shown):
        if rank not in near:
            if lines and lines[-1] != "...":
                lines.append("...")
            continue
        head = f"rank {rank}".ljust(label) + ("... " if left else "")
        tail = "..." if len(rows[rank]) > right else ""
        lines.append((head + "".join(text.ljust(width) for text in row) + tail).rstrip())
        marks = [step - left for r, step in bad if r == rank]
        if marks:
            lines.append(" " * (len(head) + marks[0] * width) + "↑")
    return "\n".join(lines)
