"""Methods combined on one mesh, in the one order that works.

    run = parallelize(model, mesh(pp=2, dp=2), pipeline("pp", schedule), zero1("dp"))
    optimizer = run.optimizer(torch.optim.AdamW, lr=1e-3)
    loss = run.forward_backward(*run.share(batch))      x [B, ...] -> x [B/dp, ...] on each rank
    optimizer.step()

[Note: the order]
Each method changes what the one before it has made, so the order is not a matter of taste:
1. `pipeline` cuts the plain model into stages. It comes first, because a model that is wrapped is
   no list of blocks any more.
2. `ddp`, `zero1`, `zero2` or `fsdp` shares the batch. It comes last, because it averages the
   gradient of every weight that a rank has then, and gives each rank the same values at the start.
3. The optimizer is made from what the last method has left: stages, shards, or whole weights.
`ORDER` has this order. A new method is a function that returns a Method of a kind in it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import nn

from lib.parallel.data import DataParallel, DistributedDataParallel
from lib.parallel.pipeline import Pipeline
from lib.parallel.sharded import FSDP, ShardedDataParallel, ZeroRedundancyOptimizer
from lib.ranks.agreement import from_first, same_everywhere
from lib.ranks.mesh import Mesh
from lib.single.batches import share
from lib.single.train import next_token_loss

ORDER = ("pipeline", "data")  # the kinds of methods, in the order in which they are applied
WRAPPERS = (DataParallel, DistributedDataParallel, FSDP, ShardedDataParallel, Pipeline,
            nn.DataParallel, nn.parallel.DistributedDataParallel)  # fmt: skip


@dataclass(frozen=True)
class Method:
    """One method of a recipe, and the axes of the mesh along which it works.

    `wrap(run)` makes from `run.model` what computes from then on, and `optimizer(run, optimizer
    class, its arguments)` the optimizer of it. `refuse(run, methods)` returns why the method cannot
    work here, in a sentence, or "".
    """

    name: str
    kind: str
    axes: tuple[str, ...]
    wrap: Callable
    optimizer: Callable
    refuse: Callable = lambda run, methods: ""


class Parallel:
    """A model that methods have spread over a mesh; `parallelize` makes it.

    `model` is what the last method made, for example a Pipeline or an FSDP, and `data` the Axis
    along which the batch is shared, None where every rank takes the whole batch.
    """

    def __init__(self, model, mesh: Mesh, methods, loss):
        self.model, self.mesh, self.loss = model, mesh, loss
        if refusal := _refusal(self, methods):
            raise ValueError(refusal)
        axes = [method.axes for method in methods if method.kind == "data"]
        self.data = mesh[axes[0]] if axes else None
        for method in methods:
            self.model = method.wrap(self)
        self._make_optimizer = methods[-1].optimizer

    def optimizer(self, optimizer_class, **defaults) -> torch.optim.Optimizer:
        """Return the optimizer of what this rank keeps: `run.optimizer(torch.optim.SGD, lr=0.1)`.

        Under ZeRO it is a ZeroRedundancyOptimizer around one of this class.
        """
        return self._make_optimizer(self, optimizer_class, defaults)

    def share(self, batch):
        """Return this rank's share of a whole batch: [B, ...] -> [B/dp, ...].

        Raises ValueError where the ranks cannot share it equally.
        """
        return batch if self.data is None else share(batch, self.data.rank, self.data.size)

    def forward_backward(self, inputs, targets) -> torch.Tensor:
        """Run forward and backward of this rank's share; return the mean loss of the share: [].

        Gradients add up, so call `zero_grad` of the optimizer before. All ranks of one pipeline
        pass the same share, and all of them get its loss.
        """
        if isinstance(self.model, Pipeline):
            return self.model.step(inputs, targets)
        loss = self.loss(self.model(inputs), targets)
        loss.backward()
        return loss.detach()


def parallelize(model, mesh: Mesh, *methods: Method, loss=next_token_loss) -> Parallel:
    """Spread a plain model over a mesh by these methods, given in the order of `ORDER`.

    All ranks begin with the weights and buffers of the first rank. `loss(outputs, targets)` is a
    mean over its samples. Raises ValueError, before anything is sent, for an order, a mesh or a
    combination that does not work, and for a model that is wrapped already.
    """
    return Parallel(model, mesh, methods, loss)


# The methods.


def pipeline(axis: str, schedule, lengths=None) -> Method:
    """Cut the model into the stages of a schedule, one rank of `axis` for each of its rows."""

    def wrap(run):
        model, group, replicas = run.model, run.mesh[axis].group, run.data and run.data.group
        stages = Pipeline(model, schedule, group, lengths=lengths, loss=run.loss, replicas=replicas)
        same_everywhere(model, None)  # a mesh has all ranks of the world
        for tensor in (*model.parameters(), *model.buffers()):
            from_first(tensor, None)
        return stages

    def refuse(run, methods):
        if not (hasattr(run.model, "__len__") and hasattr(run.model, "__getitem__")):
            return (
                f"A pipeline cuts a model into slices, but a {type(run.model).__name__} has none. "
                "Build the model as a Chain or an nn.Sequential of blocks."
            )
        if len(schedule) != (ranks := run.mesh.axes[axis]):
            return (
                f"{schedule!r} is for {len(schedule)} ranks, but axis {axis!r} of the mesh of "
                f"{run.mesh!r} has {ranks}. Make a schedule for {ranks} ranks."
            )
        return ""

    return Method("A pipeline", "pipeline", (axis,), wrap, _plain, refuse)


def ddp(axis: str, **options) -> Method:
    """Share the batch along an axis and average gradients, as DistributedDataParallel does.

    `options` are its arguments. With a pipeline there are none: it averages its stages itself.
    """

    def wrap(run):
        if isinstance(run.model, Pipeline):
            return run.model
        return DistributedDataParallel(run.model, run.data.group, **options)

    def refuse(run, methods):
        if options and methods[0].kind == "pipeline":
            return (
                f"Beside a pipeline, data parallelism takes no {next(iter(options))}, because the "
                "pipeline averages the gradients of its stages itself. Leave it out."
            )
        return ""

    return Method("DDP", "data", (axis,), wrap, _plain, refuse)


def zero1(axis: str, **options) -> Method:
    """Do as `ddp` does, and share the optimizer's states along the axis (ZeRO-1)."""

    def optimizer(run, optimizer_class, defaults):
        parameters, group = run.model.parameters(), run.data.group
        return ZeroRedundancyOptimizer(parameters, optimizer_class, group, **defaults)

    return replace(ddp(axis, **options), name="ZeRO-1", optimizer=optimizer)


