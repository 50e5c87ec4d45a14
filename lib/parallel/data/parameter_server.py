"""Parameter server: one rank holds the weights, and the others send it gradients.

    weights W [N] on the server, a copy of some version on each worker (w workers)
    gradient [N] +w     applied together in bulk-synchronous runs, else one after the other, ÷ w

The rules in lib/predict/data/parameter_server.py decide which workers may begin and how stale a
gradient may be; the same rules predict the run. Rank 0 of the group is the server, rank w + 1 is
worker w.
"""

import time
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from lib.parallel.data import broadcast
from lib.predict.data.parameter_server import HEAD, Gate, ServerSettings, Update, simulate
from lib.ranks import span
from lib.ranks.state.gpu_streams import one_at_a_time


class History(NamedTuple):
    """Holds what a rank knows at the end: the server of all gradients, a worker of its own."""

    updates: tuple[Update, ...]  # on the server alone
    losses: tuple[float, ...]  # one for each gradient, as its worker computed it


class ParameterServer:
    """Trains `model` through a server; `settings` are the staleness bound and the workers' speeds.

    Every rank builds the same model and optimizer, and then this object; only the server's
    optimizer is used. Frozen parameters and buffers are broadcast once, here; buffers that forward
    changes afterwards belong to their worker alone. Sparse gradients are sent dense. Raises
    ValueError where the group does not have one rank for each worker and one for the server, where
    the trainable parameters have several dtypes, and for SparseAdam.
    """

    def __init__(self, model: nn.Module, optimizer, settings: ServerSettings, *, group=None):
        ranks = dist.get_world_size(group)
        if ranks != settings.workers + 1:
            raise ValueError(
                f"{settings.workers} workers and a server need {settings.workers + 1} ranks, but "
                f"the group has {ranks}. Give compute_times for {ranks - 1} workers."
            )
        self.model, self.optimizer, self.settings, self.group = model, optimizer, settings, group
        self.params = [p for p in model.parameters() if p.requires_grad]
        if len({p.dtype for p in self.params}) != 1:
            kinds = ", ".join(sorted({str(p.dtype) for p in self.params})) or "none"
            raise ValueError(
                f"The trainable parameters have these dtypes: {kinds}. A parameter server needs "
                "exactly one dtype."
            )
        if isinstance(optimizer, torch.optim.SparseAdam):
            raise ValueError(
                "SparseAdam accepts only sparse gradients, but gradients reach the server dense. "
                "Use Adam, or another optimizer that accepts dense gradients."
            )
        broadcast.check(model)
        frozen = [p for p in model.parameters() if not p.requires_grad]
        for tensor in [*frozen, *model.buffers()]:
            broadcast.broadcast([tensor], group)
        self.rank, self.spare = dist.get_rank(group), None

    def train(self, loss_of, *, tick: float = 0.0, order=None) -> History:
        """Train until the settings' gradients have arrived; all ranks then hold the same weights.

        `loss_of(model, worker, number)` returns the loss of a worker's gradient of that number. A
        worker takes at least compute_time × `tick` seconds for it. The server takes gradients in
        `order`, a sequence of workers; by default in the simulated order, which is the same in
        every run. With order="arrivals" it takes them as they arrive, which raises ValueError with
        NCCL: a rank cannot receive there without naming the sender.
        """
        if order == "arrivals" and one_at_a_time(self.group):
            raise ValueError(
                'order="arrivals" needs gloo, but these ranks are on GPUs with NCCL, which cannot '
                "receive from whichever rank sends first. Leave out `order` to use the simulated "
                'one, or start a World(..., device="cpu").'
            )
        if self.rank:
            return self._work(loss_of, tick)
        if isinstance(order, str) and order != "arrivals":
            raise ValueError(f'order must be a sequence of workers or "arrivals", not {order!r}.')
        if order == "arrivals":
            return self._serve(None)
        return self._serve(iter(simulate(self.settings, order=order).order))

    # The worker.

    def _work(self, loss_of, tick: float) -> History:
        pulled, pushed = _Message(self.params), _Message(self.params, flags=True)
        worker, losses = self.rank - 1, []
        while True:
            dist.recv(pulled.bytes, group_src=0, group=self.group)
            version, more = pulled.head.tolist()
            if not more:
                pulled.unpack([p.data for p in self.params])
                return History((), tuple(losses))
            began, number = time.monotonic(), len(losses)
            with span("gradient", note=f"computed on version {version:.0f}"):
                pulled.unpack([p.data for p in self.params])
                self.model.zero_grad()
                loss = loss_of(self.model, worker, number)
                loss.backward()
                losses.append(loss.item())
                pushed.pack([p.grad for p in self.params], version, losses[-1])
                least = self.settings.compute_time(worker, number) * tick
                left = began + least - time.monotonic()
                time.sleep(max(left, 0.0))
            dist.send(pushed.bytes, group_dst=0, group=self.group)

    # The server.

    def _serve(self, order) -> History:
        gate, losses, updates = Gate(self.settings), [], []
        rounds, self.outbox = self.settings.bound == 0, _Message(self.params)
        # The gradients of a round are kept until all have arrived: if they were added in the order
        # of arrival, the sum would not have the same bits in every run.
        slots = self.settings.workers if rounds else 1
        inbox = [_Message(self.params, flags=True) for _ in range(slots)]
        self._fill(0, more=True)
        while not gate.over:
            for worker in gate.admit():
                self._send(worker)
            worker, message = self._receive(inbox, order)
            computed_on, loss = message.head.tolist()
            update, now = gate.take(worker)
            if computed_on != update.computed_on:
                raise RuntimeError(
                    f"Worker {worker} computed its gradient {update.number} on version "
                    f"{computed_on:.0f}, but the server had sent it version {update.computed_on}."
                )
            updates.append(update)
            losses.append(loss)
            if now:
                with span("update"):
                    self._step(inbox)
                    self._fill(gate.version, more=True)
        self._fill(gate.version, more=False)
        for worker in range(self.settings.workers):
            self._send(worker)
        return History(tuple(updates), tuple(losses))

    def _fill(self, version: int, more: bool) -> None:
        """Prepare the message with the weights, which is the same for every worker."""
        self.outbox.pack([p.detach() for p in self.params], version, more)

    def _send(self, worker: int) -> None:
        dist.send(self.outbox.bytes, group_dst=worker + 1, group=self.group)

    def _receive(self, inbox: list, order) -> tuple[int, "_Message"]:
        """Wait for the next gradient; return its worker's number and the message."""
        if order is not None:
            worker = next(order)
            message = inbox[worker % len(inbox)]
            dist.recv(message.bytes, group_src=worker + 1, group=self.group)
            return worker, message
        if self.spare is None:
            self.spare = _Message(self.params, flags=True)  # its sender is not known in advance
        source = dist.recv(self.spare.bytes, group=self.group)
        worker = (dist.get_group_rank(self.group, source) if self.group else source) - 1
        slot = worker % len(inbox)
        inbox[slot], self.spare = self.spare, inbox[slot]
        return worker, inbox[slot]

    def _step(self, messages: list) -> None:
        """Update the weights with the messages' gradients ÷ workers: each counts equally."""
        for p in self.params:
            p.grad = None
        for message in messages:
            for p, gradient in zip(self.params, message.gradients()):
                if gradient is not None:
                    p.grad = gradient.clone() if p.grad is None else p.grad.add_(gradient)
        for p in self.params:
            if p.grad is not None:
                p.grad.div_(self.settings.workers)
        self.optimizer.step()


