"""Pipeline parallelism: each rank has some stages of the model and runs its row of a schedule.

    stage s:  x [N/m, ...] -> y [N/m, ...], sent to the rank of stage s+1; its gradient comes back

[Note: one interpreter]
A schedule (lib/predict/pipeline/schedules.py) has a row of actions for each rank, and this file
runs any schedule. F receives the output of the stage before, computes, and sends its own output. B,
or I, receives a gradient from the stage after, computes, and sends a gradient back. W sends and
receives nothing. The receives for the next action are posted before the present one computes.

[Note: a loss inside a stage]
Layers of experts have losses of their own (lib/single/experts). Only the last stage computes the loss
of the model, so each stage goes backward from its own layers' losses too, divided by m as that one is.
A pipeline that forgets them trains gates without balance on all stages but the last, and nothing fails.
"""  # noqa: E501

from collections import deque
from functools import partial

import torch
import torch.distributed as dist

from lib.parallel.pipeline.parcels import Parcel, parcel
from lib.parallel.pipeline.passing import Passing, entering, microbatches, precision, same_batch
from lib.parallel.pipeline.pipes import Pipes, cut
from lib.parallel.pipeline.tied import Tied, average, refuse_sparse
from lib.predict.arguments import equal_share
from lib.predict.pipeline.actions import Schedule
from lib.predict.pipeline.grid import KINDS
from lib.predict.pipeline.play import Costs
from lib.ranks.state.this_rank import span
from lib.single.experts.layer import auxiliary_loss
from lib.single.split import SplitBackward
from lib.single.train import next_token_loss


