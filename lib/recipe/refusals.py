"""What a recipe refuses, in a sentence that says why and what to do."""

from torch import nn

from lib.parallel.data import DataParallel, DistributedDataParallel
from lib.parallel.pipeline import Pipeline
from lib.parallel.sharded import FSDP, ShardedDataParallel
from lib.ranks.mesh import Mesh
from lib.recipe.method import ORDER, Method, has

WRAPPERS = (DataParallel, DistributedDataParallel, FSDP, ShardedDataParallel, Pipeline,
            nn.DataParallel, nn.parallel.DistributedDataParallel)  # fmt: skip
REASONS = {  # why a kind comes before those behind it
    "tensor": "it splits matrices of the plain model, and the others take them as they are then.",
    "context": "it changes the attention of the plain model, and the others take it as it is then.",
    "pipeline": "it cuts the plain model into stages, and data parallelism works on the stages "
                "that a rank has then.",
}  # fmt: skip


def no_pipeline(run, methods) -> str:
    """Refuse a method that shares gradients or weights where a pipeline runs microbatches."""
    name = methods[-1].name
    return (
        f"{name} inside a pipeline would send gradients once for each microbatch, not once for "
        "each step, so it is not offered here. Choose ddp or zero1."
        if has(methods, "pipeline")
        else ""
    )


def refusal_of(run, methods) -> str:
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
            advice = "" if first.kind != "data" else (
                '; for replicas of shards give FSDP two axes: fsdp("replicate", "shard")'
            )  # fmt: skip
            return (
                f"{first.name} and {second.name} both make a {first.kind} parallelism. Choose one"
                f"{advice}."
            )
        if ORDER.index(first.kind) > ORDER.index(second.kind):
            return f"{second.name} comes before {first.name}: {REASONS[second.kind]} Swap them."
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
