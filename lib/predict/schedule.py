"""Pipeline schedules: for each, the rule by which it orders what every rank does.

`stages` are the pieces of the model, over all ranks; rank r of R has stages r, r+R, ... ("looped")
where a schedule gives a rank more than one. The rules are written for one rank, in two moves:

    weave        `warm` forwards first; then one forward and one backward in turn, until no
                 forward is left; then the other backwards
    lag          each I is followed by the W that is `lag` I's older; what is left stands at the end
"""

import numpy as np

from lib.predict._grid import B, F, I, W
from lib.predict._v import count, dual_pipe_v, zero_bubble_v
from lib.predict.actions import Schedule


def naive(stages: int, microbatches: int = 1) -> Schedule:
    """Naive model parallel: a microbatch goes all the way there and back before the next starts.

    One rank works at a time. Rank r: F0 B0 F1 B1 ...
    """
    return _one_stage_each("naive", stages, microbatches, lambda rank, f, b: _weave(f, b, 0))


def gpipe(stages: int, microbatches: int) -> Schedule:
    """GPipe: all forwards, then all backwards (Huang et al. 2018, arXiv 1811.06965).

    Rank r: F0 F1 ... F(m-1) B0 B1 ... B(m-1), the order of torch.distributed.pipelining; the
    paper draws the backwards from the last microbatch to the first, which takes as long.
    """
    rule = lambda rank, f, b: _weave(f, b, microbatches)
    return _one_stage_each("GPipe", stages, microbatches, rule)


def one_f_one_b(stages: int, microbatches: int) -> Schedule:
    """1F1B, PipeDream-flush: at most p - r microbatches are alive on rank r (arXiv 2006.09503).

    Rank r weaves after p-1-r forwards; with fewer microbatches too, which PyTorch refuses.
    """
    rule = lambda rank, f, b: _weave(f, b, stages - 1 - rank)
    return _one_stage_each("1F1B", stages, microbatches, rule)