class Pipeline:
    """Holds this rank's stages of `model` and runs a schedule on them.

    It is built *from* the whole model, which is anything with a length and slices that are modules
    (GPT, MLP, nn.Sequential). `lengths` gives the number of blocks of each stage (by default as
    equal as possible). `loss(y, targets)` is a mean over its samples; losses of layers of experts
    are added on every stage, of each microbatch alone. `replicas` is the group of
    ranks that have the same stages (data parallelism), whose gradients are averaged. Raises
    ValueError where blocks, ranks or lengths do not fit the schedule.
    """

    def __init__(self, model, schedule: Schedule, group=None, *, lengths=None,
                 loss=next_token_loss, replicas=None):  # fmt: skip
        self.schedule, self.group, self.loss = schedule, group, loss
        self.replicas = replicas
        self.rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        if len(schedule) != ranks:
            raise ValueError(
                f"{schedule!r} needs {len(schedule)} ranks, but the group has {ranks}."
            )
        cuts = cut(model, schedule.stages, lengths)
        self.stages = {s: model[slice(*cuts[s])] for s in self._own_stages()}
        self._weights = {s: list(stage.parameters()) for s, stage in self.stages.items()}
        self.tied = Tied(model, cuts, schedule.placement, self.rank, group)
        for stage in self.stages.values():
            refuse_sparse(stage, self.tied if replicas is None else stage.parameters())
        self._names = {id(p): name for name, p in model.named_parameters()}
        self.pipes = Pipes(schedule, self.rank, group)
        self.precision = precision(model)
        self.peak: dict[int, int] = {}  # the most microbatches alive at once, by stage

    def _own_stages(self) -> list[int]:
        return [s for s, rank in enumerate(self.schedule.placement) if rank == self.rank]

    def parameters(self) -> list[torch.nn.Parameter]:
        """Return the parameters of this rank's stages, each once, for its optimizer."""
        return list({id(p): p for weights in self._weights.values() for p in weights}.values())

    def gradients(self) -> dict[str, torch.Tensor]:
        """Return the gradients of this rank's stages, by their names in the whole model."""
        return {self._names[id(p)]: p.grad for p in self.parameters()}

    def zero_grad(self) -> None:
        """Set the gradients of this rank's stages to None."""
        for parameter in self.parameters():
            parameter.grad = None

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Run forward and backward of one batch; return its loss [] on every rank.

        All ranks of the pipeline pass the same batch, inputs [N, ...] and targets [N, ...]; the
        first stage reads the inputs, the last stage the targets. Gradients add up in .grad. Raises
        ValueError where the microbatches would not be equal.
        """
        m = self.schedule.microbatches
        same_batch(inputs, targets)
        size = equal_share(len(inputs), m, "Dim 0 of the inputs has {} entries", "{} microbatches")
        self.pipes.open(inputs[:size])
        self.tied.set_aside()
        run = _Step(self, microbatches(inputs, m), targets.chunk(m))
        for place, action in enumerate(run.row):
            run.ahead(place)
            run.do[action.kind](action.stage, action.microbatch)
        run.finish()
        self.peak = run.peak
        return self.pipes.tell(run.total)


class _Step(Passing):
    """Runs one batch through this rank's stages."""

    def __init__(self, pipeline: Pipeline, inputs, targets):
        super().__init__(pipeline.schedule, pipeline.rank, pipeline.pipes, pipeline.stages)
        self.p, self.loss = pipeline, pipeline.loss
        self.inputs, self.targets = inputs, targets
        self.do = dict(zip(KINDS, (self.forward, self.backward, self.input, self.weight)))
        self.alive: dict[tuple[int, int], tuple] = {}  # the graph and the leaves of its input
        self.peak = dict.fromkeys(pipeline.stages, 0)
        self.count = dict.fromkeys(pipeline.stages, 0)
        self.left = dict.fromkeys(pipeline.stages, len(inputs))  # backwards still to be done
        self.averaging: deque = deque()
        self.own_losses: dict[tuple[int, int], torch.Tensor] = {}  # of layers of experts
        self.total = torch.zeros((), device=inputs[0].device, dtype=pipeline.precision)

    def forward(self, stage: int, microbatch: int) -> None:
        x, leaves = (self.inputs[microbatch], []) if stage == 0 else self.arrive(stage, microbatch)
        with span("F", stage=stage, microbatch=microbatch):
            y = self.stages[stage](x)
            if stage == self.last:
                y = self.loss(y, self.targets[microbatch]) / len(self.inputs)
                self.total += y.detach()
            own = auxiliary_loss(self.stages[stage])
        outputs = [y] if stage == self.last else self.depart(stage, microbatch, y)
        if isinstance(own, torch.Tensor):
            self.own_losses[stage, microbatch] = own.detach()
            outputs = [*outputs, own / len(self.inputs)]
        self.alive[stage, microbatch] = SplitBackward(outputs, leaves), leaves
        self.count[stage] += 1
        self.peak[stage] = max(self.peak[stage], self.count[stage])

    def backward(self, stage: int, microbatch: int) -> None:
        self._back(stage, microbatch, "B", SplitBackward.whole)
        self._done(stage, microbatch)

    def input(self, stage: int, microbatch: int) -> None:
        self._back(stage, microbatch, "I", SplitBackward.inputs)

    def weight(self, stage: int, microbatch: int) -> None:
        with span("W", stage=stage, microbatch=microbatch):
            self.alive[stage, microbatch][0].weights()
        self._done(stage, microbatch)

    def _back(self, stage: int, microbatch: int, kind: str, part) -> None:
        graph, leaves = self.alive[stage, microbatch]
        is_last, own = stage == self.last, self.own_losses.pop((stage, microbatch), None)
        gradients = [graph.one()] if is_last else self.returned(stage, microbatch)
        if own is not None:
            gradients = [*gradients, torch.ones_like(own)]
        with span(kind, stage=stage, microbatch=microbatch):
            of_inputs = part(graph, gradients)
        if stage > 0:
            self.give_back(stage, microbatch, of_inputs, leaves)

    def _done(self, stage: int, microbatch: int) -> None:
        del self.alive[stage, microbatch]
        self.count[stage] -= 1
        self.left[stage] -= 1
        if not self.left[stage] and self.p.replicas is not None:
            self.averaging.append(average(self._own(stage), self.p.replicas))

    def _own(self, stage: int) -> list:
        """Return the stage's parameters with complete gradients, to which no stage will add."""
        others = [q for s, weights in self.p._weights.items() if self.left[s] for q in weights]
        incomplete = set(map(id, [*others, *self.p.tied]))
        return [p for p in self.p._weights[stage] if id(p) not in incomplete]

    def finish(self) -> None:
        """Sum the gradients of tied weights, and wait for all averages and sends."""
        self.p.tied.add_up()
        if self.p.replicas is not None:
            self.averaging.append(average(self.p.tied, self.p.replicas))
        for wait in self.averaging:
            wait()
        self.pipes.finish()


