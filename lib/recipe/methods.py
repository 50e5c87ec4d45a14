"""The methods of a recipe: each says how it changes a model, and what it cannot work beside."""

import math
from dataclasses import replace
from functools import partial

from torch import nn

from lib.parallel.data import DistributedDataParallel
from lib.parallel.grid import grid_cross_entropy, grid_parallel
from lib.parallel.pipeline import Pipeline
from lib.parallel.sequence import context_parallel
from lib.parallel.sharded import FSDP, ShardedDataParallel, ZeroRedundancyOptimizer
from lib.parallel.tensor import (
    sequence_parallel,
    tensor_parallel,
    vocab_parallel_cross_entropy,
)
from lib.parallel.tensor.plan import assignments
from lib.parallel.tensor.vocabulary import VocabParallelLinear
from lib.predict.tensor.grids import KINDS
from lib.recipe.method import Method, has
from lib.recipe.refusals import no_pipeline
from lib.single.models import GPT, Attention

FULLY_SHARDED = "FSDP"
BLOCKS = {"*.attention": "attention", "*.mlp": "mlp"}  # of a plain GPT, without its vocabulary


def tensor(axis: str, plan=None, *, sequence: bool = False) -> Method:
    """Split the matrices of the model along an axis, as `tensor_parallel` does with this plan.

    With `sequence` the tokens between the matrices are split too, as `sequence_parallel` does.
    Beside context parallelism the vocabulary of a plain GPT stays whole.
    """

    def wrap(run):
        group = run.mesh[axis].group
        whole_vocabulary = plan is None and has(run.methods, "context")
        if sequence:
            model = sequence_parallel(run.model, group)
        else:
            model = tensor_parallel(run.model, group, BLOCKS if whole_vocabulary else plan)
        heads = [part for part in model.modules() if isinstance(part, VocabParallelLinear)]
        if not all(head.gather_output for head in heads):
            run.take_loss(partial(vocab_parallel_cross_entropy, group=group))
        return model

    def refuse(run, methods):
        if sequence and plan is not None:
            return (
                "Sequence parallelism takes no plan, because it changes what lies between the "
                "matrices of a plain GPT. Leave out one of both."
            )
        if sequence and has(methods, "context"):
            return (
                "Sequence parallelism and context parallelism both split the tokens, and only one "
                "of them can say which tokens a rank has. Choose one."
            )
        kinds = {} if plan is None else assignments(run.model, plan)
        heads = [run.model.get_submodule(n) for n, kind in kinds.items() if kind == "vocabulary"]
        if has(methods, "context") and any(isinstance(head, nn.Linear) for head in heads):
            return (
                "Beside context parallelism each rank needs whole rows of logits for its tokens, "
                'and this plan splits them. Name the head "gathered vocabulary", or leave it out.'
            )
        if methods[-1].name == FULLY_SHARDED and (sequence or "summed" in kinds.values()):
            return (
                "FSDP keeps flat shards in the place of weights, so the hooks that sum the "
                "gradients of replicated weights over the axis of tensor parallelism would never "
                "run. Choose ddp, zero1 or zero2."
            )
        return ""

    return Method("Tensor parallelism", "tensor", (axis,), wrap, _plain, refuse)


def grid(*axes: str, **options) -> Method:
    """Put a plain GPT onto a grid of ranks, as `grid_parallel` does; `options` are its own.

    The axes say which kind: row and column (2D), depth, row and column (2.5D), or x, y and z (3D).
    """
    kind = {names: kind for kind, names in KINDS.items()}.get(axes)

    def wrap(run):
        run.take_loss(partial(grid_cross_entropy, mesh=run.mesh, kind=kind))
        return grid_parallel(run.model, run.mesh, kind, **options)

    def refuse(run, methods):
        if kind is None:
            known = "; ".join(", ".join(names) for names in KINDS.values())
            return f"No grid has the axes {', '.join(axes)}. Give those of one kind: {known}."
        if not isinstance(run.model, GPT):
            return (
                f"A grid takes the plain GPT of lib.single, not a {type(run.model).__name__}. "
                'Choose tensor("tp", plan) for other models.'
            )
        for method in methods[1:]:
            if method.kind != "data" or method.name == FULLY_SHARDED:
                return (
                    f"{method.name} of a model whose tensors are tiles of a grid is not offered. "
                    "Choose ddp, zero1 or zero2 beside a grid."
                )
        return ""

    return Method("A grid", "tensor", axes, wrap, _plain, refuse)


