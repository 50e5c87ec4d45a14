"""Pipeline parallel: each rank has some stages of the model and carries out its row of a schedule.

    stage s:  x [B/m, ...] -> y [B/m, ...], sent to the rank of stage s+1; its gradient comes back

[Note: one interpreter]
A schedule (lib/predict/schedule.py) is a row of actions for each rank. This file carries out any
of them: F takes what the stage before has sent, computes and sends on; B, or I, takes the gradient
from the stage after, computes and sends back; W needs nobody. What is needed next is already on its
way while the present action computes.
"""

from collections import deque

import torch
import torch.distributed as dist

from lib.parallel._pipes import Passing, Pipes, cut, one_tensor
from lib.predict._grid import KINDS
from lib.predict.actions import Schedule
from lib.predict.play import Costs
from lib.ranks.algorithms import exchange
from lib.ranks.desk import span
from lib.single.split import SplitBackward
from lib.single.train import next_token_loss


class Pipeline:
    """This rank's stages of `model`, and the schedule that runs them.

    Built *from* the whole model: anything with a length and slices that are modules (GPT, MLP,
    nn.Sequential). `lengths` says how many of its blocks each stage gets (default: as equal as can
    be). `loss(y, targets)` is a mean over its samples. `replicas` is the group of ranks that have
    the same stages (data parallel): their gradients are averaged. Raises ValueError where blocks,
    ranks or lengths do not fit the schedule.
    """

    def __init__(self, model, schedule: Schedule, group=None, *, lengths=None,
                 loss=next_token_loss, replicas=None):  # fmt: skip
        self.schedule, self.group, self.loss = schedule, group, loss
        self.replicas = replicas
        self.rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        if len(schedule) != ranks:
            raise ValueError(f"{schedule!r} cannot be run by {ranks} ranks: it has {len(schedule)}")
        cuts = cut(model, schedule.stages, lengths)
        self.stages = {s: model[slice(*cuts[s])] for s in self._mine()}
        self._weights = {s: list(stage.parameters()) for s, stage in self.stages.items()}
        self.shared = _shared(model, cuts, schedule.placement, self.rank)
        self._names = {id(p): name for name, p in model.named_parameters()}
        self.pipes = Pipes(schedule, self.rank, group)
        self.precision = torch.promote_types(next(model.parameters()).dtype, torch.float32)
        self.peak: dict[int, int] = {}  # the most microbatches alive at once, by stage

    def _mine(self) -> list[int]:
        return [s for s, rank in enumerate(self.schedule.placement) if rank == self.rank]

    def parameters(self) -> list[torch.nn.Parameter]:
        """The parameters of this rank's stages, each once: what its optimizer steps."""
        return list({id(p): p for found in self._weights.values() for p in found}.values())

    def gradients(self) -> dict[str, torch.Tensor]:
        """The gradients of this rank's stages, by their names in the whole model."""
        return {self._names[id(p)]: p.grad for p in self.parameters()}

    def zero_grad(self) -> None:
        """Let go of the gradients of this rank's stages."""
        for parameter in self.parameters():
            parameter.grad = None

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Forward and backward of one batch; give its loss [] to every rank.

        Every rank of the pipeline passes the same batch, inputs [B, ...] and targets [B, ...]; the
        first stage reads the one, the last stage the other. Gradients add up in .grad.
        """
        m = self.schedule.microbatches
        for what, batch in (("inputs", inputs), ("targets", targets)):
            if len(batch) % m:
                raise ValueError(
                    f"dim 0 of the {what} has {len(batch)} entries: {m} microbatches cannot share "
                    "them equally"
                )
        self.pipes.open(inputs[: len(inputs) // m], self.stages)
        run = _Step(self, inputs.chunk(m), targets.chunk(m))
        for place, action in enumerate(run.row):
            run.ahead(place)
            run.do[action.kind](action.stage, action.microbatch)
        run.finish()
        self.peak = run.peak
        return self.pipes.tell(run.total)


class _Step(Passing):
    """One batch on its way through this rank."""

    def __init__(self, pipeline: Pipeline, inputs, targets):
        super().__init__(pipeline.schedule, pipeline.rank, pipeline.pipes, pipeline.stages)
        self.p, self.loss = pipeline, pipeline.loss
        self.inputs, self.targets = inputs, targets
        self.do = dict(zip(KINDS, (self.forward, self.backward, self.input, self.weight)))
        self.alive: dict[tuple[int, int], SplitBackward] = {}
        self.peak = dict.fromkeys(pipeline.stages, 0)
        self.count = dict.fromkeys(pipeline.stages, 0)
        self.left = dict.fromkeys(pipeline.stages, len(inputs))  # backwards to come
        self.averaging: deque = deque()
        self.total = torch.zeros((), device=inputs[0].device, dtype=pipeline.precision)

    def forward(self, stage: int, microbatch: int) -> None:
        x = self.inputs[microbatch] if stage == 0 else self.take("F", stage - 1, microbatch)
        if stage and x.is_floating_point():
            x.requires_grad_()
        with span("F", stage=stage, microbatch=microbatch):
            y = one_tensor(self.stages[stage](x), stage)
            if stage == self.last:
                y = self.loss(y, self.targets[microbatch]) / len(self.inputs)
                self.total += y.detach()
        x = x if x.requires_grad else None
        self.alive[stage, microbatch] = SplitBackward(y, x, self.p._weights[stage])
        self.count[stage] += 1
        self.peak[stage] = max(self.peak[stage], self.count[stage])
        if stage < self.last:
            self.give("F", stage, stage + 1, microbatch, y.detach())

    def backward(self, stage: int, microbatch: int) -> None:
        self._back(stage, microbatch, "B", lambda graph, gradient: graph.whole(gradient))
        self._done(stage, microbatch)

    def input(self, stage: int, microbatch: int) -> None:
        self._back(stage, microbatch, "I", lambda graph, gradient: graph.inputs(gradient))

    def weight(self, stage: int, microbatch: int) -> None:
        with span("W", stage=stage, microbatch=microbatch):
            self.alive[stage, microbatch].weights()
        self._done(stage, microbatch)

    def _back(self, stage: int, microbatch: int, kind: str, of) -> None:
        gradient = None if stage == self.last else self.take("B", stage + 1, microbatch)
        with span(kind, stage=stage, microbatch=microbatch):
            found = of(self.alive[stage, microbatch], gradient)
        if stage > 0:
            self.give("B", stage, stage - 1, microbatch, found)

    def _done(self, stage: int, microbatch: int) -> None:
        del self.alive[stage, microbatch]
        self.count[stage] -= 1
        self.left[stage] -= 1
        if not self.left[stage] and self.p.replicas is not None:
            self.averaging.append(_average(self._own(stage), self.p.replicas))

    def _own(self, stage: int) -> list:
        """The stage's parameters whose gradients are complete: no other stage is to add to them."""
        open_ = [q for q, _ in self.p.shared]
        open_ += [q for s, weights in self.p._weights.items() if self.left[s] for q in weights]
        return [p for p in self.p._weights[stage] if not any(p is q for q in open_)]

    def finish(self) -> None:
        """Add up what several ranks share, wait for the averages and for what is still sent."""
        for parameter, ranks in self.p.shared:
            _add_up(parameter, ranks, self.p.rank, self.p.group)
        if self.p.replicas is not None and self.p.shared:
            self.averaging.append(_average([p for p, _ in self.p.shared], self.p.replicas))
        for wait in self.averaging:
            wait()
        self.pipes.finish()


