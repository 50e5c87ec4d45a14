"""Time on a GPU: marks left in its stream, read off once all of them have been passed.

[Note: two clocks]
A launch returns long before the GPU has done the work, so the processor's clock tells when work
was asked for. While a recording runs on a GPU, every edge of a row is a mark in the current stream
instead; at its end the marks are set on the processor's axis by one mark that both have seen: it
was passed between two looks at the processor's clock. Where others use the GPU too, it may be long
before it is this rank's turn, so the closest two looks of several are taken.
"""

import time

import torch

from lib.ranks.shared.event import Event
from lib.ranks.state import gpu_streams
from lib.ranks.state.ambient import own_device
from lib.ranks.state.default_device import is_gpu

_LOOKS = 5  # microseconds each on a GPU of one's own


class GpuClock:
    """The clock of one GPU, in ns on the axis of time.monotonic_ns; any thread may ask it."""

    def __init__(self, device: torch.device):
        self.device = device
        torch.accelerator.synchronize(device)
        looks = [self._look() for _ in range(_LOOKS)]
        _, self.first, self.began = min(looks, key=lambda look: look[0])

    def _look(self) -> tuple:
        """Leave a mark and wait for it: give how long (ns) that took, the mark, and its moment."""
        before, mark = time.monotonic_ns(), self.now()
        torch.accelerator.synchronize(self.device)
        took = time.monotonic_ns() - before
        return took, mark, before + took // 2

    def now(self):
        """Leave a mark in the current stream of this GPU; `settle` turns it into ns."""
        mark = torch.Event(device=self.device, enable_timing=True)
        # By name: a thread that is not ours, such as gloo's, has GPU 0 as its own.
        mark.record(torch.accelerator.current_stream(self.device))
        return mark

    def settle(self, events: list[Event]) -> None:
        """Wait for the GPU, then replace the marks in `start` and `end` of all events."""
        gpu_streams.settle()  # seen by the kernel, should it never end
        torch.accelerator.synchronize(self.device)
        for event in events:
            for edge in ("start", "end"):
                mark = getattr(event, edge)
                if not isinstance(mark, int):
                    moment = self.began + round(1e6 * self.first.elapsed_time(mark))
                    setattr(event, edge, moment)


def clock_of_this_rank() -> GpuClock | None:
    """Give a GPU's clock where this rank computes on one."""
    device = own_device()
    return GpuClock(device) if is_gpu(device) else None


def finish_work() -> None:
    """Wait until this rank's GPU has done all it was asked to; return at once without one."""
    if is_gpu(own_device()):
        gpu_streams.settle()
        torch.accelerator.synchronize(own_device())
