"""Seeing every collective of any code: a process group that notes each call and passes it on.

[Note: where it sits]
`torch.distributed` lets a Python class be the process group. Ours forwards to an ordinary one, so
PyTorch's own DDP, FSDP2, DTensor and pipelining are seen like the reader's code: their C++ parts
call the same virtual methods. For each call it writes on the board (see board.py), compares with
what the others wrote, and, while a recording runs, keeps one event.
"""

import contextlib
import functools
import sys
import time

import torch.distributed as dist

from lib.ranks.board import tag_of
from lib.ranks.describe import bytes_of, fits, flat, say, splits
from lib.ranks.desk import Mismatch, desk, user_line
from lib.ranks.staging import Staged, elsewhere
from lib.ranks.works import NOT_SLICED, ObservedWork


class ObservedGroup(dist.ProcessGroup):
    """A process group that notes each call, refuses a mismatch, and forwards the rest."""

    def __init__(self, inner, rank: int, size: int, members: tuple[int, ...], name: str):
        super().__init__(rank, size)
        self.inner, self.members, self.label = inner, members, name
        self.tag = tag_of("group", name, members)
        self.launches = 0
        self.messages: dict[int, int] = {}
        self.closed = ""
        self.staged = False  # gloo carries GPU tensors
        self.sliced = False  # waits may be taken in slices
        self.batch: list | None = None  # events of a batch that is launched at its end

    def _set_group_desc(self, text: str) -> None:
        known = {"default_pg": "world", "undefined": "ranks " + ",".join(map(str, self.members))}
        self.label = known.get(text, text.removeprefix("mesh_"))
        super()._set_group_desc(text)

    def shutdown(self) -> None:
        """Leave the group; what still holds it is told so at its next call."""
        self.closed = self.closed or "it was destroyed"
        if desk.board:
            for tag in (self.tag, *self.messages):
                desk.board.free(desk.rank, tag)
        self.inner.shutdown()

    def barrier(self, *args, **kwargs):
        """Wait for every member."""
        call = functools.partial(self.inner.barrier, *args, **kwargs)
        return self._collective("barrier", "barrier", 0, call)

    def send(self, tensors, peer: int, tag: int = 0):
        """Send to one member."""
        call = self._call("send", (tensors, peer, tag), ())
        return self._message("send", tensors, peer, call, tag)

    def recv(self, tensors, peer: int, tag: int = 0):
        """Receive from one member."""
        call = self._call("recv", (tensors, peer, tag), tensors)
        return self._message("recv", tensors, peer, call, tag)

    def recv_anysource(self, tensors, tag: int = 0):
        """Receive from whichever member sends first: nothing to compare with until it has."""
        key = tag_of("any", self.tag, desk.rank)
        number = self.messages[key] = self.messages.get(key, -1) + 1
        self._note(key, number, f"message {say(tensors)}", self.members, f"any {self.label}")
        call = self._call("recv_anysource", (tensors, tag), tensors)
        work = self._go("recv", bytes_of(tensors), call, key, number, self.members)
        work.then.append(functools.partial(self._received, tag))
        return work

    def _start_coalescing(self, device) -> None:
        self.batch = []
        self.inner._start_coalescing(device)

    def _end_coalescing(self, device):
        work, (events, self.batch) = self.inner._end_coalescing(device), (self.batch, None)
        whole = ObservedWork(work, self.tag, max(self.launches - 1, 0), None)
        whole.then.append(lambda _: [_finished(event, None) for event in events])
        return whole

    def _received(self, tag, work) -> None:
        """Count a message from any source once it is known whose it was."""
        pair = (self.members[work._source_rank()], desk.rank)
        key = tag_of("pair", self.tag, pair, tag)
        self.messages[key] = self.messages.get(key, 0) + 1
        if desk.board:
            name = f"{pair[0]}>{pair[1]} {self.label}"
            desk.board.count(desk.rank, key, self.messages[key], pair, name)

    def _collective(self, op, text, nbytes, call, root=-1):
        """Note one collective, compare it with the other members' same number, launch it."""
        number, self.launches = self.launches, self.launches + 1
        self._note(self.tag, number, text, self.members, self.label)
        for other in self.members:
            if desk.board and other != desk.rank and self._differs(other, number, text):
                message = f"{op} number {number} of group {self.label} differs between ranks"
                raise Mismatch(message, self.tag, number, self.members)
        return self._go(op, nbytes, call, self.tag, number, self.members, root)

    def _message(self, op, tensors, peer, call, tag):
        """Note one send or receive; each pair (source, destination) counts its own messages."""
        here, there = desk.rank, self.members[peer]
        pair = (here, there) if op == "send" else (there, here)
        key = tag_of("pair", self.tag, pair, tag)
        number = self.messages.get(key, 0)
        self.messages[key] = number + 1
        text = f"message {say(tensors)}"
        self._note(key, number, text, pair, f"{pair[0]}>{pair[1]} {self.label}")
        other = desk.board and there != here
        if other and desk.board.differs(there, key, number, text.encode() + b"\0"):
            message = f"message {number} from rank {pair[0]} to rank {pair[1]} differs"
            raise Mismatch(message, key, number, pair)
        return self._go(op, bytes_of(tensors), call, key, number, pair, there)

    def __repr__(self) -> str:  # torch puts this into its own complaint about a closed group
        if not self.closed:
            return f"<group {self.label} of ranks {list(self.members)}>"
        return (
            f"<group {self.label} is closed: {self.closed}. Build again what holds it "
            "(a DistributedDataParallel, an FSDP model, a mesh): it uses the new group then.>"
        )

    def _note(self, tag, number, text, members, name) -> None:
        if self.closed:
            raise RuntimeError(repr(self)[1:-1])
        if desk.board:
            place = user_line(sys._getframe(2))
            desk.board.post(desk.rank, tag, number, text, place, time.monotonic_ns())
            desk.board.count(desk.rank, tag, number + 1, members, name)

    def _differs(self, other: int, number: int, text: str) -> bool:
        if not desk.board.differs(other, self.tag, number, text.encode() + b"\0"):
            return False
        theirs = desk.board.entry(other, self.tag, number)
        if theirs is None or " splits " not in text or " splits " not in theirs.text:
            return theirs is not None
        places = self.members.index(desk.rank), self.members.index(other)
        return not fits(text, theirs.text, *places)

    def _go(self, op, nbytes, call, tag, number, members, peer=-1):
        event = None
        if desk.events is not None:
            event = {
                "lane": "comm", "op": op, "start": desk.now(), "end": 0,
                "group": self.label, "members": members, "number": number,
                "bytes": nbytes, "peer": peer,
            }  # fmt: skip
            desk.events.append(event)
        try:
            work = call()
        except RuntimeError as error:  # a partner was gone before this rank came
            error.waited = tag, number
            raise
        if self.batch is not None:  # nothing is launched yet, and nothing to wait for
            self.batch += [event] if event else []
            return ObservedWork(work, tag, number, None)
        if desk.slow:
            work = desk.slow.stretch(work, op, nbytes, tag, number, members, event)
        elif event is not None:
            with contextlib.suppress(RuntimeError):  # messages and some collectives have no future:
                work.get_future().then(functools.partial(_finished, event))  # they end at the wait
        observed = ObservedWork(work, tag, number, event)
        observed.sliced = self.sliced and not desk.slow and op not in NOT_SLICED
        if isinstance(call, Staged):
            observed.then.append(call.finish)
        return observed

    def _call(self, method, args, results, **kwargs):
        """Make ready a call of the inner group; by way of the CPU where gloo needs that."""
        call = getattr(self.inner, method)
        direct = method in ("allreduce", "broadcast")  # these gloo does for GPU tensors itself
        if self.staged and not direct and any(elsewhere(t) for t in flat(args[:2])):
            return Staged(call, args, flat(results))
        return functools.partial(call, *args, **kwargs)


