"""What a launched operation gives back: it is seen waiting, and its wait can always be ended."""

import contextlib
import datetime
import threading
import time

import torch.distributed as dist

from lib.ranks.observed.carrier_errors import broke_off, wait_timed_out
from lib.ranks.shared.event import Event
from lib.ranks.state import gpu_streams
from lib.ranks.state.live_storages import await_death
from lib.ranks.state.this_rank import this_rank

_SLICE = datetime.timedelta(seconds=0.2)
# For a message a wait that runs out breaks the connection; a reduce_scatter is more than one work.
NOT_SLICED = ("send", "recv", "reduce_scatter")


class Finished(dist.Work):
    """Stands for the work that NCCL does not give for a synchronous operation.

    NCCL launches such an operation in the current stream: whatever this stream does next comes
    after it, so there is nothing to wait for.
    """

    def wait(self, timeout=None) -> bool:
        """Return at once."""
        return True

    def is_completed(self) -> bool:
        """Give True: to the current stream the operation is in the past."""
        return True

    is_success = is_completed

    def exception(self):
        """Give None: no error is known."""

    synchronize = exception

    def result(self) -> list:
        """Give no tensor: the caller has them."""
        return []

    def get_future(self):
        """Give a future that is complete."""
        from torch.futures import Future

        future = Future()
        future.set_result([])
        return future


class ObservedWork(dist.Work):
    """A launched operation, or a batch of them: whoever waits for it is seen waiting.

    `events`: what a recording keeps of the operations; none where nothing is recorded.
    """

    def __init__(self, inner, tag: int, number: int, events=()):
        super().__init__()
        self.inner, self.tag, self.number, self.events = inner, tag, number, events
        self.before = None  # called when the wait begins
        self.then = []  # called once, when the wait is over
        self.staged = None  # a Staged, whose results are to be brought home
        self.sliced = False
        self.streamed = False  # it holds up the GPU's stream, not the processor
        self.scratch = []  # storages that a Memory saw during the wait, such as gloo's own buffers
        self.limit = None  # of a wait, where it is not the group's
        if isinstance(inner, Finished) and this_rank.board:
            gpu_streams.launched(tag, number)

    def __del__(self):
        # Gloo's thread wakes the rank that waits, and lets go of the operation only afterwards.
        # What it keeps alive for so long would be seen to die at another moment in each run.
        if scratch := getattr(self, "scratch", None):
            self.inner = None
            await_death(scratch)

    def wait(self, timeout=None) -> bool:
        """Block until the operation has finished; the board shows this rank as waiting."""
        this_rank.waiting(self.tag, self.number)
        began = this_rank.slow.boundary() if this_rank.slow else this_rank.now()
        counted = this_rank.counted
        first = counted.seen if counted else 0
        try:
            if self.before:
                self.before()
            if self.sliced and not timeout:
                done = self._wait_in_slices()
            else:
                limit = timeout or self.limit
                done = self.inner.wait(limit) if limit else self.inner.wait()
        except RuntimeError as error:
            broke_off(error, self.tag, self.number)  # for the message: who waited is not to blame
            raise
        finally:
            this_rank.running()
        if counted:
            self.scratch = counted.since(first)
        if self.streamed:
            gpu_streams.waited(self.inner, self.tag, self.number)
        if self.events and this_rank.recording:
            self._record(began)
        elif this_rank.slow:
            this_rank.slow.boundary()
        while self.then:
            self.then.pop(0)(self.inner)
        return done

    def get_future(self):
        """Give the future of the operation; it is complete once the caller's tensors are filled."""
        future = self.inner.get_future()
        return future.then(self.staged.arrived) if self.staged else future

    def _record(self, began) -> None:
        """Note that this rank waited for each operation; a batch is over all at once."""
        if isinstance(self.inner, Finished):  # the stream that launched it did nothing else
            began, now = self.events[0].start, self.events[-1].end
        else:
            now = this_rank.slow.boundary() if this_rank.slow else this_rank.now()
        for event in self.events:
            event.end = event.end or now
            this_rank.recording.note_wait(event, began, now)
            began = now

    def _wait_in_slices(self) -> bool:
        """Come up for air: gloo, cut off in a certain moment, never ends a wait (seen in 2.13)."""
        try:
            while True:
                with contextlib.suppress(_TimedOut):
                    return _timed(self.inner.wait)
        except BaseException:  # if it goes on, its thread may do so for ever: see groups.leave
            this_rank.abandoned = this_rank.abandoned or not self.inner.is_completed()
            raise


def ended(event: Event, on_processor: bool):
    """Give what is to be called when the operation of `event` has ended: it notes the time.

    NCCL calls it at once, in a stream that has waited for the operation. Gloo calls it from a
    thread of its own when the processor, which does gloo's work, is through.
    """
    thread = threading.get_ident()

    def note(_):
        here = not on_processor and threading.get_ident() == thread
        event.end = this_rank.now() if here else time.monotonic_ns()

    return note


class _TimedOut(Exception):
    """A slice is over, the wait is not."""


def _timed(wait) -> bool:
    try:
        return wait(_SLICE)
    except RuntimeError as error:
        if wait_timed_out(error):
            raise _TimedOut from None
        raise


def _pass_on(name: str):
    """Let what Work offers beyond waiting (result, is_completed, the future) be the inner one's."""
    return lambda self, *args: getattr(self.inner, name)(*args)


for _name in ("is_completed", "is_success", "exception", "result", "source_rank",
              "_source_rank", "synchronize"):  # fmt: skip
    setattr(ObservedWork, _name, _pass_on(_name))
