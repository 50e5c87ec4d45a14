"""The pipes between stages: what is sent to whom, in which order it comes, and of which shape.

[Note: order on a pipe]
Messages of a pair of ranks arrive in the order in which they were sent, and the sender's order is
known: it is its row of the schedule. So a receiver that wants one message asks for all that come
before it on the same pipe, and keeps them. Nothing is labelled.
"""

from collections import deque

import torch
import torch.distributed as dist

_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32)
_HEADER = 10  # numbers: dtype, dims, up to eight sizes


class Pipes:
    """Messages of one rank of a pipeline: `post` early, `take` when needed, `send` and go on."""

    def __init__(self, schedule, rank: int, group):
        self.rank, self.group, self.schedule = rank, group, schedule
        self.up, self.down = group, group
        if dist.get_backend(group) == "nccl":  # on one stream two opposite messages would block
            ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
            self.up, self.down = (
                dist.new_group(ranks, use_local_synchronization=True) for _ in range(2)
            )
        self.order = {peer: _messages(schedule, peer, rank) for peer in range(len(schedule))}
        self.known: dict = {}  # (shape, dtype) of a microbatch -> (shape, dtype) by stage
        self.forms: dict[int, tuple] = {}

    def open(self, microbatch: torch.Tensor, stages) -> None:
        """Begin a batch; the first with a new shape finds out what each stage gives."""
        self.queues = {peer: deque(order) for peer, order in self.order.items()}
        self.posted: dict[tuple, tuple] = {}
        self.sending: list[tuple] = []
        self.device = microbatch.device
        key = microbatch.shape, microbatch.dtype
        if key not in self.known:
            self.known[key] = self._find(microbatch, stages)
        self.forms = self.known[key]

    def post(self, kind: str, stage: int, microbatch: int) -> None:
        """Have this message, and all before it on its pipe, on their way."""
        peer = self.schedule.placement[stage]
        if peer == self.rank:
            return
        queue, wanted = self.queues[peer], (kind, stage, microbatch)
        while wanted not in self.posted and queue:
            what = queue.popleft()
            shape, dtype = self.forms[what[1] if what[0] == "F" else what[1] - 1]
            buffer = torch.empty(shape, dtype=dtype, device=self.device)
            work = dist.irecv(buffer, group=self._way(peer, self.rank), group_src=peer)
            self.posted[what] = work, buffer

    def take(self, kind: str, stage: int, microbatch: int) -> torch.Tensor:
        """Wait for a message and give it."""
        self.post(kind, stage, microbatch)
        work, buffer = self.posted.pop((kind, stage, microbatch))
        work.wait()
        return buffer

    def send(self, tensor: torch.Tensor, peer: int) -> None:
        """Send, and go on; the tensor is kept until it has left."""
        self.sending = [pair for pair in self.sending if not pair[0].is_completed()]
        tensor = tensor.contiguous()
        work = dist.isend(tensor, group=self._way(self.rank, peer), group_dst=peer)
        self.sending.append((work, tensor))

    def finish(self) -> None:
        """Wait until everything has left."""
        for work, _ in self.sending:
            work.wait()
        self.sending = []

    def tell(self, loss: torch.Tensor) -> torch.Tensor:
        """Give every rank the loss, which the last stage's rank knows."""
        dist.broadcast(loss, group=self.group, group_src=self.schedule.placement[-1])
        return loss

    def _way(self, source: int, destination: int):
        return self.up if source < destination else self.down

    def _find(self, microbatch, stages) -> dict[int, tuple]:
        """Run empty tensors through the stages, from rank to rank; give every stage's form."""
        forms: dict[int, tuple] = {}
        table = torch.zeros(self.schedule.stages, _HEADER, dtype=torch.int64, device=self.device)
        form = (microbatch.shape, microbatch.dtype)
        for stage, home in enumerate(self.schedule.placement[:-1]):
            if home == self.rank:
                forms[stage] = form = _form(stages[stage], stage, form, self.device)
                table[stage] = torch.tensor(_numbers(form), device=self.device)
            if self.schedule.placement[stage + 1] != home:  # the next rank must know it to go on
                dist.broadcast(table[stage], group=self.group, group_src=home)
                forms[stage] = form = _read(table[stage].tolist())
        return forms