def context(axis: str, method: str = "ring", layout: str = "zigzag", *, inner="") -> Method:
    """Split the tokens of each sample along an axis, as `context_parallel` does.

    `share` gives tokens and labels of a rank, and the loss is the mean over all ranks' labels, of
    replicas too. With `inner`, a second axis, Ulysses works along it inside a ring.
    """
    axes = (axis, inner) if inner else (axis,)

    def wrap(run):
        sums = all(one.name != FULLY_SHARDED for one in run.methods)  # FSDP averages by itself
        more = {"inner": run.mesh[inner].group} if inner else {}
        if run.data is not None:
            more["replicas"] = run.data.group
        model = context_parallel(
            run.model, run.mesh[axis].group, method, layout, sum_gradients=sums, **more
        )
        run.context = model.context
        run.take_loss(model.context.loss)
        return model

    def refuse(run, methods):
        if has(methods, "pipeline"):
            return (
                "Context parallelism sums the gradients of its ranks whenever a backward ends, and "
                "a pipeline has one for each microbatch, so this is not offered here. Leave out "
                "one of both."
            )
        if not any(isinstance(part, Attention) for part in run.model.modules()):
            return (
                f"A {type(run.model).__name__} has no attention of lib.single.models whose tokens "
                "could be split. Give a GPT."
            )
        return ""

    return Method("Context parallelism", "context", axes, wrap, _plain, refuse)


def pipeline(axis: str, schedule, lengths=None) -> Method:
    """Cut the model into the stages of a schedule, one rank of `axis` for each of its rows."""

    def wrap(run):
        group, replicas = run.mesh[axis].group, run.data and run.data.group
        return Pipeline(
            run.model, schedule, group, lengths=lengths, loss=run.loss, replicas=replicas
        )

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
        if options and has(methods, "pipeline"):
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

    return Method("ZeRO-2", "data", (axis,), wrap, optimizer, no_pipeline)


def fsdp(*axes: str, **options) -> Method:
    """Share the batch and shard everything along an axis, as FSDP does; `options` are its own.

    With two axes the model is replicated along the first and sharded along the second. With
    `offload=HostMemory()` the shards and the optimizer are the host's.
    """

    def wrap(run):
        if run.context is None:
            return FSDP(run.model, run.mesh if len(axes) == 2 else run.data.group, **options)
        # Ranks that share a sequence have the same weights, so they shard them too. The gradients
        # of its ranks are parts of a sum, and FSDP averages over all.
        (tokens,) = (method.axes for method in run.methods if method.kind == "context")
        run.loss_factor = math.prod(run.mesh[axis].size for axis in tokens)
        return FSDP(run.model, run.mesh[run.mesh.ordered((*axes, *tokens))].group, **options)

    def refuse(run, methods):
        if len(axes) not in (1, 2):
            return (
                f"FSDP was given {len(axes)} axes. Give one, along which it shards, or two: first "
                "the one along which it replicates."
            )
        if len(axes) == 2 and has(methods, "context"):
            return (
                "Beside context parallelism FSDP shards over both axes together, and does not "
                "replicate. Give it one axis."
            )
        if len(axes) == 2 and has(methods, "tensor"):
            return (
                "Beside tensor parallelism FSDP takes one axis, because replicas and shards would "
                "have to be the whole mesh. Leave out the first of the two."
            )
        if run.mesh.ordered(axes) != axes:
            return (
                f"FSDP is to replicate along {axes[0]!r} and shard along {axes[1]!r}, but the mesh "
                f"of {run.mesh!r} has them the other way round. Put the axis of the shards last: "
                "they are exchanged most, and neighbouring ranks are usually on the same machine."
            )
        return no_pipeline(run, methods)

    return Method(FULLY_SHARDED, "data", axes, wrap, _plain, refuse)


def _plain(run, optimizer_class, defaults):
    return optimizer_class(run.model.parameters(), **defaults)