def _finished(event, future):
    event["end"] = desk.now()  # on a GPU this runs in a stream that has waited for the operation


def _override(method: str, op: str) -> None:
    """Give ObservedGroup the collective `method` of ProcessGroup, under its plain name `op`."""

    def observed(self, *args, **kwargs):
        outputs = flat(args[0])
        inputs = flat(args[1]) if op in _TWO_SIDED else outputs
        full = outputs if op in ("all_gather", "gather") else inputs
        if not full:  # a gather seen from a rank that is not its root: as much as the root gathers
            full = (inputs or outputs) * self.size()
        options = args[-1] if args[1:] else None
        root = -1
        if op in _ROOTED:
            root = self.members[getattr(options, "rootRank", kwargs.get("root", 0))]
        if op == "all_to_all":
            text = f"{op} {splits(self, outputs, inputs, args)}"
        elif op in _ROOTED:
            text = f"{op} {say(full)} root {root}"
        else:
            text = f"{op} {say(full, shapes=op == 'all_reduce')}"
        if op in ("all_reduce", "reduce", "reduce_scatter"):
            how = getattr(options, "reduceOp", kwargs.get("op", dist.ReduceOp.SUM))
            text += " " + getattr(how, "op", how).name
        call = self._call(method, args, outputs, **kwargs)
        return self._collective(op, text, bytes_of(full), call, root)

    setattr(ObservedGroup, method, observed)


_ROOTED = ("broadcast", "reduce", "gather", "scatter")
_TWO_SIDED = ("all_gather", "gather", "scatter", "reduce_scatter", "all_to_all")
for _op, _methods in {
    "all_reduce": "allreduce allreduce_coalesced",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "all_gather": "allgather _allgather_base all_gather_single all_gather_single_coalesced "
    "allgather_coalesced allgather_into_tensor_coalesced",
    "gather": "gather",
    "scatter": "scatter",
    "reduce_scatter": "reduce_scatter _reduce_scatter_base reduce_scatter_single "
    "reduce_scatter_single_coalesced reduce_scatter_tensor_coalesced",
    "all_to_all": "alltoall alltoall_base all_to_all_single",
}.items():
    for _method in _methods.split():
        _override(_method, _op)