class Passing:
    """What goes from stage to stage while a rank carries out its row: over pipes, or within it."""

    def __init__(self, schedule, rank: int, pipes: Pipes, stages):
        self.schedule, self.pipes, self.stages = schedule, pipes, stages
        self.row, self.last = schedule.actions(rank), schedule.stages - 1
        self.here: dict[tuple, torch.Tensor] = {}  # what one stage of this rank leaves to another

    def ahead(self, place: int) -> None:
        """Have what the action at `place` and the next one need on its way."""
        for stage, kind, microbatch in self.row[place : place + 2]:
            if kind == "F" and stage > 0:
                self.pipes.post("F", stage - 1, microbatch)
            elif kind in "BI" and stage < self.last:
                self.pipes.post("B", stage + 1, microbatch)

    def take(self, kind: str, stage: int, microbatch: int) -> torch.Tensor:
        """Give what stage `stage` has made, an activation ("F") or a gradient ("B")."""
        if (kind, stage, microbatch) in self.here:
            return self.here.pop((kind, stage, microbatch))
        return self.pipes.take(kind, stage, microbatch)

    def give(self, kind: str, stage: int, to: int, microbatch: int, tensor) -> None:
        """Pass on what stage `stage` has made to stage `to`."""
        if to in self.stages:
            self.here[kind, stage, microbatch] = tensor
        else:
            self.pipes.send(tensor, self.schedule.placement[to])


def cut(model, stages: int, lengths=None) -> list[tuple[int, int]]:
    """First and last block (excluded) of each stage; as equal as can be unless `lengths` says."""
    blocks = len(model)
    if blocks < stages:
        raise ValueError(f"{blocks} blocks do not make {stages} stages: each needs at least one")
    if lengths is None:
        more = blocks % stages
        lengths = [blocks // stages + (s < more) for s in range(stages)]
    if len(lengths) != stages or sum(lengths) != blocks or min(lengths) < 1:
        raise ValueError(
            f"lengths {list(lengths)} must be {stages} numbers of 1 or more that add up to "
            f"{blocks}, the blocks of the model"
        )
    ends = [sum(lengths[:s]) for s in range(stages + 1)]
    return list(zip(ends, ends[1:]))


def one_tensor(y, stage: int) -> torch.Tensor:
    """Give y; raise TypeError where a stage gives something else than a tensor."""
    if not isinstance(y, torch.Tensor):
        raise TypeError(
            f"stage {stage} gives a {type(y).__name__}: between two stages goes one tensor"
        )
    return y


def _messages(schedule, source: int, destination: int) -> list[tuple[str, int, int]]:
    """What `source` sends to `destination`, in its order: (F or B, its stage, microbatch)."""
    placement, last, found = schedule.placement, schedule.stages - 1, []
    for stage, kind, microbatch in schedule.actions(source) if source != destination else ():
        if kind == "F" and stage < last and placement[stage + 1] == destination:
            found.append(("F", stage, microbatch))
        elif kind in "BI" and stage > 0 and placement[stage - 1] == destination:
            found.append(("B", stage, microbatch))
    return found


def _form(module, stage: int, form, device) -> tuple:
    """Shape and dtype of what a stage gives for an input of this form; nothing is learned."""
    modes = [(m, m.training) for m in module.modules()]
    x = torch.zeros(form[0], dtype=form[1], device=device)
    try:
        module.eval()  # no batch norm counts this
        with torch.no_grad():
            y = one_tensor(module(x), stage)
    finally:
        for m, mode in modes:
            m.training = mode
    if y.dtype not in _DTYPES or y.dim() > _HEADER - 2:
        raise TypeError(f"stage {stage} gives {y.dim()} dims of {y.dtype}, which cannot be sent")
    return y.shape, y.dtype


def _numbers(form) -> list[int]:
    shape, dtype = form
    return [_DTYPES.index(dtype), len(shape), *shape, *[0] * (_HEADER - 2 - len(shape))]


def _read(numbers) -> tuple:
    return torch.Size(numbers[2 : 2 + numbers[1]]), _DTYPES[numbers[0]]
