"""The rules of the schedules whose stages lie like a V: rank r has stage r and stage 2R-1-r.

Down the V is chunk 0, up again chunk 1; the last rank has both at the bottom. A rule is a list of
moves for one rank. A move is a letter and a chunk; microbatches are counted up for each of them:

    F0      the next forward of chunk 0
    W       the backward for the weights that has been owed longest
    F0B1    a forward of chunk 0 and a whole backward of chunk 1, side by side
"""

from lib.predict._grid import KINDS


def zero_bubble_v(rank: int, ranks: int, microbatches: int) -> list[str]:
    """ZB-V (Qi et al. 2023, arXiv 2401.10241, section 6), in the order of PyTorch's ScheduleZBV.

    The pipe is full from 2R-1 microbatches on; with fewer, those that are not there drop out.
    """
    r, total = rank, max(2 * ranks - 1, microbatches)
    up = ["F1", "I1", "W1"]
    # 1. Fill the pipe: down, then down and up, then the first backwards at once.
    moves = ["F0"] * (2 * (ranks - r) - 1) + ["F1", "F0"] * r + up * (ranks - r)
    # 2. As long as forwards of chunk 0 are left, then until chunk 1 has caught up.
    started = 2 * ranks - 1 - r
    moves += (["F0", "I0", "W0"] + up) * (total - started)
    moves += (["I0", "W0"] + up) * (started - ranks)
    # 3. Empty it: what others wait for comes first, weights fill the gaps.
    moves += ["I0", "I1"] * r + ["I0", "W0"] * (ranks - r)
    return moves + ["W1"] * r + ["W0"] * r


def dual_pipe_v(rank: int, ranks: int, microbatches: int) -> list[str]:
    """DualPipeV in eight steps, as github.com/deepseek-ai/DualPipe and PyTorch have it."""
    r, left = rank, ranks - rank - 1
    moves = ["F0"] * (2 * left)  # 1
    moves += ["F0", "F1"] * (r + 1)  # 2
    moves += ["I1", "W", "F1"] * left  # 3
    main = ["F0B1", "F1B0"] * (microbatches - 2 * ranks + r + 1)  # 4
    if r == ranks - 1:  # at the bottom of the V the first two are neighbours: one after the other
        main[:1] = ["F0", "B1"]
    moves += main
    moves += ["B1", "F1B0"] * left  # 5
    half = [c for _ in range(r + 1) for c in "10"]  # 6: from the middle on, weights are put off
    turn = 2 * ((r + 1) // 2) + (r % 2 == 0)
    moves += ["B" + c for c in half[:turn]] + ["I" + c for c in half[turn:]]
    moves += ["W", "I0"] * left  # 7
    return moves + ["W"] * (r + 1)  # 8


def count(moves: list[str], microbatches: int):
    """Number the moves: (kind, chunk, microbatch) of each action, and where each pair begins.

    Moves of microbatches that are not there are left out.
    """
    counts = {kind + chunk: 0 for kind in "FIW" for chunk in "01"}
    owed: list[tuple[str, int]] = []
    actions, pairs = [], []
    for move in moves:
        if len(move) == 4:
            pairs.append(len(actions))
        for at in range(0, len(move), 2):
            kind, chunk = move[at], move[at + 1 : at + 2]
            if not chunk:
                chunk, number = owed.pop(0)
                counts["W" + chunk] += 1
            elif kind == "B":  # both halves at once
                number = counts["I" + chunk]
                counts["I" + chunk] += 1
                counts["W" + chunk] += 1
            else:
                number = counts[move[at : at + 2]]
                counts[move[at : at + 2]] += 1
                if kind == "I":
                    owed.append((chunk, number))
            if number < microbatches:
                actions.append((KINDS.index(kind), int(chunk), number))
    return actions, pairs
