"""Records what moves between a rank's device and the host's memory, and the host's own work.

In slow motion the two directions of the link and the host's processor are lanes of their own,
beside the device and beside the collectives: what is launched in one lane runs in order, and takes
the time of the link or of the host's memory (lib/predict/sharded/offload.py has their figures).
"""

import contextlib
import time
from itertools import count

from lib.predict.sharded.offload import HostSpeeds, host_speeds
from lib.ranks.slow.comm_lanes import Stretched
from lib.ranks.state.this_rank import this_rank

_TAGS = {"to_host": -1, "to_device": -2}  # of the lanes; groups have tags above 0
_PROCESSOR = -3


class _Done:
    """Stands for real work that is over when the model's time begins."""

    def get_future(self):
        raise RuntimeError("Only its waiter can tell.")

    def wait(self, timeout=None) -> bool:
        return True


class Task:
    """A copy, or a piece of the host's work, as the observer of a HostMemory gives it."""

    def __init__(self):
        self.item: Stretched | None = None  # in slow motion

    def wait(self) -> None:
        """Move this rank's device to the end of the task, and record that it waited."""
        if self.item is None or this_rank.slow is not self.item.compute_clock:
            return
        clock, event = this_rank.slow, self.item.event
        began = clock.boundary()
        self.item.wait()
        ended = clock.boundary()
        if this_rank.recording and ended > began:
            this_rank.recording.note_wait(event, began, ended)

    def end(self) -> int:
        """Return when the task ends, in ns; 0 where it takes no time of a model."""
        if self.item is None:
            return 0
        while not (self.item.end or self.item.let_go.is_set()):
            time.sleep(0.0002)  # until the lanes have planned it
        return self.item.end


class HostLanes:
    """Observes a `lib.single.host_memory.HostMemory` on a rank: `HostMemory(HostLanes())`.

    `speeds` are those of the link and of the host's memory; by default those of the machine that
    the GPU of slow motion stands in.
    """

    def __init__(self, speeds: HostSpeeds | None = None):
        self.speeds, self.numbers = speeds, count()

    @contextlib.contextmanager
    def copying(self, op: str, nbytes: int, after=()):
        """Record the copy inside as a row of `nbytes`; gives its Task."""
        task, launched = Task(), self._launched()
        event = self._event(op, launched, nbytes)
        yield task
        if (clock := this_rank.slow) is None:
            return self._end(event)
        seconds = self._speeds(clock).moving(nbytes)
        self._add(clock, task, _TAGS[op], launched, seconds, event, after)

    @contextlib.contextmanager
    def working(self, op: str, after=(), background: bool = False):
        """Record the host's work inside as one row, with the bytes it moved; gives its Task.

        With `background` it began when what it comes after had ended, though launched later.
        """
        task, launched, clock = Task(), self._launched(), this_rank.slow
        if background and clock:
            ends = [other.end() for other in after]
            launched = max([clock.began, *(end for end in ends if end <= launched)])
        event, before = self._event(op, launched, 0), clock.host_bytes if clock else 0
        yield task
        if clock is None:
            return self._end(event)
        nbytes = clock.host_bytes - before
        if event is not None:
            event.bytes = nbytes
        seconds = self._speeds(clock).working(nbytes)
        self._add(clock, task, _PROCESSOR, launched, seconds, event, after)

    def _launched(self):
        if this_rank.slow:
            return this_rank.slow.moment()
        return this_rank.now() if this_rank.recording else 0

    def _event(self, op: str, start, nbytes: int):
        if not this_rank.recording:
            return None
        numbered = {"group": "host", "members": (this_rank.rank,), "number": next(self.numbers)}
        return this_rank.recording.note("comm", op, start, bytes=nbytes, **numbered)

    def _end(self, event) -> None:
        if event is not None and this_rank.recording:
            event.end = this_rank.now()

    def _speeds(self, clock) -> HostSpeeds:
        return self.speeds or host_speeds(clock.speeds.gpu)

    def _add(self, clock, task: Task, tag: int, launched, seconds: float, event, after) -> None:
        items = tuple(other.item for other in after if other.item is not None)
        items = tuple(item for item in items if item.compute_clock is clock)
        item = Stretched(clock, _Done(), tag, next(self.numbers), (), event, items)
        item.launched, item.needs = launched, max(1, int(seconds * clock.scale))
        task.item = item
        clock.lanes.add(item)
