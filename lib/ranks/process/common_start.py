"""All ranks of a call begin at one moment, so that what is recorded shows the step and no arrival.

[Note: the start]
A call reaches its ranks one after the other, and a busy machine wakes them milliseconds apart. Each
rank writes on the board when it was there; when all are, the latest of these and a little more is
the start, the same number on every rank. Who wakes late has begun late: slow motion catches it up.
A rank is there once its GPU has finished what earlier calls have left it to do.
"""

import time
from typing import NamedTuple

from lib.ranks.state.gpu_clock import finish_work
from lib.ranks.state.this_rank import this_rank

_MARGIN = 500_000  # ns from the last arrival to the start: all have seen it by then
_LOOK = 0.0001  # seconds between two looks at the board


class Start(NamedTuple):
    """A start that several ranks make together; `mark` tells it from any other."""

    mark: int
    ranks: tuple[int, ...]


def begin_together(start: Start) -> int:
    """Wait until all ranks of this start are there; give the moment (ns) at which they begin."""
    finish_work()
    this_rank.board.arrive(this_rank.rank, start.mark, time.monotonic_ns())
    latest = 0
    for rank in start.ranks:
        while (arrival := this_rank.board.arrived(rank, start.mark)) is None:
            time.sleep(_LOOK)
        latest = max(latest, arrival)
    began = latest + _MARGIN
    time.sleep(max(began - time.monotonic_ns(), 0) / 1e9)
    return began
