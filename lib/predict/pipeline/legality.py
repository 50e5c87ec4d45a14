"""Checks that a schedule can be run, and explains the first fault with an arrow at the bad cell.

[Note: the rules of a schedule]
The rules are checked in this order. The first one that is broken is reported, at its first bad
cell, rank by rank.

1. Every rank has at least one action.
2. All actions of a stage stand on one rank.
3. No action occurs twice; a backward is whole (B) or split (I and W), not both.
4. Every microbatch goes forward once and backward once through every stage; I has its W.
5. In its row a forward comes before its backward, and I before W.
6. When the schedule is simulated, no rank waits forever.
"""

import numpy as np

from lib.predict.pipeline.clock import earliest

_WINDOW = 10  # cells shown of each row


def first_fault(rows, grid):
    """Return (sentence, bad cells as (rank, step)) of the first broken rule; None if none is."""
    for rule in (_idle, _two_ranks, _twice, _missing, _order):
        if fault := rule(rows):
            sentence, cell = fault
            return sentence, [cell] if cell else []
    return _deadlock(rows, grid)


def _cells(rows):
    return ((rank, step, a) for rank, row in enumerate(rows) for step, a in enumerate(row))


def _idle(rows):
    if not rows:
        return "A schedule needs a row of actions for each rank, but this one has no rows.", None
    for rank, row in enumerate(rows):
        if not row:
            return f"Rank {rank} has no actions. Give it a stage, or leave it out.", (rank, 0)


def _two_ranks(rows):
    home: dict[int, int] = {}
    for rank, step, action in _cells(rows):
        first = home.setdefault(action.stage, rank)
        if first != rank:
            return (
                f"{action} stands on rank {rank}, but stage {action.stage} is on rank {first}: "
                "all actions of a stage must stand on one rank."
            ), (rank, step)


def _twice(rows):
    seen = set()
    for rank, step, action in _cells(rows):
        if action in seen:
            return f"{action} occurs twice.", (rank, step)
        seen.add(action)
        whole, parts = action._replace(kind="B"), [action._replace(kind=k) for k in "IW"]
        if action.kind != "F" and whole in seen and any(part in seen for part in parts):
            part = next(part for part in parts if part in seen)
            return (
                f"{whole} and {part} both occur, but a backward is either whole (B) or split "
                "(I and W)."
            ), (rank, step)


def _missing(rows):
    actions = {action for _, _, action in _cells(rows)}
    home = {action.stage: rank for rank, _, action in _cells(rows)}
    some = next(iter(actions))
    stages = 1 + max(action.stage for action in actions)
    for microbatch in range(1 + max(action.microbatch for action in actions)):
        for stage in range(stages):
            F, B, I, W = (some._replace(stage=stage, kind=k, microbatch=microbatch) for k in "FBIW")
            end = (home[stage], len(rows[home[stage]])) if stage in home else None
            if F not in actions:
                return f"{F} is missing: every microbatch goes once through every stage.", end
            if W in actions and I not in actions:
                return f"{W} has no {I}: a split backward needs both.", end
            if I in actions and W not in actions:
                return f"{I} has no {W}: a split backward needs both.", end
            if I not in actions and B not in actions:
                return f"{F} has no backward. Add {B}, or {I} and {W}.", end


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
    undone = np.isnan(earliest(grid.first[:-1], grid.first[1:], grid.waits, nothing, nothing))
    left = [np.flatnonzero(undone[a:b]) for a, b in zip(first, first[1:])]
    stuck = {rank: first[rank] + int(places[0]) for rank, places in enumerate(left) if len(places)}
    if not stuck:
        return None
    rank_of = grid.rank.tolist()
    rank, circle = min(stuck), []
    while rank not in circle:  # a stuck rank waits for a stuck rank, so a circle must close
        circle.append(rank)
        rank = rank_of[needs[stuck[rank]]]
    circle = circle[circle.index(rank) :]
    flat, words = [action for row in rows for action in row], []
    for rank in circle:
        need = needs[stuck[rank]]
        pair = need - 1 in grid.overlapped  # a pair's results are ready when both of it are done
        name = f"({flat[need - 1]};{flat[need]})OVERLAP_F_B" if pair else flat[need]
        whose = "later in its row" if rank_of[need] == rank else f"of rank {rank_of[need]}"
        words.append(f"rank {rank} stands before {flat[stuck[rank]]} and waits for {name} {whose}")
    bad = [(rank, stuck[rank] - first[rank]) for rank in circle]
    return "Deadlock: " + "; ".join(words) + ".", bad


def picture(rows, bad) -> str:
    """Return the grid around the bad cells with an arrow under each; the rest is left out."""
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
