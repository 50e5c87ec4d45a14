"""A stopwatch for the experiments by the wall clock: a step's seconds, also beside a prediction."""

import time
from collections.abc import Callable
from statistics import median

import torch.distributed as dist

from lib.ledger import Ledger
from lib.ranks.state.gpu_clock import finish_work


def seconds_of(step, repeats: int, *, uncounted: int = 1, group=None) -> list[float]:
    """Return the seconds of each of `repeats` calls of `step()` on this rank, by the wall clock.

    On ranks each call begins at a barrier of `group` (None is the world). It ends when this rank's
    device has done all its work, because a GPU works on after a call has returned. The first
    `uncounted` calls, which allocate memory and open connections, are left out.
    """
    times = []
    for _ in range(uncounted + repeats):
        if dist.is_initialized():
            dist.barrier(group)
        finish_work()
        began = time.perf_counter()
        step()
        finish_work()
        times.append(time.perf_counter() - began)
    return times[uncounted:]


def fastest_in_turns(steps: dict[str, Callable], repeats: int = 20) -> dict[str, float]:
    """Return the seconds of the fastest call of each step on this rank; the steps take turns.

    Other work on the machine can only lengthen a step, so the fastest of many was disturbed least.
    """
    fastest: dict[str, float] = {}
    for turn in range(repeats):
        for name, step in steps.items():
            (taken,) = seconds_of(step, 1, uncounted=2 if turn == 0 else 0)
            fastest[name] = min(taken, fastest.get(name, taken))
    return fastest


def beside_prediction(step: Ledger, machine, by_rank: list, moving: str) -> list[tuple]:
    """Return (what, predicted, measured) seconds: computation, communication, and the whole step.

    `step` is the predicted step, `machine` the calibration of this machine, and `by_rank` holds
    the measured seconds of each rank's steps, of which the median of the slowest rank's counts.
    Computation and communication, which is called `moving`, are the prediction's alone.
    """
    mine = step.where(rank=0)
    computing = sum(row.seconds for row in mine.where(lane="compute"))
    sending = sum(
        machine.moving(row.op, len(row.members), row.bytes) for row in mine.where(lane="comm")
    )
    return [
        ("computation", computing, None),
        (moving, sending, None),
        (
            "whole step",
            machine.overlapped(computing + sending, step.makespan),
            median(map(max, zip(*by_rank))),
        ),
    ]


def table(rows: list[tuple]) -> str:
    """Write predicted and measured seconds as a table in milliseconds, with the error."""
    lines = [f"{'ms':<14}{'predicted':>10}{'measured':>10}{'error':>7}"]
    for what, predicted, measured in rows:
        line = f"{what:<14}{1e3 * predicted:>10.1f}"
        if measured is not None:
            line += f"{1e3 * measured:>10.1f}{f'{predicted / measured - 1:+.0%}':>7}"
        lines.append(line)
    return "\n".join(lines)
