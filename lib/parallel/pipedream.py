"""Asynchronous pipelines: no flush, so weights change while microbatches are under way.

    stage s:  x [B, ...] -> y [B, ...], in a stream of microbatches; an update after every `every`

[Note: versions without copies]
The weights that a forward saw must live until its backward. The stage computes on tensors that look
into the parameters' memory. When an update comes and somebody still needs what is there, the
parameters move to new memory first; when nobody does, they stay. So there are as many copies as
versions in use, and one under a flush. Which version each microbatch must see is a rule on paper
(lib/predict/versions.py).
"""

import torch
import torch.distributed as dist
from torch.func import functional_call

from lib.parallel._pipes import Passing, Pipes, cut, one_tensor
from lib.predict.actions import Schedule
from lib.predict.versions import Seen, weight_versions
from lib.ranks.desk import span
from lib.single.train import next_token_loss


class PipeDream:
    """This rank's stage of `model`, trained in a stream (Narayanan et al. 2019; arXiv 2006.09503).

    `schedule` has one stage a rank and whole backwards: `pipedream(stages, microbatches)`.
    `optimizer` makes one from parameters, `rule` is one of lib.predict.versions.RULES: "stashing",
    "vertical sync", "2BW" with `every` microbatches an update, "flush", or "latest". Raises
    ValueError for a tied model (its two ends would see different weights) or another schedule.
    """

    def __init__(self, model, schedule: Schedule, optimizer, *, rule="stashing", every: int = 1,
                 group=None, lengths=None, loss=next_token_loss):  # fmt: skip
        self.schedule, self.rule, self.every, self.loss = schedule, rule, every, loss
        self.stage = self.rank = dist.get_rank(group)
        if schedule.placement != tuple(range(dist.get_world_size(group))):
            raise ValueError(f"{schedule!r}: a stream has one stage on each of the group's ranks")
        if set("IW") & {action.kind for action in schedule.actions(self.rank)}:
            raise ValueError(f"{schedule!r}: a stream has whole backwards, B, not I and W")
        cuts = cut(model, schedule.stages, lengths)
        _refuse_tied(model, cuts)
        self.module = model[slice(*cuts[self.stage])]
        if not any(weight.requires_grad for weight in self.module.parameters()):
            raise ValueError(
                f"stage {self.stage} has no weight to train: cut it elsewhere, by lengths="
            )
        self.names, self.weights = map(list, zip(*self.module.named_parameters()))
        self.optimizer = optimizer(self.weights)
        self.rules = weight_versions(schedule, rule, every)[self.stage]
        self.pipes = Pipes(schedule, self.rank, group)
        self.precision = torch.promote_types(self.weights[0].dtype, torch.float32)
        self.seen: list[Seen] = []  # the versions that each microbatch really saw here
        self.kept = 0  # the most versions of the weights that were alive at once

    def run(self, inputs: torch.Tensor, targets: torch.Tensor) -> list[float]:
        """Train on a stream, inputs [N, B, ...] and targets [N, B, ...]; give the N losses.

        Every rank passes the same stream and learns the losses. N is the schedule's microbatches.
        """
        n = self.schedule.microbatches
        if len(inputs) != n or len(targets) != n:
            raise ValueError(f"this stream has {n} microbatches, and {len(inputs)} were given")
        self.pipes.open(inputs[0], {self.stage: self.module})
        stream = _Stream(self, inputs, targets)
        for place, (_, kind, microbatch) in enumerate(stream.row):
            stream.ahead(place)
            (stream.forward if kind == "F" else stream.backward)(microbatch)
        self.pipes.finish()
        self.seen, self.kept = stream.seen(), stream.most
        return self.pipes.tell(stream.losses).tolist()


class _Stream(Passing):
    """One stream on its way through this rank's stage."""

    def __init__(self, pipe: PipeDream, inputs, targets):
        super().__init__(pipe.schedule, pipe.rank, pipe.pipes, {pipe.stage: pipe.module})
        self.p, self.stage, self.inputs, self.targets = pipe, pipe.stage, inputs, targets
        self.losses = torch.zeros(len(inputs), dtype=pipe.precision, device=inputs.device)
        self.alive: dict[int, tuple] = {}  # microbatch -> input, output, the version it sees
        self.left = {j: seen.backward for j, seen in enumerate(pipe.rules)}
        self.made = self.backwards = self.most = 0
        self.versions = {0: self._look()}  # version -> tensors to compute with
        self.forwards, self.backs = {}, {}

    def _look(self) -> dict[str, torch.Tensor]:
        """Tensors that look into the parameters' memory; autograd does not know the two as one."""
        return {
            name: weight.data.requires_grad_(weight.requires_grad)
            for name, weight in zip(self.p.names, self.p.weights)
        }

    def forward(self, microbatch: int) -> None:
        stage = self.stage
        x = self.inputs[microbatch] if stage == 0 else self.take("F", stage - 1, microbatch)
        if stage and x.is_floating_point():
            x.requires_grad_()
        version = self.p.rules[microbatch].forward
        weights = self.versions[version]
        with span("F", stage=stage, microbatch=microbatch, note=f"version {version}"):
            y = one_tensor(functional_call(self.p.module, weights, (x,)), stage)
            if stage == self.last:
                y = self.p.loss(y, self.targets[microbatch])
                self.losses[microbatch] = y.detach()
        self.alive[microbatch] = x, y, weights
        self.forwards[microbatch] = version
        self.most = max(self.most, len(self.versions))
        if stage < self.last:
            self.give("F", stage, stage + 1, microbatch, y.detach())

    def backward(self, microbatch: int) -> None:
        stage, (x, y, weights) = self.stage, self.alive.pop(microbatch)
        gradient = None if stage == self.last else self.take("B", stage + 1, microbatch)
        # Where nothing was stashed, an update has changed the memory that `weights` look into.
        there = [v for v, known in self.versions.items() if known is weights]
        self.backs[microbatch] = there[0] if there else self.made
        note = f"version {self.backs[microbatch]}"
        with span("B", stage=stage, microbatch=microbatch, note=note):
            torch.autograd.backward([y], [gradient])
        if stage > 0:
            self.give("B", stage, stage - 1, microbatch, x.grad)
        for name, weight in zip(self.p.names, self.p.weights):
            found, weights[name].grad = weights[name].grad, None
            if found is not None:
                found = found / self.p.every
                weight.grad = found if weight.grad is None else weight.grad + found
        del self.left[microbatch]
        self.backwards += 1
        needed = {self.made, *self.left.values()}
        self.versions = {v: known for v, known in self.versions.items() if v in needed}
        if self.backwards % self.p.every == 0:
            self._update()

    def _update(self) -> None:
        """Step; first to new memory, if somebody will still compute with what is there."""
        if self.p.rule != "latest" and self.made in self.left.values():
            for weight in self.p.weights:
                weight.data = weight.data.clone()
        else:
            del self.versions[self.made]
        self.p.optimizer.step()
        self.p.optimizer.zero_grad()
        self.made += 1
        self.versions[self.made] = self._look()
        self.most = max(self.most, len(self.versions))

    def seen(self) -> list[Seen]:
        return [Seen(self.forwards[j], self.backs[j]) for j in sorted(self.backs)]


def _refuse_tied(model, cuts) -> None:
    homes: dict[int, int] = {}
    for stage, (first, last) in enumerate(cuts):
        for name, parameter in model[first:last].named_parameters():
            home = homes.setdefault(id(parameter), stage)
            if home != stage:
                raise ValueError(
                    f"{name} is a weight of stage {home} and of stage {stage}: in a stream the two "
                    "would see different versions of it; untie it"
                )