class _Message:
    """A buffer of bytes: a header of two float64, tensors end to end, and with `flags` a flag each.

    A flag says whether the tensor has a gradient. Sending zeros instead would not do, because
    weight decay would act on them.
    """

    def __init__(self, params: list[torch.Tensor], flags: bool = False):
        sizes = [p.numel() * p.element_size() for p in params]
        total = HEAD + sum(sizes) + len(params) * flags
        self.bytes = torch.empty(total, dtype=torch.uint8, device=params[0].device)
        self.head = self.bytes[:HEAD].view(torch.float64)
        body, self.flags = self.bytes[HEAD:].split([sum(sizes), len(params) * flags])
        parts = zip(body.split(sizes), params)
        self.tensors = [part.view(p.dtype).view(p.shape) for part, p in parts]

    def pack(self, tensors: list, *head: float) -> None:
        self.head.copy_(torch.tensor(head, dtype=torch.float64))
        for number, (part, tensor) in enumerate(zip(self.tensors, tensors)):
            if len(self.flags):
                self.flags[number] = tensor is not None
            part.zero_() if tensor is None else part.copy_(tensor.to_dense())

    def unpack(self, tensors: list) -> None:
        for part, tensor in zip(self.tensors, tensors):
            tensor.copy_(part)

    def gradients(self) -> list:
        present = self.flags.tolist()
        return [g if is_present else None for g, is_present in zip(self.tensors, present)]
