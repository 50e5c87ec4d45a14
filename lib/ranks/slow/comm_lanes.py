"""Communication lanes of slow motion: when a collective starts, when it ends, who may go on.

[Note: lanes]
Each group has a lane of its own, as each NCCL communicator has a stream; messages have one for
each pair and direction. What is launched in a lane runs there in order, beside compute. It
starts when the last member has launched it and the lane is free on every member; it takes α–β time.
Each rank writes on the board when it was ready (launched, lane free); all take the latest of these,
so all members compute the same start and the same end, and nobody has to be told.
One thread of the rank looks after all its lanes: it reads the board, sleeps, and lets go.
"""

import threading
import time
from collections import deque

FORGIVEN = 200_000_000  # ns of lateness that are caught up; beyond it a clock is set anew


class Stretched:
    """A launched operation that ends when the model says so, and never before it really has."""

    def __init__(
        self, compute_clock, real, tag: int, number: int, others: tuple[int, ...], event, after=()
    ):  # fmt: skip
        self.compute_clock, self.real, self.tag, self.number = compute_clock, real, tag, number
        self.others, self.event = others, event
        self.after = after  # operations of this rank that it begins after
        self.launched = self.needs = 0  # ns of the stretched clock; ns it will take
        self.ready = self.end = self.finished = 0  # finished: when it let go, on the wall
        self.let_go = threading.Event()
        try:
            self.real_future = real.get_future()
        except RuntimeError:  # messages and gloo's reduce_scatter tell their end only to who waits
            self.real_future = None
        self.heard = False
        self.future = None
        self.lock = threading.Lock()

    def wait(self, timeout=None) -> bool:
        """Block until the real operation and the model's have ended; errors are the real one's."""
        self.compute_clock.settle()
        if self.real_future is None and not self.heard:
            wait = self.real.wait  # once: gloo would wait for another message
            with self.compute_clock.stopped():
                self.heard = wait(timeout) if timeout else wait()
        self.let_go.wait()  # in Python, where a signal ends it
        with self.compute_clock.stopped():
            done = self.real.wait() if self.real_future is not None else self.heard
        self.compute_clock.joined(self)
        return done

    def get_future(self):
        """Give a future that completes at the stretched end, with the real one's value."""
        from torch.futures import Future

        if self.real_future is None:
            return self.real.get_future()  # let the real one say why it cannot
        with self.lock:
            new = self.future is None
            if new:
                self.future = Future()
                self.compute_clock.watch(self)
            late = new and self.let_go.is_set()
        if late:
            self._complete()
        return self.future

    def is_completed(self) -> bool:
        """True once the stretched end is reached; of a message, as of gloo's, not before a wait.

        A sender who believed it sooner would free what is still being sent.
        """
        return self.let_go.is_set() and (self.heard or self.real_future is not None)

    def __getattr__(self, name):
        return getattr(self.real, name)

    def really_done(self) -> bool:
        """True if the real operation is over, or only its waiter can tell."""
        return self.real_future is None or self.real_future.done()

    def finish(self) -> None:
        """Let go of whoever waits: through `wait`, or through the future."""
        self.finished = time.monotonic_ns()
        if self.event is not None:  # its real end, where that was too late to be caught up
            self.event.end = self.finished if self.finished - self.end > FORGIVEN else self.end
        with self.lock:  # a future taken from now on completes at once
            self.let_go.set()
            taken = self.future is not None
        if taken:
            self._complete()

    def abandon(self) -> None:
        """Go on as if nothing were stretched: the call is over."""
        if self.event is not None and self.end:
            self.event.end = max(self.end, self.event.start)
        with self.lock:
            self.let_go.set()
            taken = self.future is not None
        if taken:
            self.real_future.add_done_callback(lambda _: self._complete())

    def _complete(self) -> None:
        try:
            value = self.real_future.wait()
        except Exception as error:
            self.future.set_exception(error)
        else:
            self.future.set_result(value)


class _Lane:
    """What one lane still has to do, in order, and when it is free."""

    def __init__(self):
        self.items: deque[Stretched] = deque()
        self.free = 0


class CommLanes:
    """All communication lanes of one rank during one call."""

    def __init__(self, board, rank: int):
        self.board, self.rank = board, rank
        self.lanes: dict[int, _Lane] = {}
        self.changed = threading.Condition()
        self.closed = False
        self.thread = None

    def add(self, item: Stretched) -> None:
        """Put a launched operation at the end of its lane."""
        with self.changed:
            if self.closed:
                item.abandon()
                return
            self.lanes.setdefault(item.tag, _Lane()).items.append(item)
            self.changed.notify()
            if self.thread is None:
                self.thread = threading.Thread(target=self._conduct, daemon=True, name="lanes")
                self.thread.start()

    def close(self) -> None:
        """End the thread and let go of all that is left: nothing waits for a call that is over."""
        with self.changed:
            if self.closed:
                return
            self.closed = True
            left = [item for lane in self.lanes.values() for item in lane.items]
            for lane in self.lanes.values():
                for item in lane.items:
                    self._say_ready(item, lane)  # the others need it even when we are gone
            self.changed.notify()
        for item in left:
            item.abandon()

    def _conduct(self) -> None:
        """Plan what can be planned, let go of what is due, sleep; again and again."""
        while True:
            with self.changed:
                if self.closed:
                    return
                due, pause = [], None
                for lane in self.lanes.values():
                    next_look = self._look(lane, due)
                    if next_look is not None:
                        pause = next_look if pause is None else min(pause, next_look)
                if not due:
                    self.changed.wait(pause)
                    continue
            for item in due:  # outside the lock: callbacks may launch the next operation
                item.finish()

    def _look(self, lane: _Lane, due: list) -> float | None:
        """Plan a lane's items and move those that have ended to `due`; seconds to the next look."""
        now, later = time.monotonic_ns(), None
        while lane.items and lane.items[0].end and lane.items[0].end <= now:
            if not lane.items[0].really_done():
                return 0.0003
            due.append(lane.items.popleft())
        for item in lane.items:
            if not item.end and not self._plan(item, lane):
                wait = min(max(item.needs / 20e9, 0.0003), 0.002)
                return wait if later is None else min(wait, later)
            later = max(item.end - now, 0) / 1e9 if later is None else later
        return later

    def _plan(self, item: Stretched, lane: _Lane) -> bool:
        """Fix an operation's start and end once every member has launched it."""
        start = self._say_ready(item, lane)
        for other in item.after:
            if not other.end:
                return False
            start = max(start, other.end)
        for other in item.others:
            clock = self.board.clock(other, item.tag, item.number)
            if clock is None and self._launched(other, item):
                clock = self.board.clock(other, item.tag, item.number)  # came between two looks?
                if clock is None:
                    continue  # no: it was so long ago that the board has forgotten
            if clock is None or not clock[1]:
                return False
            start = max(start, clock[1])
        item.end = lane.free = start + item.needs
        return True

    def _say_ready(self, item: Stretched, lane: _Lane) -> int:
        if not item.ready:
            item.ready = max(item.launched, lane.free)
            is_shared = self.board and item.tag > 0  # lanes of the host (below 0) are this rank's
            if is_shared and self.board.clock(self.rank, item.tag, item.number):
                self.board.ready(self.rank, item.tag, item.number, item.ready)
        return item.ready

    def _launched(self, other: int, item: Stretched) -> bool:
        count = self.board.counts(other).get(item.tag)
        return count is not None and count.launches > item.number
