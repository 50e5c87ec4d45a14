"""Seeing every collective of any code: a process group that notes each call and passes it on.

[Note: where it sits]
`torch.distributed` lets a Python class be the process group. Ours forwards to an ordinary one, so
PyTorch's own DDP, FSDP2, DTensor and pipelining are seen like the reader's code: their C++ parts
call the same virtual methods. For each call it writes on the board (see notice_board.py), compares
with what the others wrote, and, while a recording runs, keeps one event.
"""

import contextlib
import functools
import sys
import time

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _create_work_from_future

from lib.ranks.observed import overridden
from lib.ranks.observed.carrier_errors import broke_off
from lib.ranks.observed.coalescing import Batches
from lib.ranks.observed.gpu_staging import Staged, elsewhere
from lib.ranks.observed.messages import Messages
from lib.ranks.observed.observed_work import NOT_SLICED, Finished, ObservedWork, ended
from lib.ranks.observed.signature import fits, flat, unequal_parts
from lib.ranks.shared.notice_board import tag_of
from lib.ranks.shared.notice_slots import Kind, Launch
from lib.ranks.state import gpu_streams
from lib.ranks.state.ambient import own_device
from lib.ranks.state.this_rank import Mismatch, line_here, this_rank


class ObservedGroup(Messages, Batches, dist.ProcessGroup):
    """A process group that notes each call, refuses a mismatch, and forwards the rest."""

    def __init__(self, inner, rank: int, size: int, members: tuple[int, ...], name: str):
        super().__init__(rank, size)
        self.inner, self.members, self.label = inner, members, name
        self.others = tuple(member for member in members if member != this_rank.rank)
        self.tag = tag_of("group", name, members)
        self.launches = 0
        self.messages: dict[int, int] = {}
        self.sending: list = []
        self.unfinished: list = []  # collectives of gloo that may still be under way
        self.subgroups = 0  # calls of new_group, which every rank of the world makes
        self.whole = False  # the group of the whole world
        self.refused: dict[int, tuple] = {}  # what has been refused, by tag
        self.closed = ""
        self.connections: list = []  # of gloo: a cut ends these alone
        self.staged = False  # gloo carries GPU tensors
        self.message_limit = None  # gloo's messages keep to the limit under which they connected
        self.sliced = False  # waits may be taken in slices
        self.streamed = False  # waits hold up the GPU's stream, not the processor
        self.aborted = False

    def _set_group_desc(self, text: str) -> None:
        self.whole = text == "default_pg"
        known = {"default_pg": "world", "undefined": "ranks " + ",".join(map(str, self.members))}
        self.label = known.get(text, text.removeprefix("mesh_"))
        super()._set_group_desc(text)

    def shutdown(self) -> None:
        """Leave the group; what still holds it is told so at its next call."""
        if this_rank.board and self.whole and not self.closed:
            this_rank.board.leave(this_rank.rank)  # the reader ended it: the kernel makes a new one
        by_reader, self.closed = not self.closed, self.closed or "it was destroyed"
        try:
            if not self.aborted:  # else it would wait for what never comes
                gpu_streams.settle()
                if by_reader and this_rank.board:
                    self._await_the_others()
                self.inner.shutdown()
        finally:  # not before: who waits for something unfinished is found by its count
            for tag in (self.tag, *self.messages) if this_rank.board else ():
                this_rank.board.free(this_rank.rank, tag)

    def _await_the_others(self) -> None:
        """Wait, seen on the board, until all have launched what this rank launched last.

        Gloo's end waits for that in C++, where nothing can see it or end it.
        """
        number = self.launches - 1

        def all_have() -> bool:  # or have left the group since
            counted = (this_rank.board.launches(m, self.tag) > number for m in self.others)
            posted = (this_rank.board.entry(m, self.tag, number) for m in self.others)
            return all(count or entry for count, entry in zip(counted, posted, strict=True))

        if number < 0 or all_have():
            return
        this_rank.waiting(self.tag, number)
        try:
            gpu_streams.poll(all_have)
        finally:
            this_rank.running()

    def abort(self) -> None:
        """Drop what is under way; whoever waits for it goes on."""
        self.aborted = True
        self.inner.abort()

    def barrier(self, opts=None, timeout=None):
        """Wait for every member; on NCCL each waits for its own GPU too."""
        opts = opts or dist.BarrierOptions()
        if timeout is not None:
            opts.timeout = timeout
        if self.streamed:  # PyTorch would take gloo, which knows nothing of GPUs, or block in C++
            opts.device, opts.asyncOp = own_device(), True
        call = functools.partial(self.inner.barrier, opts)
        call.streamed = self.streamed
        work = self._collective("barrier", Launch(Kind.GROUP, "barrier"), 0, call)
        if self.streamed and work is not None:
            work.before = functools.partial(gpu_streams.poll, work.is_completed)
        return work

    def monitored_barrier(self, timeout, wait_all_ranks=False) -> None:
        """Wait for every member; raise RuntimeError that names who has not come in `timeout`."""

        def call():
            this_rank.waiting(self.tag, self.launches - 1)
            try:
                self.inner.monitored_barrier(timeout, wait_all_ranks=wait_all_ranks)
            finally:
                this_rank.running()
            over = torch.futures.Future()
            over.set_result([])
            return _create_work_from_future(over)

        self._collective("barrier", Launch(Kind.GROUP, "monitored_barrier"), 0, call)

    def announce(self, ranks: list[int]) -> None:
        """Note a call of new_group, which every rank of the world makes: see subgroups.py."""
        number, self.subgroups = self.subgroups, self.subgroups + 1
        key, launch = tag_of("make", self.tag), Launch(Kind.MAKE, "new_group", str(ranks))
        self._note(key, number, launch, self.members, self.label)
        if self._differs(key, number, launch):
            message = f"call number {number} of new_group differs between ranks."
            raise self._refusal(message, key, number, self.members)

    def _collective(self, op, launch: Launch, nbytes, call, root=-1, splits=()):
        """Note one collective, compare it with the other members' same number, launch it."""
        if self.asked is not None:
            return self._later(self._collective, op, launch, nbytes, call, root, splits)
        number, self.launches = self.launches, self.launches + 1
        self._note(self.tag, number, launch, self.members, self.label, splits=splits)
        if self._differs(self.tag, number, launch, splits):
            message = f"{op} number {number} of group {self.label} differs between ranks."
            raise self._refusal(message, self.tag, number, self.members)
        parts = unequal_parts(splits[: len(splits) // 2], nbytes)
        return self._go(op, nbytes, call, self.tag, number, self.members, root, parts)

    def _differs(self, tag, number, launch: Launch, splits=()) -> bool:
        """True if another member launched something else under the same number."""
        if not this_rank.board:
            return False
        # Splits differ between ranks: what one sends, the other must expect.
        if splits and not all(self._splits_fit(other, number, splits) for other in self.members):
            return True
        return this_rank.board.differs(self.others, tag, number, launch)

    def _refusal(self, message, tag, number, members) -> Mismatch:
        """Give the Mismatch to raise; from now on all of `tag` is refused on this rank.

        Caught on the way, it would leave gloo out of step: the next launch would meet this one. The
        board tells the kernel that the others wait for it in vain.
        """
        self.refused[tag] = (message, tag, number, members)
        this_rank.board.refuse(this_rank.rank, tag, number)
        return Mismatch(message, tag, number, members)

    def _splits_fit(self, other: int, number: int, splits) -> bool:
        n = len(self.members)
        theirs = this_rank.board.splits(other, self.tag, number, n)
        places = self.members.index(this_rank.rank), self.members.index(other)
        return theirs is None or fits((splits[:n], splits[n:]), theirs, *places)

    def __repr__(self) -> str:  # torch puts this into its own complaint about a closed group
        if not self.closed:
            return f"<group {self.label} of ranks {list(self.members)}>"
        return (
            f"<group {self.label} is closed: {self.closed}. Build again what holds it "
            "(a DistributedDataParallel, an FSDP model, a mesh): it uses the new group then.>"
        )

    def _note(self, tag, number, launch, members, name, scope=0, source=-1, splits=()) -> None:
        """Write on the board what is about to be launched, and from which line of the reader's."""
        if self.closed:
            raise RuntimeError(repr(self)[1:-1])
        if tag in self.refused:
            raise Mismatch(*self.refused[tag])
        if this_rank.board:
            place = line_here(sys._getframe(2))
            board, rank = this_rank.board, this_rank.rank
            board.post(rank, tag, number, launch, place, time.monotonic_ns(), splits)
            board.count(rank, tag, number + 1, members, name, launch.kind, scope, source)

    def _go(self, op, nbytes, call, tag, number, members, peer=-1, parts=()):
        """Launch what was noted; give the work to wait for."""
        launch = functools.partial(
            self._launch, op, nbytes, call, tag, number, members, peer, parts
        )
        if self.due is not None:
            return self.due.append(launch)
        work, event = launch()
        if this_rank.slow:
            work = this_rank.slow.stretch(work, op, nbytes, tag, number, members, event)
        elif event is not None and isinstance(work, Finished):
            event.end = self._now(call)
        elif event is not None and not (op == "barrier" and self.streamed):  # it ends at the wait
            on_processor = self.staged or self._beside(call)
            with contextlib.suppress(RuntimeError):  # messages and some collectives have no future:
                work.get_future().then(ended(event, on_processor))  # they end at the wait
        observed = ObservedWork(work, tag, number, [event] if event else ())
        observed.then.append(functools.partial(_remove, self.unfinished))
        observed.sliced = self.sliced and not this_rank.slow and op not in NOT_SLICED
        observed.streamed = getattr(call, "streamed", False)
        if isinstance(call, Staged):
            observed.staged = call
            observed.then.append(call.finish)
        return observed

    def _now(self, call):
        """Give the time on the clock of what carries a call out: beside NCCL the processor's."""
        return time.monotonic_ns() if self._beside(call) else this_rank.now()

    def _beside(self, call) -> bool:
        """Tell whether the processor carries a call out in a group of NCCL."""
        return self.streamed and not getattr(call, "streamed", False)

    def _launch(self, op, nbytes, call, tag, number, members, peer, parts):
        """Launch an operation; give its work, and the event that a recording keeps of it."""
        event = None
        if this_rank.recording:
            event = this_rank.recording.note(
                "comm", op, self._now(call), group=self.label, members=members, number=number,
                bytes=nbytes, peer=peer, parts=parts,
            )  # fmt: skip
        if self.streamed:  # NCCL connects two ranks at their first message, in this call
            this_rank.waiting(tag, number)
        try:
            work = call()
        except Exception as error:  # perhaps a partner was gone before this rank came
            broke_off(error, tag, number)
            if this_rank.board:
                this_rank.board.refuse(this_rank.rank, tag, number)
            raise
        finally:
            if self.streamed:
                this_rank.running()
        if work is not None and not self.streamed and op not in ("send", "recv"):
            while self.unfinished and self.unfinished[0].is_completed():
                del self.unfinished[0]
            self.unfinished.append(work)
        return Finished() if work is None else work, event

    def _call(self, method, args, results, **kwargs):
        """Make ready a call of the inner group; by way of the CPU where gloo needs that."""
        if self.asked is not None:
            self._check_device(flat(args[:2]))
        call = getattr(self.inner, method)
        direct = method in ("allreduce", "broadcast")  # these gloo does for CUDA's tensors itself
        far = [t for t in flat(args[:2]) if self.staged and elsewhere(t)]
        if far and not (direct and all(t.device.type == "cuda" for t in far)):
            return Staged(call, args, flat(results))
        ready = functools.partial(call, *args, **kwargs)
        ready.streamed = self.streamed and any(elsewhere(t) for t in flat(args[:2]))
        return ready


def _remove(works: list, work) -> None:
    with contextlib.suppress(ValueError):
        works.remove(work)


overridden.override(ObservedGroup)
