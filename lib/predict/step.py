"""The pieces of a training step: the operations of each block, forward, backward and the update.

    GPT  [B, S] -> Embedding -> layers × Block -> Head -> [B, S, V]
    MLP  [B, I] -> layers × (linear, ReLU; the last without) -> [B, O]

[Note: one model of time]
The operations are those that `lib/single/models.py` performs on its plain device, in their order,
with the FLOP and the bytes that slow motion counts for each (lib/ranks/slow/roofline.py). The time
of a pass is the sum over its operations, and of each operation the longer side of its roofline.
Every prediction of a step takes its times from here: data parallelism by devices and by ranks, the
gradients that fill buckets, and the stages of a pipeline. A test compares the operations with those
that PyTorch performs, one by one. The loss is not among them.

PyTorch hands out the gradients of a layer (of its input, its weight, its bias) together, after it
has computed the last of them. So the weight's gradient is ready after both matrix products.
"""

from collections.abc import Iterable

from lib.predict.arguments import whole
from lib.predict.operations import Operation, Passes, gpt, mlp, sized
from lib.predict.shape import GPTShape, MLPShape, ModelShape, length_of


def passes(
    shape: ModelShape, batch: int, sequence: int | None = None, itemsize: int = 4
) -> list[Passes]:
    """Return the operations of each block, from the first on, for `batch` samples.

    Backward runs through the blocks from the last to the first. Each sample of a GPT has `sequence`
    tokens, by default the longest that the shape allows.
    """
    batch, itemsize = whole(batch, "batch"), whole(itemsize, "itemsize")
    if isinstance(shape, MLPShape):
        blocks = mlp(shape, batch)
    elif isinstance(shape, GPTShape):
        blocks = gpt(shape, batch, length_of(shape, sequence), itemsize)
    else:
        raise ValueError(f"The operations of a {type(shape).__name__} are not known here.")
    return [Passes(*(sized(ops, n, itemsize) for ops in block)) for n, block in enumerate(blocks)]


def forward(shape: ModelShape, batch: int, sequence=None, itemsize: int = 4) -> list[Operation]:
    """Return the operations of the forward pass of the whole model."""
    return [op for block in passes(shape, batch, sequence, itemsize) for op in block.forward]


def backward(shape: ModelShape, batch: int, sequence=None, itemsize: int = 4) -> list[Operation]:
    """Return the operations of the backward pass of the whole model."""
    blocks = passes(shape, batch, sequence, itemsize)
    return [op for block in reversed(blocks) for op in block.backward]


def averaged_backward(
    shape: ModelShape, batch: int, sequence=None, itemsize: int = 4
) -> list[Operation]:
    """Return the operations of a backward pass whose gradients are averaged over ranks.

    As soon as a gradient is complete, it is read, divided by the number of ranks and written into
    its bucket; only then is it ready to be sent.
    """
    numels, operations = {p.name: p.numel for p in shape.parameters}, []
    for op in backward(shape, batch, sequence, itemsize):
        operations.append(op._replace(ready=()))
        for name in op.ready:
            operations.append(Operation("mul", 0, 2 * numels[name] * itemsize, (name,)))
    return operations


def update(shape: ModelShape, itemsize: int = 4) -> list[Operation]:
    """Return the operations of plain SGD, which reads weight and gradient and writes the weight."""
    itemsize = whole(itemsize, "itemsize")
    return [Operation("add", 0, 3 * p.numel * itemsize) for p in shape.parameters]


def seconds(operations: Iterable[Operation], speeds) -> float:
    """Return the seconds of operations that run one after the other.

    `speeds.compute(flop, bytes)` returns the seconds of one.
    """
    return sum(speeds.compute(op.flop, op.bytes) for op in operations)


def arrivals(operations: Iterable[Operation]) -> list[str]:
    """Return the names of parameters in the order in which backward completes their gradients."""
    return [name for op in operations for name in op.ready]


def gradient_seconds(
    shape: ModelShape, batch: int, speeds, sequence: int | None = None, itemsize: int = 4, *,
    averaged: bool = False,
) -> list[float]:  # fmt: skip
    """Return the seconds of backward for each of `shape.parameters`, in their order.

    With `averaged` each gradient is moved into its bucket before it is ready. The seconds of a
    gradient run from the gradient that is ready before it (or from the beginning of backward) until
    it is ready itself; gradients that one operation completes together take equal parts. What
    follows the last gradient, if anything, counts as the last one's.
    """
    taken, since, last = dict.fromkeys((p.name for p in shape.parameters), 0.0), 0.0, ()
    operations = averaged_backward if averaged else backward
    for op in operations(shape, batch, sequence, itemsize):
        since += speeds.compute(op.flop, op.bytes)
        if op.ready:
            for name in op.ready:
                taken[name] = since / len(op.ready)
            since, last = 0.0, op.ready
    for name in last:
        taken[name] += since / len(last)
    return list(taken.values())
