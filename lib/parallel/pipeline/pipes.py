"""The pipes between stages: the messages of a rank, their order, and their form.

[Note: order on a pipe]
Messages of a pair of ranks arrive in the order in which they were sent, and that order is known:
it is the sender's row of the schedule. So a receiver that needs one message posts the receives for
all earlier messages on the same pipe too, and keeps their tensors. Messages need no labels.

[Note: forms and flags]
A receiver must know the form of a message in advance. A text with the form precedes the first
message of a stage to a rank, and all later messages must have the same form. The next stage must
also know which tensors need a gradient, and the stage before must know which of them got one. Flags
in front of each message say this, until a message has all its flags set. From then on no flags are
sent, and a gradient that is missing nevertheless is sent as zeros. A stage with replicas has
several neighbours, so forms and flags are kept for each stage and each peer.
"""

from collections import deque
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from lib.parallel.pipeline.parcels import Parcel, differentiable, from_text, to_text
from lib.ranks.state.gpu_streams import one_at_a_time
from lib.ranks.state.this_rank import this_rank

_HEADER = 256  # bytes of the message with a form; a longer form continues in a second message


_direction_groups: WeakKeyDictionary = WeakKeyDictionary()  # group -> its two groups


def directions(group) -> tuple:
    """Return the groups for messages up and down: twice `group`, or where it would block, two more.

    In one group of NCCL opposite messages of a pair would block each other. All pipelines of a
    group share its two, because each takes memory on the GPU for as long as it exists.
    """
    if not one_at_a_time(group):
        return group, group
    group = group or dist.group.WORLD
    if group not in _direction_groups:
        ranks = dist.get_process_group_ranks(group)
        _direction_groups[group] = tuple(
            dist.new_group(ranks, use_local_synchronization=True) for _ in range(2)
        )
    return _direction_groups[group]


