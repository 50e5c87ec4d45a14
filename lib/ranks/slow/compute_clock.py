"""The stretched time of one rank: its compute clock, its sleep, its lateness, its rows."""

import threading
import time
from contextlib import contextmanager

from torch.utils._python_dispatch import TorchDispatchMode

from lib.ledger.host import on_host
from lib.ranks.shared.event import Event
from lib.ranks.slow import roofline
from lib.ranks.slow.comm_lanes import FORGIVEN, CommLanes, Stretched
from lib.ranks.state.live_storages import foreign, imagined
from lib.ranks.state.this_rank import this_rank

_DEBT = 200_000  # ns of owed time below which a rank does not go to sleep: sleep errs by 60 µs
_NOTED = 1_000_000  # ns of lateness that a row's note tells; less is the precision of sleep


class ComputeClock(TorchDispatchMode):
    """The stretched time of one rank during one call: its compute clock, its lanes, its lateness.

    All times are ns of time.monotonic_ns(), so real and stretched events lie on one axis. Rows are
    written on the compute clock: being late by less than what is caught up does not move them.
    """

    def __init__(self, speeds, began: int | None = None):
        super().__init__()
        self.speeds, self.scale = speeds, 1e9 * speeds.factor
        self.stand_ins = speeds.stand_ins  # of a large model's tensors, None where none is
        self.seen = time.monotonic_ns()
        self.time = self.mark = self.seen if began is None else began
        self.ended = 0  # where the clock was when the call had ended
        self.settled = self.time  # where the clock was when this rank last slept
        self.slipped = self.lost = self.late = 0  # worst of the call, never caught up, of the row
        self.thread = threading.get_ident()
        self.lanes = CommLanes(this_rank.board, this_rank.rank)
        self.in_c: list[Stretched] = []  # whose end C++ code may wait for without telling us
        self.began = self.time
        self.host_bytes = 0  # that the host's processor has moved in its memory (host_lanes.py)
        self.batch: dict[str, list] = {}  # operations since the last row: name -> ns, FLOP, bytes
        self.row: Event | None = None
        self.backend = False  # True while this thread is inside a backend's own wait

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else the first operation loads torch's compiler, seconds on busy cores

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(foreign(kind) for kind in types):
            return NotImplemented  # a DTensor takes itself apart first; we see its local pieces
        out = func(*args, **(kwargs or {}))
        if imagined(types, out) or self.backend and threading.get_ident() == self.thread:
            return out
        flop, nbytes = roofline.cost(func, args, kwargs or {}, out, self.stand_ins)
        if on_host.get():
            self.host_bytes += nbytes
        elif nbytes or flop:
            self.spend(func._overloadpacket.__name__.rstrip("_"), flop, nbytes)
        return out

    # The compute clock.

    def spend(self, name: str, flop: int, nbytes: int) -> None:
        """Move the compute clock on by one operation, and sleep once enough is owed."""
        self._look_back()
        needs = int(self.speeds.compute(flop, nbytes) * self.scale)
        self.time += needs
        sums = self.batch.setdefault(name, [0, 0, 0])
        for index, amount in enumerate((needs, flop, nbytes)):
            sums[index] += amount
        self._check()
        if self.time - self.settled > _DEBT:  # the same rows, late or not
            this_rank.running()  # a sign of life for the kernel
            self.settle()

    def settle(self) -> None:
        """Sleep until the wall clock has reached the compute clock."""
        if threading.get_ident() != self.thread:
            return
        self._look_back()
        owed = self.time - time.monotonic_ns()
        if owed > 0:
            time.sleep(owed / 1e9)  # a signal ends it
        self._check()
        self.settled = self.time
        self._write_row()

    def _check(self) -> None:
        """Compare the wall clock with the compute clock; keep how late the real work is."""
        self.seen = time.monotonic_ns()
        late = self.seen - self.time
        if late > 0:
            self.late = max(self.late, late)
            self.slipped = max(self.slipped, self.lost + late)
            if late > FORGIVEN:
                self.lost += late
                self.time = self.seen

    def _look_back(self) -> None:
        """Find a wait in C++ that nobody told us of, such as the one at the end of DDP's backward.

        If an operation whose future C++ holds let go while this thread was between two operations,
        and later than the compute clock, the thread was waiting for it.
        """
        if not self.in_c:
            return
        for item in sorted((i for i in self.in_c if i.finished), key=lambda i: i.end):
            self.in_c.remove(item)
            if item.finished > self.seen and item.end > self.time:
                self._write_row()
                if this_rank.recording and item.event is not None:
                    this_rank.recording.note_wait(item.event, self.time, item.end)
                self.time = self.mark = item.end
                self.row = None

    # What observed_group.py calls.

    def stretch(self, work, op, nbytes, tag, number, members, event) -> Stretched:
        """Put an operation that was really launched into its lane; give what stands for it."""
        now = self.moment()
        here = threading.get_ident() == self.thread
        if event is not None and here:
            event.start = now
        any_source = op == "recv" and len(members) != 2
        others = () if any_source or this_rank.board is None else members
        others = tuple(rank for rank in others if rank != this_rank.rank)
        item = Stretched(self, work, tag, number, others, event)
        item.launched = self.time if here else time.monotonic_ns()
        item.needs = int(self.speeds.moving(op, len(members), nbytes, members) * self.scale)
        self.lanes.add(item)
        return item

    @contextmanager
    def stopped(self):
        """Charge no computation to this thread inside: it is the backend's own.

        Gloo copies the result of a reduce_scatter when it is waited for; NCCL does not.
        """
        if threading.get_ident() != self.thread:
            yield
            return
        self.backend = True
        try:
            yield
        finally:
            self.backend = False

    def moment(self) -> int:
        """Give the time it is for this rank, whose own doings between operations take none."""
        if threading.get_ident() != self.thread:
            return time.monotonic_ns()
        self.settle()
        return self.time

    def boundary(self) -> int:
        """Hear that a wait or a span begins or ends here: no row reaches across; give the time."""
        now = self.moment()
        if threading.get_ident() == self.thread:
            self.row, self.mark = None, now
        return now

    def joined(self, item: Stretched) -> None:
        """Move the compute clock to the end of an operation that was waited for."""
        if threading.get_ident() == self.thread:
            self.time = max(self.time, item.end)
        if item in self.in_c:
            self.in_c.remove(item)

    def watch(self, item: Stretched) -> None:
        """Remember an operation whose future somebody took: C++ may wait for it."""
        self.in_c.append(item)

    def close(self) -> None:
        """End the lanes; what was launched and not waited for goes on unstretched."""
        self.lanes.close()

    # The rows of a recording.

    def _write_row(self) -> None:
        """Write what was computed since the last row as one row, named by its longest operation."""
        if not self.batch:
            return
        batch, self.batch = self.batch, {}
        if not this_rank.recording:
            return
        name = max(batch, key=lambda op: batch[op][0])
        late = self.late / self.speeds.factor if self.late > _NOTED else 0
        self.late = 0
        flop, nbytes = (sum(sums[i] for sums in batch.values()) for i in (1, 2))
        if self.row is not None and self.row.op == name:
            self.row.end, self.row.late = self.time, max(late, self.row.late)
            self.row.flop += flop
            self.row.bytes += nbytes
        else:
            times, more = (self.mark, self.time), {"flop": flop, "bytes": nbytes, "late": late}
            self.row = this_rank.recording.note("compute", name, *times, **more)
        self.mark = self.time
