"""Time on a GPU: marks left in its stream, read off once all of them have been passed.

[Note: two clocks]
A launch returns long before the GPU has done the work, so the processor's clock tells when work
was asked for. While a recording runs on a GPU, every edge of a row is a mark in the current stream
instead; at its end the marks are set on the processor's axis by the one moment both have seen.
"""

import time

import torch


class GpuClock:
    """The clock of this rank's GPU, in ns on the axis of time.monotonic_ns."""

    def __init__(self):
        torch.cuda.synchronize()
        self.first, self.began = self.now(), time.monotonic_ns()

    def now(self):
        """Leave a mark in the current stream; `settle` turns it into ns."""
        mark = torch.cuda.Event(enable_timing=True)
        mark.record()
        return mark

    def settle(self, events: list[dict]) -> None:
        """Wait for the GPU, then replace the marks in `start` and `end` of all events."""
        torch.cuda.synchronize()
        for event in events:
            for edge in ("start", "end"):
                if not isinstance(event[edge], int):
                    event[edge] = self.began + round(1e6 * self.first.elapsed_time(event[edge]))


def clock_of_this_rank() -> GpuClock | None:
    """Give a GPU's clock where this rank computes on one."""
    return GpuClock() if torch.cuda.is_available() and torch.cuda.is_initialized() else None
