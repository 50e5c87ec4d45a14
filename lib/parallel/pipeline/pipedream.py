"""Asynchronous pipelines: without a flush, weights change while microbatches are in the pipe.

    stage s:  x [B, ...] -> y [B, ...], in a stream of microbatches; an update after every `every`

[Note: versions without copies]
The weights that a forward saw must exist until its backward. The stage computes with tensors that
share the parameters' memory. If a microbatch still needs that version when an update comes, the
parameters move to new memory first; otherwise they stay. So there are as many copies as versions in
use, and only one under a flush. A rule decides which version each microbatch must see
(lib/predict/pipeline/versions.py).

[Note: replicas]
A stage may stand on several ranks, which take microbatches in turn (`schedules.round_robin`). Each
adds up the gradients of its own microbatches; before an update they average these sums, so all
replicas make the same update and always have the same versions.
"""

import torch
import torch.distributed as dist
from torch.func import functional_call

from lib.parallel.pipeline.passing import Passing, microbatches, precision, same_batch
from lib.parallel.pipeline.pipes import Pipes, cut
from lib.parallel.pipeline.stage_group import stage_group
from lib.parallel.pipeline.tied import average, refuse_sparse
from lib.predict.pipeline.actions import Schedule
from lib.predict.pipeline.versions import Seen, updates_share, weight_versions
from lib.ranks.state.this_rank import span
from lib.single.experts.layer import auxiliary_loss
from lib.single.split import SplitBackward
from lib.single.train import next_token_loss


class PipeDream:
    """This rank's stage of `model`, trained in a stream (Narayanan et al. 2019; arXiv 2006.09503).

    `schedule` has one stage on each rank and whole backwards: pipedream(stages, microbatches) makes
    such a schedule, and round_robin(replicas, microbatches) one in which a stage has several ranks.
    `optimizer` is a function that makes an optimizer from parameters. `rule` is one of
    lib.predict.pipeline.versions.RULES: "stashing", "vertical sync", "2BW", "flush", or "latest".
    An update follows every `every` microbatches, with the mean of their gradients. All ranks pass
    equal models. Raises ValueError for a tied model, whose two ends would see different weights,
    for another kind of schedule, and where replicas cannot share `every` microbatches equally.
    """

    def __init__(self, model, schedule: Schedule, optimizer, *, rule="stashing", every: int = 1,
                 group=None, lengths=None, loss=next_token_loss):  # fmt: skip
        self.schedule, self.rule, self.every, self.loss = schedule, rule, every, loss
        self.rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        stages = [{action.stage for action in schedule.actions(r)} for r in range(len(schedule))]
        if len(schedule) != ranks or any(len(own) != 1 for own in stages):
            raise ValueError(
                f"A stream needs one stage on each of the group's {ranks} ranks, but the schedule "
                f"is {schedule!r}."
            )
        (self.stage,) = stages[self.rank]
        if set("IW") & {action.kind for action in schedule.actions(self.rank)}:
            raise ValueError(f"A stream needs whole backwards, B, but {schedule!r} has I and W.")
        cuts = cut(model, schedule.stages, lengths)
        _refuse_tied(model, cuts)
        self.module = model[slice(*cuts[self.stage])]
        if not any(weight.requires_grad for weight in self.module.parameters()):
            raise ValueError(
                f"Stage {self.stage} has no weight to train. Cut the model elsewhere with lengths=."
            )
        if len(schedule.ranks_of(self.stage)) > 1:
            refuse_sparse(self.module, self.module.parameters())
        self.names, self.weights = map(list, zip(*self.module.named_parameters()))
        self.optimizer = optimizer(self.weights)
        self.rules = weight_versions(schedule, rule, every)[self.stage]
        self.share = updates_share(schedule, self.stage, every)  # of `every`, on this rank
        self.replicas = stage_group(schedule.ranks_of(self.stage), group)
        self.pipes = Pipes(schedule, self.rank, group)
        self.precision = precision(self.module)
        self.seen: list[Seen] = []  # the versions that each microbatch of this rank saw
        self.kept = 0  # the most versions of the weights that existed at once

    def run(self, inputs: torch.Tensor, targets: torch.Tensor) -> list[float]:
        """Train on a stream, inputs [N, B, ...] and targets [N, B, ...]; return the N losses.

        All ranks pass the same stream, and all get the losses. N is the schedule's number of
        microbatches.
        """
        n = self.schedule.microbatches
        if len(inputs) != n or len(targets) != n:
            raise ValueError(
                f"The schedule has {n} microbatches, but there are {len(inputs)} inputs and "
                f"{len(targets)} targets. Pass {n} of each."
            )
        same_batch(inputs, targets, dims=2)
        self.pipes.open(inputs[0])
        stream = _Stream(self, [x.squeeze(0) for x in microbatches(inputs, n)], targets)
        for place, (_, kind, microbatch) in enumerate(stream.row):
            stream.ahead(place)
            (stream.forward if kind == "F" else stream.backward)(microbatch)
        self.pipes.finish()
        self.seen, self.kept = stream.seen(), stream.most
        return self.pipes.tell(stream.losses).tolist()


