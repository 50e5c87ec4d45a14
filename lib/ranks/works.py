"""What a launched operation gives back: it is seen waiting, and its wait can always be ended."""

import contextlib
import datetime

import torch.distributed as dist

from lib.ranks.desk import desk

_SLICE = datetime.timedelta(seconds=0.2)
# For a message a wait that runs out breaks the connection; a reduce_scatter is more than one work.
NOT_SLICED = ("send", "recv", "reduce_scatter")


class ObservedWork(dist.Work):
    """A launched operation: whoever waits for it is seen waiting."""

    def __init__(self, inner, tag: int, number: int, event):
        super().__init__()
        self.inner, self.tag, self.number, self.event = inner, tag, number, event
        self.then = []  # called once, when the wait is over
        self.sliced = False

    def wait(self, timeout=None) -> bool:
        """Block until the operation has finished; the board shows this rank as waiting."""
        desk.waiting(self.tag, self.number)
        began = desk.slow.boundary() if desk.slow else desk.now()
        try:
            if self.sliced and not timeout:
                done = self._wait_in_slices()
            else:
                done = self.inner.wait(timeout) if timeout else self.inner.wait()
        except RuntimeError as error:
            error.waited = self.tag, self.number  # for the message: this rank is not to blame
            raise
        finally:
            desk.running()
        if self.event is not None and desk.events is not None:
            now = desk.slow.boundary() if desk.slow else desk.now()
            self.event["end"] = self.event["end"] or now
            desk.events.append({**self.event, "lane": "wait", "start": began, "end": now})
        elif desk.slow:
            desk.slow.boundary()
        while self.then:
            self.then.pop(0)(self.inner)
        return done

    def _wait_in_slices(self) -> bool:
        """Come up for air: gloo, cut off in a certain moment, never ends a wait (seen in 2.13)."""
        try:
            while True:
                with contextlib.suppress(_TimedOut):
                    return _timed(self.inner.wait)
        except BaseException:  # if it goes on, its thread may do so for ever: see groups.leave
            desk.abandoned = desk.abandoned or not self.inner.is_completed()
            raise


class _TimedOut(Exception):
    """A slice is over, the wait is not."""


def _timed(wait) -> bool:
    try:
        return wait(_SLICE)
    except RuntimeError as error:
        if str(error).startswith("Operation timed out!"):  # Work::wait; gloo's own words differ
            raise _TimedOut from None
        raise


def _pass_on(name: str):
    """Let what Work offers beyond waiting (result, is_completed, the future) be the inner one's."""
    return lambda self, *args: getattr(self.inner, name)(*args)


for _name in ("get_future", "is_completed", "is_success", "exception", "result", "source_rank",
              "_source_rank", "synchronize"):  # fmt: skip
    setattr(ObservedWork, _name, _pass_on(_name))