def interleaved(stages: int, microbatches: int, chunks: int = 2) -> Schedule:
    """Interleaved 1F1B: each rank has `chunks` stages (Narayanan et al. 2021, arXiv 2104.04473).

    R = stages ÷ chunks ranks. Microbatches go in rounds of about R: a rank takes a round through
    its first stage, then through its second, ..., and backward from its last stage to its first.
    Rank r weaves after (chunks-1)·round + 2(R-1-r) forwards. Raises ValueError where the rounds,
    max(1, m // R) of them, would not be equally long.
    """
    ranks = _ranks(stages, chunks, microbatches)
    rounds = max(1, microbatches // ranks)
    if microbatches % rounds:
        raise ValueError(
            f"{microbatches} microbatches do not make {rounds} equal rounds on {ranks} ranks: "
            f"choose a multiple of {ranks}, or fewer than {2 * ranks}."
        )
    size = microbatches // rounds
    k = np.arange(chunks * microbatches)  # the k-th forward of a rank, and its k-th backward
    chunk, microbatch = k // size % chunks, k // (size * chunks) * size + k % size
    rows = []
    for rank in range(ranks):
        f = _codes(F, chunk * ranks + rank, microbatch, stages)
        b = _codes(B, (chunks - 1 - chunk) * ranks + rank, microbatch, stages)
        rows.append(_weave(f, b, (chunks - 1) * size + 2 * (ranks - 1 - rank)))
    return Schedule.from_codes(rows, stages, microbatches, "interleaved 1F1B")


def breadth_first(stages: int, microbatches: int, chunks: int = 2) -> Schedule:
    """Breadth-first looped: all microbatches through a rank's first stage, then its second, ...

    Back from the last stage to the first, and from the last microbatch to the first, as
    torch.distributed.pipelining has it (ScheduleLoopedBFS). Lamy-Poirier 2022, arXiv 2211.05953.
    """
    ranks = _ranks(stages, chunks, microbatches)
    k = np.arange(chunks * microbatches)
    rows = []
    for rank in range(ranks):
        f = _codes(F, k // microbatches * ranks + rank, k % microbatches, stages)
        rows.append(np.concatenate([f, (f - F + B)[::-1]]))
    return Schedule.from_codes(rows, stages, microbatches, "breadth-first")


def zb_h1(stages: int, microbatches: int) -> Schedule:
    """ZB-H1: 1F1B with the backward split, memory as 1F1B's (Qi et al. 2023, arXiv 2401.10241).

    Rank r weaves F and I after p-1-r forwards; W lags by r.
    """
    rule = lambda rank, f, i: _lag(_weave(f, i, stages - 1 - rank), rank)
    return _one_stage_each("ZB-H1", stages, microbatches, rule, backward=I)


def zb_h2(stages: int, microbatches: int) -> Schedule:
    """ZB-H2: no bubble in the steady state, for twice 1F1B's memory (arXiv 2401.10241).

    Rank r weaves F and I after 2(p-1-r) forwards; W lags by 2r.
    """
    rule = lambda rank, f, i: _lag(_weave(f, i, 2 * (stages - 1 - rank)), 2 * rank)
    return _one_stage_each("ZB-H2", stages, microbatches, rule, backward=I)


def zb_v(stages: int, microbatches: int) -> Schedule:
    """ZB-V: two stages a rank, down and up again, so that memory is level (arXiv 2401.10241).

    Rank r of R = stages ÷ 2 has stages r and 2R-1-r; the rule is in _v.py. No bubble in the
    steady state where F, I and W take equally long.
    """
    return _two_stages_each("ZB-V", stages, microbatches, zero_bubble_v)


def dualpipe_v(stages: int, microbatches: int) -> Schedule:
    """DualPipeV: the V of ZB-V with forwards beside backwards (DeepSeek 2024, arXiv 2412.19437).

    Source of the rule (_v.py): github.com/deepseek-ai/DualPipe. Raises ValueError for fewer
    microbatches than stages.
    """
    if microbatches < stages:
        raise ValueError(
            f"DualPipeV fills its pipe from both ends: {stages} stages need at least {stages} "
            f"microbatches, not {microbatches}."
        )
    return _two_stages_each("DualPipeV", stages, microbatches, dual_pipe_v)


def pipedream(stages: int, microbatches: int) -> Schedule:
    """PipeDream's stream: the order of 1F1B without a flush (Narayanan et al. 2019, SOSP).

    Weights change under way, after every backward, or with 2BW after every so many; versions.py
    says which version each microbatch sees. A stream has no steps: give all its microbatches.
    """
    schedule = one_f_one_b(stages, microbatches)
    schedule.name = "PipeDream"
    return schedule


def repeated(schedule: Schedule, steps: int) -> Schedule:
    """A synchronous schedule `steps` times over; a rank goes on when its own row is done.

    That is a flush between the steps: weights change only where no microbatch is under way.
    """
    grid = schedule.grid
    step = 4 * schedule.stages * schedule.microbatches * np.arange(steps)
    rows = np.split(grid.codes, grid.first[1:-1])
    rows = [(row + step[:, None]).ravel() for row in rows]
    places = np.split(np.isin(np.arange(len(grid.codes)), grid.overlapped), grid.first[1:-1])
    overlapped = np.flatnonzero(np.concatenate([np.tile(row, steps) for row in places]))
    many = schedule.microbatches * steps
    return Schedule.from_codes(rows, schedule.stages, many, schedule.name, overlapped)


def _two_stages_each(name, stages, microbatches, rule) -> Schedule:
    """Rank r has stages r and stages-1-r; rule(r, ranks, microbatches) makes its moves."""
    ranks = _ranks(stages, 2, microbatches)
    rows, overlapped, before = [], [], 0
    for rank in range(ranks):
        actions, pairs = count(rule(rank, ranks, microbatches), microbatches)
        home = (rank, stages - 1 - rank)
        rows.append([4 * (m * stages + home[chunk]) + kind for kind, chunk, m in actions])
        overlapped += [before + at for at in pairs]
        before += len(actions)
    return Schedule.from_codes(rows, stages, microbatches, name, overlapped)


def _one_stage_each(name, stages, microbatches, rule, backward=B) -> Schedule:
    """Rank r has stage r, and the row that rule(r, its forwards, its backwards) makes."""
    _ranks(stages, 1, microbatches)
    m = np.arange(microbatches)
    rows = [
        rule(rank, _codes(F, rank, m, stages), _codes(backward, rank, m, stages))
        for rank in range(stages)
    ]
    return Schedule.from_codes(rows, stages, microbatches, name)


def _codes(kind, stage, microbatch, stages):
    return 4 * (microbatch * stages + stage) + kind


def _weave(forwards, backwards, warm: int) -> np.ndarray:
    """`warm` forwards, then forward and backward in turn, then the backwards that are left."""
    warm = min(warm, len(forwards))
    turns = len(forwards) - warm
    row = np.empty(2 * len(forwards), np.int64)
    row[:warm] = forwards[:warm]
    row[warm : warm + 2 * turns : 2] = forwards[warm:]
    row[warm + 1 : warm + 2 * turns : 2] = backwards[:turns]
    row[warm + 2 * turns :] = backwards[turns:]
    return row


def _lag(row, lag: int) -> np.ndarray:
    """After each I the W that is `lag` I's older; the other W's at the end."""
    inputs = np.flatnonzero(row & 3 == I)
    weights = row[inputs] - I + W
    prompt = max(len(inputs) - lag, 0)
    row = np.insert(row, inputs[len(inputs) - prompt :] + 1, weights[:prompt])
    return np.concatenate([row, weights[prompt:]])


def _ranks(stages: int, chunks: int, microbatches: int) -> int:
    if microbatches < 1:
        raise ValueError(f"A schedule has at least one microbatch, not {microbatches}.")
    if stages < 1 or chunks < 1 or stages % chunks:
        raise ValueError(f"{stages} stages do not make {chunks} for each rank.")
    return stages // chunks