class _Stream(Passing):
    """Runs one stream through this rank's stage."""

    def __init__(self, pipe: PipeDream, inputs, targets):
        super().__init__(pipe.schedule, pipe.rank, pipe.pipes, {pipe.stage: pipe.module})
        self.p, self.stage, self.inputs, self.targets = pipe, pipe.stage, inputs, targets
        self.losses = torch.zeros(len(inputs), dtype=pipe.precision, device=targets.device)
        self.alive: dict[int, tuple] = {}  # microbatch -> graph, leaves, the version it sees
        self.own_losses: dict[int, torch.Tensor] = {}  # of layers of experts
        self.left = {j: pipe.rules[j].backward for _, kind, j in self.row if kind == "F"}
        self.newest = self.backwards = self.most = 0
        self.versions = {0: self._look()}  # version -> tensors to compute with
        self.forwards, self.backs = {}, {}

    def _look(self) -> dict[str, torch.Tensor]:
        """Return tensors that share the parameters' memory but are separate for autograd."""
        return {
            name: weight.data.requires_grad_(weight.requires_grad)
            for name, weight in zip(self.p.names, self.p.weights)
        }

    def forward(self, microbatch: int) -> None:
        stage = self.stage
        x, leaves = (self.inputs[microbatch], []) if stage == 0 else self.arrive(stage, microbatch)
        version = self.p.rules[microbatch].forward
        weights = self.versions[version]
        with span("F", stage=stage, microbatch=microbatch, note=f"version {version}"):
            y = functional_call(self.p.module, weights, (x,))
            if stage == self.last:
                y = self.p.loss(y, self.targets[microbatch])
                self.losses[microbatch] = y.detach()
            own = auxiliary_loss(self.p.module)  # of layers of experts, on every stage
        outputs = [y] if stage == self.last else self.depart(stage, microbatch, y)
        if isinstance(own, torch.Tensor):
            outputs, self.own_losses[microbatch] = [*outputs, own], own.detach()
        self.alive[microbatch] = SplitBackward(outputs, leaves), leaves, weights
        self.forwards[microbatch] = version
        self.most = max(self.most, len(self.versions))

    def backward(self, microbatch: int) -> None:
        stage, (graph, leaves, weights) = self.stage, self.alive.pop(microbatch)
        gradients = [graph.one()] if stage == self.last else self.returned(stage, microbatch)
        own = self.own_losses.pop(microbatch, None)
        gradients = gradients if own is None else [*gradients, torch.ones_like(own)]
        # If this version was not kept, an update has changed the memory that `weights` share.
        version = next((v for v, kept in self.versions.items() if kept is weights), self.newest)
        self.backs[microbatch] = version
        with span("B", stage=stage, microbatch=microbatch, note=f"version {version}"):
            of_inputs = graph.whole(gradients)
        if stage > 0:
            self.give_back(stage, microbatch, of_inputs, leaves)
        for name, weight in zip(self.p.names, self.p.weights):
            gradient, weights[name].grad = weights[name].grad, None
            if gradient is not None:
                gradient = gradient / self.p.share
                weight.grad = gradient if weight.grad is None else weight.grad + gradient
        del self.left[microbatch]
        self.backwards += 1
        needed = {self.newest, *self.left.values()}
        self.versions = {v: weights for v, weights in self.versions.items() if v in needed}
        if self.backwards % self.p.share == 0:
            self._update()

    def _update(self) -> None:
        """Average over replicas, and step: in new memory if the present version is still needed."""
        if self.p.replicas is not None:
            average(self.p.weights, self.p.replicas)()
        if self.p.rule != "latest" and self.newest in self.left.values():
            for weight in self.p.weights:
                weight.data = weight.data.clone()
        else:
            del self.versions[self.newest]
        self.p.optimizer.step()
        self.p.optimizer.zero_grad()
        self.newest += 1
        self.versions[self.newest] = self._look()
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
                    f"{name} is a weight of both stage {home} and stage {stage}, which would see "
                    "different versions of it in a stream. Use a model that is not tied."
                )