def zero2(axis: str, **options) -> Method:
    """Share the batch, the gradients and the optimizer's states along an axis (ZeRO-2).

    `options` are arguments of ShardedDataParallel.
    """

    def wrap(run):
        return ShardedDataParallel(run.model, run.data.group, **options)

    def optimizer(run, optimizer_class, defaults):
        return ZeroRedundancyOptimizer(run.model, optimizer_class, **defaults)

    return Method("ZeRO-2", "data", (axis,), wrap, optimizer, _no_pipeline)


def fsdp(*axes: str, **options) -> Method:
    """Share the batch and shard everything along an axis, as FSDP does; `options` are its own.

    With two axes the model is replicated along the first and sharded along the second. With
    `offload=HostMemory()` the shards and the optimizer are the host's.
    """

    def wrap(run):
        return FSDP(run.model, run.mesh if len(axes) == 2 else run.data.group, **options)

    def refuse(run, methods):
        if len(axes) not in (1, 2):
            return (
                f"FSDP was given {len(axes)} axes. Give one, along which it shards, or two: first "
                "the one along which it replicates."
            )
        if run.mesh.ordered(axes) != axes:
            return (
                f"FSDP is to replicate along {axes[0]!r} and shard along {axes[1]!r}, but the mesh "
                f"of {run.mesh!r} has them the other way round. Put the axis of the shards last: "
                "they are exchanged most, and neighbouring ranks are usually on the same machine."
            )
        return _no_pipeline(run, methods)

    return Method("FSDP", "data", axes, wrap, _plain, refuse)


def _plain(run, optimizer_class, defaults):
    return optimizer_class(run.model.parameters(), **defaults)


# What does not work.


def _no_pipeline(run, methods) -> str:
    name = methods[-1].name
    return (
        f"{name} inside a pipeline would send gradients once for each microbatch, not once for "
        "each step, so it is not offered here. Choose ddp or zero1."
        if methods[0].kind == "pipeline"
        else ""
    )


def _refusal(run: Parallel, methods) -> str:
    """Return why these methods cannot be combined on this model and mesh; "" where they can."""
    if not isinstance(run.mesh, Mesh) or not all(isinstance(one, Method) for one in methods):
        return 'parallelize takes a model, a mesh and methods: mesh(dp=4), then ddp("dp").'
    if not methods:
        return 'A recipe needs at least one method, for example ddp("dp").'
    parts = run.model.modules() if isinstance(run.model, nn.Module) else [run.model]
    if wrapped := [part for part in parts if isinstance(part, WRAPPERS)]:
        return (
            f"The model has a {type(wrapped[0]).__name__} in it already. A recipe applies all "
            "methods itself, in their order, so give it the plain model."
        )
    refusal = _order(methods) or _axes(run.mesh, methods)
    return refusal or next(filter(None, (one.refuse(run, methods) for one in methods)), "")


def _order(methods) -> str:
    """Return what is wrong with the order: one method of each kind, in the order of ORDER."""
    for first, second in zip(methods, methods[1:]):
        if first.kind == second.kind:
            return (
                f"{first.name} and {second.name} both make a {first.kind} parallelism. Choose one; "
                'for replicas of shards give FSDP two axes: fsdp("replicate", "shard").'
            )
        if ORDER.index(first.kind) > ORDER.index(second.kind):
            return (
                f"{second.name} comes before {first.name}: it cuts the plain model into stages, "
                "and data parallelism works on the stages that a rank has then. Swap them."
            )
    return ""


def _axes(mesh: Mesh, methods) -> str:
    """Return what is wrong with the axes: each axis of the mesh belongs to one method."""
    users: dict[str, str] = {}
    for method in methods:
        for axis in method.axes:
            if axis not in mesh.axes:
                return (
                    f"There is no axis {axis!r} for {method.name}: the mesh of {mesh!r} has "
                    f"{', '.join(mesh.axes)}. Name one of these."
                )
            if axis in users:
                return (
                    f"Axis {axis!r} is asked to serve {users[axis]} and {method.name}. Each needs "
                    "an axis of its own, because ranks of one axis can share only one thing."
                )
            users[axis] = method.name
    unused = [axis for axis in mesh.axes if axis not in users]
    return (
        f"No method uses axis {unused[0]!r} of the mesh of {mesh!r}, so its ranks would repeat one "
        "another's work. Add a method for it, or leave it out of the mesh."
        if unused
        else ""
    )
