"""Generators of pipeline schedules: each has a rule that orders the actions of a rank.

`stages` counts the stages of the model over all ranks. Where a schedule gives a rank more than one,
rank r of R has stages r, r+R, ... ("looped"). The rules are written for one rank, with two helpers:

    weave        `warm` forwards first; then one forward and one backward in turn, until no
                 forward is left; then the remaining backwards
    lag          each I is followed by the W of the I that came `lag` I's earlier; the remaining
                 W's stand at the end
"""

import numpy as np

from lib.predict.arguments import equal_share, whole
from lib.predict.pipeline.actions import Schedule
from lib.predict.pipeline.grid import B, F, I, W
from lib.predict.pipeline.v_rules import count, dual_pipe_v, zero_bubble_v


def naive(stages: int, microbatches: int = 1) -> Schedule:
    """Naive model parallelism: a microbatch goes forward and back before the next one starts.

    Only one rank works at a time. Rank r: F0 B0 F1 B1 ...
    """
    return _one_stage_each("naive", stages, microbatches, lambda rank, f, b: _weave(f, b, 0))


def gpipe(stages: int, microbatches: int) -> Schedule:
    """GPipe: all forwards, then all backwards (Huang et al. 2018, arXiv 1811.06965).

    Rank r: F0 F1 ... F(m-1) B0 B1 ... B(m-1), the order of torch.distributed.pipelining. Huang et
    al. draw the backwards from the last microbatch to the first, which takes as long.
    """
    rule = lambda rank, f, b: _weave(f, b, microbatches)
    return _one_stage_each("GPipe", stages, microbatches, rule)


def one_f_one_b(stages: int, microbatches: int) -> Schedule:
    """1F1B, PipeDream-flush: at most p - r microbatches are alive on rank r (arXiv 2006.09503).

    Rank r weaves after p-1-r forwards. Fewer microbatches than stages are allowed; PyTorch refuses
    them.
    """
    rule = lambda rank, f, b: _weave(f, b, stages - 1 - rank)
    return _one_stage_each("1F1B", stages, microbatches, rule)