def stage_costs(model, schedule: Schedule, inputs, targets, speeds, *, lengths=None,
                loss=next_token_loss) -> Costs:  # fmt: skip
    """What F, B, I, W and a send of each stage take in seconds, for `play`, on given hardware.

    `speeds` is a SlowMotion (unstretched). Each stage runs here, forward and back, on a microbatch
    of the batch; give a `model` of its own, since its gradients are used. `activation` stays 0.
    """
    m = schedule.microbatches
    x, wanted = inputs[: len(inputs) // m], targets[: len(targets) // m]
    found = {kind: [] for kind in (*KINDS, "send")}
    for stage, (first, last) in enumerate(cut(model, schedule.stages, lengths)):
        part = model[first:last]
        weights = list(part.parameters())

        def forward(part=part, x=x, stage=stage):
            nonlocal y
            y = part(x)
            if stage == schedule.stages - 1:
                y = loss(y, wanted) / m

        y = None
        found["F"].append(speeds.seconds(forward))
        gradient = torch.ones_like(y)
        given = x if x.requires_grad else None
        SplitBackward(y, given, weights).whole(gradient)  # from the second on, gradients add up
        x.grad = None
        forward()
        whole = SplitBackward(y, given, weights)
        found["B"].append(speeds.seconds(whole.whole, gradient))
        forward()
        parts = SplitBackward(y, given, weights)
        found["I"].append(speeds.seconds(parts.inputs, gradient))
        found["W"].append(speeds.seconds(parts.weights))
        found["send"].append(speeds.moving("send", 2, y.numel() * y.element_size()))
        x = y.detach()
        x.requires_grad_(x.is_floating_point())
    return Costs(found["F"], found["I"], found["W"], found["send"][:-1], found["B"])


def _shared(model, cuts, placement, rank) -> list[tuple[torch.nn.Parameter, list[int]]]:
    """Parameters that stages of several ranks have, this rank among them: (parameter, ranks)."""
    owners: dict[int, tuple] = {}
    for stage, (first, last) in enumerate(cuts):
        for parameter in model[first:last].parameters():
            owners.setdefault(id(parameter), (parameter, set()))[1].add(placement[stage])
    several = ((p, sorted(ranks)) for p, ranks in owners.values() if len(ranks) > 1)
    return [(p, ranks) for p, ranks in several if rank in ranks and p.requires_grad]


def _add_up(parameter, ranks, rank, group) -> None:
    """Sum a shared parameter's gradient over the ranks that have it, in the order of ranks."""
    mine = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    others = {r: torch.empty_like(mine) for r in ranks if r != rank}
    exchange(dict.fromkeys(others, mine), others, group, "shared by stages")
    parameter.grad = sum((others.get(r, mine) for r in ranks[1:]), others.get(ranks[0], mine))


def _average(parameters, group):
    """Launch the mean of these gradients over `group`; the call that is given back waits for it."""
    known = [p for p in parameters if p.requires_grad]
    if not known:
        return lambda: None
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in known]
    flat = torch.cat([g.flatten() for g in gradients])
    work = dist.all_reduce(flat, group=group, async_op=True)

    def wait():
        work.wait()
        flat.div_(dist.get_world_size(group))
        for parameter, part in zip(known, flat.split([p.numel() for p in known])):
            parameter.grad = part.view_as(parameter)

    return wait