class Pipes:
    """Sends and receives the messages of one rank: `post` early, `take` when needed."""

    def __init__(self, schedule, rank: int, group):
        self.rank, self.group, self.schedule = rank, group, schedule
        self.up, self.down = directions(group)
        self.one_at_a_time = one_at_a_time(group)
        self.order = {peer: _messages(schedule, peer, rank) for peer in range(len(schedule))}
        self.known: dict = {}  # (shape, dtype) of a microbatch -> its forms and links without flags

    def open(self, microbatch: torch.Tensor) -> None:
        """Begin a batch, with the forms that are known from earlier batches of this shape."""
        self.queues = {peer: deque(order) for peer, order in self.order.items()}
        self.posted: dict[tuple, tuple] = {}
        self.sending: list[tuple] = []
        self.awaited: dict[tuple, list] = {}  # (stage, microbatch) -> (shape, dtype) of gradients
        self.device, self.key = microbatch.device, (microbatch.shape, microbatch.dtype)
        forms, full = self.known.get(self.key, ({}, ()))
        self.forms, self.full = dict(forms), set(full)  # by (stage, peer); links without flags

    def post(self, kind: str, stage: int, microbatch: int) -> None:
        """Post receives for this message and all earlier ones on its pipe whose forms are known."""
        peer = self.schedule.rank_of(stage, microbatch)
        if peer == self.rank:
            return
        queue, message = self.queues[peer], (kind, stage, microbatch)
        while message not in self.posted and queue and self._foreseen(*queue[0], peer):
            self._post(*queue.popleft(), peer)

    def take(self, kind: str, stage: int, microbatch: int) -> tuple:
        """Wait for the message of `stage`; return (tensors, flags), None for a missing gradient."""
        peer, message = self.schedule.rank_of(stage, microbatch), (kind, stage, microbatch)
        while message not in self.posted:
            self._post(*self.queues[peer].popleft(), peer)
        works, tensors, flags = self.posted.pop(message)
        for work in works:
            work.wait()
        return tensors, flags

    def structure(self, stage: int, microbatch: int):
        """Return the structure of the outputs that come from the rank of this stage."""
        return self.forms[stage, self.schedule.rank_of(stage, microbatch)][0]

    def forward(self, stage: int, microbatch: int, output: Parcel, flags: list) -> list:
        """Send the output of `stage` without waiting; return the flags that its receiver uses."""
        peer, form = self.schedule.rank_of(stage + 1, microbatch), output.form
        if (stage, peer) not in self.forms:
            self._write(to_text(form, flags), peer)
            self.forms[stage, peer] = form
            self._remember(("F", stage, peer), flags, differentiable(form))
        elif self.forms[stage, peer] != form:
            raise ValueError(
                f"Stage {stage} returned {to_text(form)} for microbatch {microbatch}, but "
                f"{to_text(self.forms[stage, peer])} for an earlier one. Between two stages, all "
                "microbatches of a shape must have one form. If the model has changed, build the "
                "Pipeline again."
            )
        else:
            flags = self._send_flags(("F", stage, peer), flags, differentiable(form))
        self.awaited[stage, microbatch] = [k for k, flag in zip(form[1], flags) if flag]
        for tensor in output.tensors:
            self._send(tensor, peer)
        return flags

    def backward(self, stage: int, microbatch: int, gradients: list, leaves: list) -> None:
        """Send the gradients of the input of `stage` without waiting."""
        peer = self.schedule.rank_of(stage - 1, microbatch)
        flags = [gradient is not None for gradient in gradients]
        flags = self._send_flags(("B", stage, peer), flags, [True] * len(flags))
        for leaf, gradient, flag in zip(leaves, gradients, flags):
            if flag:
                self._send(torch.zeros_like(leaf) if gradient is None else gradient, peer)

    def finish(self) -> None:
        """Wait until everything has been sent; keep the forms for later batches of this shape."""
        for work, _ in self.sending:
            work.wait()
        self.sending = []
        self.known[self.key] = self.forms, self.full

    def tell(self, loss: torch.Tensor) -> torch.Tensor:
        """Give the loss of the last stage to all ranks; replicas hold zeros for what others did."""
        sources = self.schedule.ranks_of(self.schedule.stages - 1)
        if len(sources) == 1:
            dist.broadcast(loss, group=self.group, group_src=sources[0])
        else:
            dist.all_reduce(loss, group=self.group)
        return loss

    def _group_of(self, source: int, destination: int):
        return self.up if source < destination else self.down

    def _send(self, tensor: torch.Tensor, peer: int, note: str = "") -> None:
        """Send without waiting; keep the tensor until it has been sent."""
        self.sending = [pair for pair in self.sending if not pair[0].is_completed()]
        tensor = tensor.contiguous()
        if tensor.numel():
            work = dist.isend(tensor, group=self._group_of(self.rank, peer), group_dst=peer)
            self.sending.append((work, tensor))
            _annotate(note)

    def _ask(self, shape, dtype, peer: int, note: str = "") -> tuple:
        """Return an empty tensor and the work that fills it."""
        tensor = torch.empty(shape, dtype=dtype, device=self.device)
        if not tensor.numel():
            return tensor, None
        work = dist.irecv(tensor, group=self._group_of(peer, self.rank), group_src=peer)
        _annotate(note)
        return tensor, work

    def _send_bytes(self, data, peer: int, note: str) -> None:
        self._send(torch.tensor(list(data), dtype=torch.uint8, device=self.device), peer, note)

    def _read_bytes(self, length: int, peer: int, note: str) -> bytes:
        tensor, work = self._ask((length,), torch.uint8, peer, note)
        work.wait()
        return bytes(tensor.tolist())

    def _write(self, text: str, peer: int) -> None:
        """Send a text: its length and its beginning, then the rest if there is any."""
        data = f"{len(text.encode()):8}".encode() + text.encode()
        self._send_bytes(data[:_HEADER].ljust(_HEADER), peer, "form")
        if len(data) > _HEADER:
            self._send_bytes(data[_HEADER:], peer, "form")

    def _read(self, peer: int) -> str:
        data = self._read_bytes(_HEADER, peer, "form")
        missing = 8 + int(data[:8]) - _HEADER
        if missing > 0:
            data += self._read_bytes(missing, peer, "form")
        return data[8:].decode().rstrip()

    def _send_flags(self, link, flags: list, most: list) -> list:
        """Send flags if this link still sends flags; return those that the receiver uses."""
        if link in self.full or not any(most):
            return most
        self._send_bytes(flags, link[-1], "flags")
        return self._remember(link, flags, most)

    def _next_flags(self, link, most: list) -> list:
        """Return the flags of the next message on this link, (kind, stage, peer)."""
        if link in self.full or not any(most):
            return most
        flags = [bool(flag) for flag in self._read_bytes(len(most), link[-1], "flags")]
        return self._remember(link, flags, most)

    def _remember(self, link, flags: list, most: list) -> list:
        if flags == most:
            self.full.add(link)
        return flags

    def _foreseen(self, kind: str, stage: int, microbatch: int, peer: int) -> bool:
        """Return True if this message can be posted without reading a form or flags first."""
        if kind == "F":
            if (stage, peer) not in self.forms:
                return False
            most = differentiable(self.forms[stage, peer])
        else:
            if (stage - 1, microbatch) not in self.awaited:
                return False
            most = self.awaited[stage - 1, microbatch]
        return (kind, stage, peer) in self.full or not any(most)

    def _post(self, kind: str, stage: int, microbatch: int, peer: int) -> None:
        link = kind, stage, peer
        if kind == "F":
            if (stage, peer) not in self.forms:
                self.forms[stage, peer], flags = from_text(self._read(peer))
                self._remember(link, flags, differentiable(self.forms[stage, peer]))
            else:
                flags = self._next_flags(link, differentiable(self.forms[stage, peer]))
            kinds = self.forms[stage, peer][1]
            sent = [True] * len(kinds)
        else:
            kinds = self.awaited.pop((stage - 1, microbatch))
            flags = sent = self._next_flags(link, [True] * len(kinds))
        receives = [
            self._ask(*k, peer) if is_sent else (None, None) for k, is_sent in zip(kinds, sent)
        ]
        works = [work for _, work in receives if work is not None]
        self.posted[kind, stage, microbatch] = works, [tensor for tensor, _ in receives], flags