def interleaved(stages: int, microbatches: int, chunks: int = 2) -> Schedule:
    """Interleaved 1F1B: each rank has `chunks` stages (Narayanan et al. 2021, arXiv 2104.04473).

    There are R = stages ÷ chunks ranks. Microbatches go in rounds of about R: a rank takes a round
    through its first stage, then through its second, ..., and backward from its last stage to its
    first. Rank r weaves after (chunks-1)·round + 2(R-1-r) forwards. Raises ValueError where the
    max(1, m // R) rounds would not be equally long.
    """
    ranks = _ranks(stages, chunks, microbatches)
    rounds = max(1, microbatches // ranks)
    size = equal_share(
        microbatches, rounds, "The batch has {} microbatches", "{} rounds",
        advice=f"Choose a multiple of {ranks}, or fewer than {2 * ranks}.",
    )  # fmt: skip
    k = np.arange(chunks * microbatches)  # numbers the forwards of a rank, and its backwards
    chunk, microbatch = k // size % chunks, k // (size * chunks) * size + k % size
    rows = []
    for rank in range(ranks):
        f = _codes(F, chunk * ranks + rank, microbatch, stages)
        b = _codes(B, (chunks - 1 - chunk) * ranks + rank, microbatch, stages)
        rows.append(_weave(f, b, (chunks - 1) * size + 2 * (ranks - 1 - rank)))
    return Schedule.from_codes(rows, stages, microbatches, "interleaved 1F1B")


def breadth_first(stages: int, microbatches: int, chunks: int = 2) -> Schedule:
    """Breadth-first looped: all microbatches go through a rank's first stage, then its second, ...

    Backwards go from the last stage to the first, and from the last microbatch to the first, as in
    torch.distributed.pipelining (ScheduleLoopedBFS). Lamy-Poirier 2022, arXiv 2211.05953.
    """
    ranks = _ranks(stages, chunks, microbatches)
    k = np.arange(chunks * microbatches)
    rows = []
    for rank in range(ranks):
        f = _codes(F, k // microbatches * ranks + rank, k % microbatches, stages)
        rows.append(np.concatenate([f, (f - F + B)[::-1]]))
    return Schedule.from_codes(rows, stages, microbatches, "breadth-first")


def zb_h1(stages: int, microbatches: int) -> Schedule:
    """ZB-H1: 1F1B with the backward split (Qi et al. 2023, arXiv 2401.10241).

    Rank r weaves F and I after p-1-r forwards; W lags by r. Every rank keeps p microbatches, as
    many as the first rank of 1F1B.
    """
    rule = lambda rank, f, i: _lag(_weave(f, i, stages - 1 - rank), rank)
    return _one_stage_each("ZB-H1", stages, microbatches, rule, backward=I)


def zb_h2(stages: int, microbatches: int) -> Schedule:
    """ZB-H2: every rank is busy from its first action to its last (arXiv 2401.10241).

    This holds where F, I and W take equally long and there are at least 2p-1 microbatches. Rank r
    weaves F and I after 2(p-1-r) forwards; W lags by 2r. Every rank keeps 2p-1 microbatches, where
    the first rank of 1F1B keeps p.
    """
    rule = lambda rank, f, i: _lag(_weave(f, i, 2 * (stages - 1 - rank)), 2 * rank)
    return _one_stage_each("ZB-H2", stages, microbatches, rule, backward=I)


def zb_v(stages: int, microbatches: int) -> Schedule:
    """ZB-V: each rank has two stages, which balances memory over ranks (arXiv 2401.10241).

    Rank r of R = stages ÷ 2 has stages r and 2R-1-r; the rule is in v_rules.py. No rank idles
    between its first action and its last where F, I and W take equally long and there are at least
    2R-1 microbatches.
    """
    return _two_stages_each("ZB-V", stages, microbatches, zero_bubble_v)


def dualpipe_v(stages: int, microbatches: int) -> Schedule:
    """DualPipeV: the V of ZB-V with forwards beside backwards (DeepSeek 2024, arXiv 2412.19437).

    The rule (v_rules.py) is that of github.com/deepseek-ai/DualPipe. The published closed form of
    its bubble holds for some times only; closed_forms.py says which. Raises ValueError for fewer
    microbatches than stages.
    """
    if microbatches < stages:
        raise ValueError(
            f"DualPipeV with {stages} stages needs at least {stages} microbatches, not "
            f"{microbatches}, because it fills the pipe from both ends."
        )
    return _two_stages_each("DualPipeV", stages, microbatches, dual_pipe_v)


def pipedream(stages: int, microbatches: int) -> Schedule:
    """PipeDream's stream: the order of 1F1B without a flush (Narayanan et al. 2019, SOSP).

    Weights change while microbatches are in the pipe: after every backward, or with 2BW after every
    so many. versions.py says which version each microbatch sees. A stream is not divided into
    steps, so `microbatches` counts all that are to be trained on.
    """
    schedule = one_f_one_b(stages, microbatches)
    schedule.name = "PipeDream"
    return schedule


def round_robin(replicas, microbatches: int) -> Schedule:
    """1F1B-RR: stage s stands on replicas[s] ranks, which take microbatches in turn.

    Stage 0 has ranks 0 .. replicas[0]-1, stage 1 the ranks after these, and so on. Replica k of n
    takes microbatches k, k+n, ... Together the replicas of a stage send ahead what the next stage
    holds: if each of its n' ranks weaves after w' forwards, n'·(w'+1) microbatches are in it, and
    each rank here weaves after ceil(n'·(w'+1) ÷ n) forwards. So a full pipe moves at the pace of
    its slowest stage, and no rank waits forever where replicas update together. With one rank for
    each stage this is `pipedream`. Source of the idea: Narayanan et al. 2019, "PipeDream", SOSP,
    section 3.2. Raises ValueError where replicas would not get equally many microbatches.
    """
    replicas = [whole(n, "The number of replicas of a stage") for n in replicas]
    whole(microbatches, "The number of microbatches")
    stages, rows, held = len(replicas), [], 0
    for stage, n in reversed(list(enumerate(replicas))):
        sharers = f"the {{}} replicas of stage {stage}"
        equal_share(microbatches, n, "The stream has {} microbatches", sharers)
        warm = -(-held // n)
        held = n * (warm + 1)
        for first in reversed(range(n)):
            m = np.arange(first, microbatches, n)
            rows.append(_weave(_codes(F, stage, m, stages), _codes(B, stage, m, stages), warm))
    rows.reverse()
    return Schedule.from_codes(rows, stages, microbatches, "1F1B-RR")


def repeated(schedule: Schedule, steps: int) -> Schedule:
    """Return a synchronous schedule repeated `steps` times, with a flush between the steps.

    A rank begins the next step when its own row is done; by then none of its microbatches is in the
    pipe, so its weights may change.
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
    """Build a schedule in which rank r has stages r and stages-1-r and makes the rule's moves."""
    ranks = _ranks(stages, 2, microbatches)
    rows, overlapped, before = [], [], 0
    for rank in range(ranks):
        actions, pairs = count(rule(rank, ranks, microbatches), microbatches)
        home = (rank, stages - 1 - rank)
        rows.append([4 * (m * stages + home[chunk]) + kind for kind, chunk, m in actions])
        overlapped += [before + place for place in pairs]
        before += len(actions)
    return Schedule.from_codes(rows, stages, microbatches, name, overlapped)


def _one_stage_each(name, stages, microbatches, rule, backward=B) -> Schedule:
    """Build a schedule in which rank r has stage r, and the row rule(r, forwards, backwards)."""
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
    """Put `warm` forwards first, then forward and backward in turn, then the other backwards."""
    warm = min(warm, len(forwards))
    turns = len(forwards) - warm
    row = np.empty(2 * len(forwards), np.int64)
    row[:warm] = forwards[:warm]
    row[warm : warm + 2 * turns : 2] = forwards[warm:]
    row[warm + 1 : warm + 2 * turns : 2] = backwards[:turns]
    row[warm + 2 * turns :] = backwards[turns:]
    return row


def _lag(row, lag: int) -> np.ndarray:
    """Put after each I the W of the I that came `lag` I's earlier, and the other W's at the end."""
    inputs = np.flatnonzero(row & 3 == I)
    weights = row[inputs] - I + W
    prompt = max(len(inputs) - lag, 0)
    row = np.insert(row, inputs[len(inputs) - prompt :] + 1, weights[:prompt])
    return np.concatenate([row, weights[prompt:]])


def _ranks(stages: int, chunks: int, microbatches: int) -> int:
    """Return the number of ranks that have `chunks` stages each; refuse what makes no schedule."""
    whole(microbatches, "The number of microbatches")
    whole(stages, "The number of stages")
    return equal_share(stages, chunks, "The model has {} stages", "ranks with {} each")
