"""Pipelines whose stages are cut by layer, by channel, or both.

    stage s on n ranks:  x [B/m, ..] whole on each -> y [B/m, ..] whole on each, to all ranks of s+1

Each rank of a stage holds its share of the channels of every layer (channels.py). All of them have
the whole output, so rank k of the next stage receives it from rank k mod n, and its gradient, which
is whole as well, goes back in the same way.
"""

import copy

import torch
import torch.distributed as dist

from lib.parallel.pipeline.channels import by_channel
from lib.parallel.pipeline.passing import microbatches, precision, same_batch
from lib.parallel.pipeline.pipes import directions
from lib.parallel.pipeline.stage_group import stage_group
from lib.predict.arguments import equal_share
from lib.predict.pipeline.cuts import Partition
from lib.predict.pipeline.schedules import one_f_one_b
from lib.ranks.state.this_rank import span
from lib.single.train import next_token_loss


class MixedPipeline:
    """This rank's share of a stage of `model`, as a `partition` such as `0:3 /2 | 3:8` says.

    It is built from the whole model, a Chain. Stage 0 has the first ranks of the group, stage 1 the
    next ones, and so on. A step runs 1F1B with `m` microbatches. Raises ValueError where the ranks
    or the blocks do not fit the partition, where a stage has replicas (PipeDream runs these), and
    where channels do not divide.
    """

    def __init__(self, model, partition: Partition, m: int, group=None, *, loss=next_token_loss):
        self.loss, self.group, stages = loss, group, partition.stages
        if any(stage.share == "x" and stage.ranks > 1 for stage in stages):
            raise ValueError(f"{partition} has replicas, which take turns: give it to PipeDream.")
        ends = [sum(stage.ranks for stage in stages[:n]) for n in range(len(stages) + 1)]
        size, self.rank = dist.get_world_size(group), dist.get_rank(group)
        if ends[-1] != size or stages[-1].last != len(model):
            raise ValueError(
                f"{partition} is for {ends[-1]} ranks and {stages[-1].last} blocks, but the group "
                f"has {size} ranks and the model {len(model)} blocks."
            )
        self.ranks = [range(a, b) for a, b in zip(ends, ends[1:])]  # by stage
        self.stage = next(s for s, ranks in enumerate(self.ranks) if self.rank in ranks)
        self.last = len(stages) - 1
        self.row = one_f_one_b(len(stages), m).actions(self.stage)
        self.m, self.precision = m, precision(model)
        self.whole = copy.deepcopy(model).to("meta")  # knows the shapes between stages
        first, last, ranks, _ = stages[self.stage]
        self.module = model[first:last]
        if ranks > 1:
            own = tuple(self.ranks[self.stage])
            self.module = by_channel(self.module, stage_group(own, group))
        self.first = first
        self.up, self.down = directions(group)

    def parameters(self) -> list[torch.nn.Parameter]:
        """Return this rank's parameters, for its optimizer."""
        return list(self.module.parameters())

    def gradients(self) -> dict[str, torch.Tensor]:
        """Return the gradients of this rank's shares, by their names in the whole model."""
        return {name: weight.grad for name, weight in self.module.named_parameters()}

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Run forward and backward of one batch; return its loss [] on every rank.

        All ranks pass the same batch, inputs [B, ...] and targets [B, ...]. Gradients add up in
        .grad.
        """
        same_batch(inputs, targets)
        equal_share(len(inputs), self.m, "Dim 0 of the inputs has {} entries", "{} microbatches")
        parts, self.targets = microbatches(inputs, self.m), targets.chunk(self.m)
        self.alive, self.sending = {}, []
        self.total = torch.zeros((), device=inputs.device, dtype=self.precision)
        like = self._shapes(parts[0])
        for _, kind, j in self.row:
            if kind == "F":
                self._forward(j, parts[j] if self.stage == 0 else self._receive(-1, like[0]))
            else:
                self._backward(j, None if self.stage == self.last else self._receive(1, like[1]))
        for work, _ in self.sending:
            work.wait()
        dist.broadcast(self.total, group=self.group, group_src=self.ranks[-1][0])
        return self.total

    def _forward(self, j: int, x: torch.Tensor) -> None:
        x = x.requires_grad_() if self.stage else x
        with span("F", stage=self.stage, microbatch=j):
            y = self.module(x)
            if self.stage == self.last:
                y = self.loss(y, self.targets[j]) / self.m
                self.total += y.detach()
        if self.stage < self.last:
            self._send(1, y.detach())
        self.alive[j] = x, y

    def _backward(self, j: int, gradient) -> None:
        x, y = self.alive.pop(j)
        with span("B", stage=self.stage, microbatch=j):
            y.backward(gradient)
        if self.stage:
            self._send(-1, x.grad)

    def _send(self, step: int, tensor: torch.Tensor) -> None:
        """Send to the ranks of the next stage (1) or the one before (-1) that this rank serves."""
        own, others = self.ranks[self.stage], self.ranks[self.stage + step]
        tensor = tensor.contiguous()
        for k, peer in enumerate(others):
            if own[k % len(own)] == self.rank:
                group = self.up if step > 0 else self.down
                self.sending.append((dist.isend(tensor, group=group, group_dst=peer), tensor))

    def _receive(self, step: int, like: torch.Tensor) -> torch.Tensor:
        """Receive from the stage before (-1) an input, or from the next one (1) a gradient."""
        own, others = self.ranks[self.stage], self.ranks[self.stage + step]
        source = others[own.index(self.rank) % len(others)]
        tensor = torch.empty_like(like, device=self.total.device)
        group = self.down if step > 0 else self.up
        dist.recv(tensor, group=group, group_src=source)
        return tensor

    def _shapes(self, part: torch.Tensor) -> tuple:
        """Return this stage's input and output for a microbatch, without their numbers."""
        x = part.to("meta")
        with torch.no_grad():
            x = self.whole[: self.first](x)
            return x, self.whole[self.first : self.first + len(self.module)](x)
