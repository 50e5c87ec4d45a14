"""Parameter server: one rank has the weights, the others bring it gradients.

    weights W [N] on the server, a copy of some version on each worker (w workers)
    gradient [N] +w     added to W at once in bulk-synchronous runs, else one after the other, ÷ w

Who may go on, and how stale a gradient may be, is decided by the rules of lib/predict/server.py:
the same that predict the run. Rank 0 of the group is the server, rank w + 1 is worker w.
"""

import time
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from lib.predict.server import HEAD, Dial, Gate, Update, play
from lib.ranks import span


class History(NamedTuple):
    """What a rank knows at the end: the server of all gradients in order, a worker of its own."""

    updates: tuple[Update, ...]  # on the server alone
    losses: tuple[float, ...]  # one for each gradient, as its worker saw it


class ParameterServer:
    """Trains `model` by the server's rules: `dial` says how stale and how slow.

    Every rank makes the same model and optimizer and then this; only the server's optimizer is
    used. Frozen parameters and buffers are broadcast here, once; buffers that change in forward
    then are each worker's own. Raises ValueError where the group has not a rank for each worker and
    one for the server, or where the trainable parameters are of several dtypes.
    """

    def __init__(self, model: nn.Module, optimizer, dial: Dial, *, group=None):
        ranks = dist.get_world_size(group)
        if ranks != dial.workers + 1:
            raise ValueError(
                f"{dial.workers} workers and a server are {dial.workers + 1} ranks, and the group "
                f"has {ranks}: give a pace for each of {ranks - 1} workers"
            )
        self.model, self.optimizer, self.dial, self.group = model, optimizer, dial, group
        self.params = [p for p in model.parameters() if p.requires_grad]
        if len({p.dtype for p in self.params}) != 1:
            kinds = ", ".join(sorted({str(p.dtype) for p in self.params})) or "none"
            raise ValueError(f"the trainable parameters are of dtypes {kinds}: one is needed")
        frozen = [p for p in model.parameters() if not p.requires_grad]
        for tensor in [*frozen, *model.buffers()]:
            dist.broadcast(tensor.detach(), group_src=0, group=group)
        self.rank, self.spare = dist.get_rank(group), None

    def train(self, loss_of, *, tick: float = 0.0, order=None) -> History:
        """Run until the dial's gradients have come; then all ranks hold the same weights.

        `loss_of(model, worker, number)` gives the loss of a worker's gradient of that number.
        A worker takes at least pace × `tick` seconds for one. The server takes gradients in
        `order`, a sequence of workers, by default that of the dial on paper: the same in every run.
        With order="arrivals" it takes whichever is there first (gloo only).
        """
        if self.rank:
            return self._work(loss_of, tick)
        if isinstance(order, str) and order != "arrivals":
            raise ValueError(f'order={order!r}: a sequence of workers, or "arrivals"')
        if order == "arrivals":
            return self._serve(None)
        return self._serve(iter(play(self.dial, order=order).order))

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
            with span("gradient", note=f"made on version {version:.0f}"):
                pulled.unpack([p.data for p in self.params])
                self.model.zero_grad()
                loss = loss_of(self.model, worker, number)
                loss.backward()
                losses.append(loss.item())
                pushed.pack([p.grad for p in self.params], version, losses[-1])
                left = began + self.dial.pace(worker, number) * tick - time.monotonic()
                time.sleep(max(left, 0.0))
            dist.send(pushed.bytes, group_dst=0, group=self.group)

    # The server.

    def _serve(self, order) -> History:
        gate, losses, updates = Gate(self.dial), [], []
        rounds, self.outbox = self.dial.bound == 0, _Message(self.params)
        # A round's gradients are kept until all are there: added in the order of arrival, the sum
        # would not have the same bits in every run.
        places = self.dial.workers if rounds else 1
        inbox = [_Message(self.params, flags=True) for _ in range(places)]
        self._fill(0, more=True)
        while not gate.over:
            for worker in gate.admit():
                self._send(worker)
            worker, message = self._receive(inbox, order)
            made_on, loss = message.head.tolist()
            update, now = gate.take(worker)
            if made_on != update.made_on:
                raise RuntimeError(
                    f"worker {worker} made its gradient {update.number} on version {made_on:.0f}, "
                    f"and was sent version {update.made_on}"
                )
            updates.append(update)
            losses.append(loss)
            if now:
                with span("update"):
                    self._step(inbox)
                    self._fill(gate.version, more=True)
        self._fill(gate.version, more=False)
        for worker in range(self.dial.workers):
            self._send(worker)
        return History(tuple(updates), tuple(losses))

    def _fill(self, version: int, more: bool) -> None:
        """Make the message with the weights ready: it is the same for every worker."""
        self.outbox.pack([p.detach() for p in self.params], version, more)

    def _send(self, worker: int) -> None:
        dist.send(self.outbox.bytes, group_dst=worker + 1, group=self.group)

    def _receive(self, inbox: list, order) -> tuple[int, "_Message"]:
        """Wait for the next gradient; give its worker's number, and the message."""
        if order is not None:
            worker = next(order)
            message = inbox[worker % len(inbox)]
            dist.recv(message.bytes, group_src=worker + 1, group=self.group)
            return worker, message
        if self.spare is None:
            self.spare = _Message(self.params, flags=True)  # nobody knows yet whose it will be
        source = dist.recv(self.spare.bytes, group=self.group)
        worker = (dist.get_group_rank(self.group, source) if self.group else source) - 1
        place = worker % len(inbox)
        inbox[place], self.spare = self.spare, inbox[place]
        return worker, inbox[place]

    def _step(self, messages: list) -> None:
        """Change the weights by the messages' gradients ÷ workers: each counts the same, always."""
        for p in self.params:
            p.grad = None
        for message in messages:
            for p, gradient in zip(self.params, message.gradients()):
                if gradient is not None:
                    p.grad = gradient.clone() if p.grad is None else p.grad.add_(gradient)
        for p in self.params:
            if p.grad is not None:
                p.grad.div_(self.dial.workers)
        self.optimizer.step()


class _Message:
    """One buffer of bytes: a head of two float64, tensors end to end, a flag for each if asked.

    A flag says whether there is a gradient: zeros would be one, and weight decay would act on it.
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
        for number, (place, tensor) in enumerate(zip(self.tensors, tensors)):
            if len(self.flags):
                self.flags[number] = tensor is not None
            place.zero_() if tensor is None else place.copy_(tensor)

    def unpack(self, tensors: list) -> None:
        for place, tensor in zip(self.tensors, tensors):
            tensor.copy_(place)

    def gradients(self) -> list:
        return [g if there else None for g, there in zip(self.tensors, self.flags.tolist())]