def cut(model, stages: int, lengths=None) -> list[tuple[int, int]]:
    """Return the first block and the block after the last of each stage.

    `lengths` gives the number of blocks of each stage; by default they are as equal as possible.
    """
    blocks = len(model)
    if blocks < stages:
        raise ValueError(
            f"A model of {blocks} blocks cannot fill {stages} stages: each stage needs at least "
            "one block."
        )
    if lengths is None:
        more = blocks % stages
        lengths = [blocks // stages + (s < more) for s in range(stages)]
    if len(lengths) != stages or sum(lengths) != blocks or min(lengths) < 1:
        raise ValueError(
            f"lengths must be {stages} numbers of at least 1 that add up to the {blocks} blocks of "
            f"the model, not {list(lengths)}."
        )
    ends = [sum(lengths[:s]) for s in range(stages + 1)]
    return list(zip(ends, ends[1:]))


def _messages(schedule, source: int, destination: int) -> list[tuple[str, int, int]]:
    """Return the messages from `source` to `destination` in order: (F or B, stage, microbatch)."""
    last, messages = schedule.stages - 1, []
    for stage, kind, j in schedule.actions(source) if source != destination else ():
        if kind == "F" and stage < last and schedule.rank_of(stage + 1, j) == destination:
            messages.append(("F", stage, j))
        elif kind in "BI" and stage > 0 and schedule.rank_of(stage - 1, j) == destination:
            messages.append(("B", stage, j))
    return messages


def _annotate(note: str) -> None:
    """Add a note to the recorded row of the message that was just launched."""
    if note and this_rank.recording and this_rank.recording.events:
        this_rank.recording.events[-1].note = note
