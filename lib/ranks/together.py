"""All ranks of a call begin at one moment, so that what is recorded shows the step and no arrival.

[Note: the start]
A call reaches its ranks one after the other, and a busy machine wakes them milliseconds apart. Each
rank writes on the board when it was there; when all are, the latest of these and a little more is
the start, the same number on every rank. Who wakes late has begun late: slow motion catches it up.
"""

import time

from lib.ranks.desk import desk

_LITTLE = 2_000_000  # ns from the last arrival to the start: all have seen it by then
_LOOK = 0.0003  # seconds between two looks at the board


def begin(start: tuple[int, tuple[int, ...]], step, *args, **kwargs):
    """Wait for the `ranks` of `start = (mark, ranks)`, then call `step` with the others."""
    mark, ranks = start
    desk.board.arrive(desk.rank, mark, time.monotonic_ns())
    last = 0
    for rank in ranks:
        while (came := desk.board.arrived(rank, mark)) is None:
            time.sleep(_LOOK)
        last = max(last, came)
    desk.began = last + _LITTLE
    time.sleep(max(desk.began - time.monotonic_ns(), 0) / 1e9)
    try:
        return step(*args, **kwargs)
    finally:
        desk.began = None