def stage_costs(model, schedule: Schedule, inputs, targets, speeds, *, lengths=None,
                loss=next_token_loss) -> Costs:  # fmt: skip
    """Return the seconds of F, B, I, W and a send of each stage on given hardware, for `play`.

    `speeds` is a SlowMotion (unstretched). Each stage runs here, forward and backward, on one
    microbatch of the batch; pass a separate `model`, because its gradients change. A step begins
    without gradients, as after `zero_grad`, so a stage's first backward adds to no gradient.
    Messages of a pair of ranks queue as in slow motion, and Pipeline asks for them one action
    ahead. Every stage is assumed to get a gradient back, even if a later one detaches it.
    `activation` stays 0.
    """
    m = schedule.microbatches
    entered, part_targets = parcel(inputs[: len(inputs) // m], 0), targets[: len(targets) // m]
    times, flags = {kind: [] for kind in (*KINDS, "send", "first")}, [False]
    for stage, (first, last) in enumerate(cut(model, schedule.stages, lengths)):
        part = model[first:last]
        part.zero_grad()
        end = (loss, part_targets, m) if stage == schedule.stages - 1 else None
        forward = partial(_run_stage, part, stage, end, entered, flags, speeds)
        seconds, _, graph, gradients, leaves = forward()
        times["F"].append(seconds)
        times["first"].append(speeds.seconds(graph.whole, gradients))
        for leaf in leaves:
            leaf.grad = None  # only the gradients of weights add up from the second time on
        _, _, graph, gradients, _ = forward()
        times["B"].append(speeds.seconds(graph.whole, gradients))
        _, output, graph, gradients, _ = forward()
        times["I"].append(speeds.seconds(graph.inputs, gradients))
        times["W"].append(speeds.seconds(graph.weights))
        times["send"].append(speeds.moving("send", 2, speeds.bytes_of(output.tensors)))
        flags = [tensor.requires_grad for tensor in output.tensors]
        entered = Parcel(output.structure, [tensor.detach() for tensor in output.tensors])
    backwards = zip(times["B"], times["first"], times["W"])
    added = [min(whole - first, weights) for whole, first, weights in backwards]
    return Costs(times["F"], times["I"], times["W"], times["send"][:-1], times["B"],
                 link="pair", ahead=1, accumulate=added, in_turn=True)  # fmt: skip


def _run_stage(part, stage: int, end, entered: Parcel, flags, speeds) -> tuple:
    """Run a stage forward once; the last one has `end` = (loss, targets, m) and adds the loss.

    Returns the seconds that it takes, its output, its graph, a gradient for each output that has
    one, and the leaves of its input.
    """
    x, leaves = entering(entered, flags)
    result = []

    def forward():
        y = part(x)
        if end:
            loss, targets, m = end
            y = loss(y, targets) / m
        result.append(parcel(y, stage))

    seconds = speeds.seconds(forward)
    outputs = [tensor for tensor in result[0].tensors if tensor.requires_grad]
    gradients = [torch.ones_like(tensor) for tensor in outputs]
    return seconds, result[0], SplitBackward(outputs, leaves), gradients, leaves
