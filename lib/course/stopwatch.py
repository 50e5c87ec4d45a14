"""A stopwatch for the experiments by the wall clock: the seconds of a step, on ranks or alone."""

import time

import torch.distributed as dist

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
