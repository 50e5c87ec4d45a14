"""Rules of the schedules whose stages are placed like a V: rank r has stage r and stage 2R-1-r.

Chunk 0 goes down the V, from the first rank to the last, and chunk 1 up again. A rule is a list of
moves for one rank. A move is a letter and a chunk; each kind of move counts its own microbatches:

    F0      the next forward of chunk 0
    W       the backward for the weights whose I came first among those still to be done
    F0B1    a forward of chunk 0 and a whole backward of chunk 1, side by side
"""

from lib.predict.pipeline.grid import KINDS


def zero_bubble_v(rank: int, ranks: int, microbatches: int) -> list[str]:
    """Return the moves of ZB-V (Qi et al. 2023, arXiv 2401.10241, section 6), as in ScheduleZBV.

    The order is that of PyTorch's class. The pipe is full from 2R-1 microbatches on; with fewer,
    the moves of the missing microbatches are left out.
    """
    r, total = rank, max(2 * ranks - 1, microbatches)
    up = ["F1", "I1", "W1"]
    # 1. Fill the pipe: down, then down and up, then the first backwards as soon as they can run.
    moves = ["F0"] * (2 * (ranks - r) - 1) + ["F1", "F0"] * r + up * (ranks - r)
    # 2. Continue while forwards of chunk 0 are left, then until chunk 1 has caught up.
    started = 2 * ranks - 1 - r
    moves += (["F0", "I0", "W0"] + up) * (total - started)
    moves += (["I0", "W0"] + up) * (started - ranks)
    # 3. Drain the pipe: actions that other ranks wait for come first, and W's fill the gaps.
    moves += ["I0", "I1"] * r + ["I0", "W0"] * (ranks - r)
    return moves + ["W1"] * r + ["W0"] * r


def dual_pipe_v(rank: int, ranks: int, microbatches: int) -> list[str]:
    """Return the moves of DualPipeV, in the eight steps of github.com/deepseek-ai/DualPipe."""
    r, left = rank, ranks - rank - 1
    moves = ["F0"] * (2 * left)  # 1
    moves += ["F0", "F1"] * (r + 1)  # 2
    moves += ["I1", "W", "F1"] * left  # 3
    main = ["F0B1", "F1B0"] * (microbatches - 2 * ranks + r + 1)  # 4
    if r == ranks - 1:  # at the bottom of the V, B1 needs F0's result, so they cannot overlap
        main[:1] = ["F0", "B1"]
    moves += main
    moves += ["B1", "F1B0"] * left  # 5
    half = [c for _ in range(r + 1) for c in "10"]  # 6: from the middle on, W's are postponed
    turn = 2 * ((r + 1) // 2) + (r % 2 == 0)
    moves += ["B" + c for c in half[:turn]] + ["I" + c for c in half[turn:]]
    moves += ["W", "I0"] * left  # 7
    return moves + ["W"] * (r + 1)  # 8


def count(moves: list[str], microbatches: int):
    """Return (kind, chunk, microbatch) of each move's actions, and where each pair begins.

    Moves of microbatches beyond the last one are left out.
    """
    counts = {kind + chunk: 0 for kind in "FIW" for chunk in "01"}
    owed: list[tuple[str, int]] = []
    actions, pairs = [], []
    for move in moves:
        if len(move) == 4:
            pairs.append(len(actions))
        for start in range(0, len(move), 2):
            kind, chunk = move[start], move[start + 1 : start + 2]
            if not chunk:
                chunk, number = owed.pop(0)
                counts["W" + chunk] += 1
            elif kind == "B":  # counts as both halves
                number = counts["I" + chunk]
                counts["I" + chunk] += 1
                counts["W" + chunk] += 1
            else:
                number = counts[kind + chunk]
                counts[kind + chunk] += 1
                if kind == "I":
                    owed.append((chunk, number))
            if number < microbatches:
                actions.append((KINDS.index(kind), int(chunk), number))
    return actions, pairs
