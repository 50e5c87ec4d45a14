"""Seconds and bytes of a training step in one number format beside another, from shapes alone.

[Note: what becomes faster]
A product becomes faster with the peak of its format, and everything else with the bytes of its
numbers. In mixed precision, norms and softmax still read and write fp32, so their time stays as it
is; this is why a step in a format of half the bytes and twice the peak is not twice as fast. In
fp8 only the products of linear layers are in fp8. All other operations, attention's products among
them, are those of bf16, and the casts to fp8 are not counted.

The times are rooflines: every operation reaches the peak of its format or the bandwidth of the
memory, and the launch of an operation takes no time.

[Note: the update]
AdamW reads weight, gradient and two moments, and writes all but the gradient: 7 numbers of 4 bytes.
In mixed precision the gradient has 2 bytes, and the weight is written twice, in 4 and in 2 bytes.
Both are 28 bytes a parameter.
"""

from typing import NamedTuple

from lib.predict import step
from lib.predict.arguments import whole
from lib.predict.collectives.formulas import collective
from lib.predict.operations import Operation
from lib.predict.roofline import Speeds, speeds
from lib.predict.shape import ModelShape

# Under autocast these have fp32 on both sides.
IN_FP32 = {
    "native_layer_norm", "native_layer_norm_backward", "_safe_softmax", "_softmax_backward_data",
}  # fmt: skip
LINEAR = {"mm", "addmm"}
UPDATE_BYTES = 28  # for each parameter


class Precision(NamedTuple):
    """Says which peak a linear layer's products and all others have, and the bytes of a number."""

    linear: str
    products: str
    itemsize: int


PRECISIONS = {
    "fp32": Precision("fp32", "fp32", 4),
    "tf32": Precision("tf32", "tf32", 4),
    "fp16": Precision("fp16", "fp16", 2),
    "bf16": Precision("bf16", "bf16", 2),
    "fp8": Precision("fp8", "bf16", 2),
}


class Cost(NamedTuple):
    """Holds the seconds of a step's parts, its memory traffic, and what a rank sends, in bytes."""

    forward: float
    backward: float
    update: float
    exchange: float
    moved: int
    sent: float

    @property
    def seconds(self) -> float:
        """Return the seconds of the step, as if nothing hid the exchange."""
        return self.forward + self.backward + self.update + self.exchange


def of_step(
    shape: ModelShape, batch: int, gpu: str, precision: str = "bf16", *,
    sequence: int | None = None, ranks: int = 1, link: str | None = None, microbatches: int = 1,
) -> Cost:  # fmt: skip
    """Predict a step of AdamW with `microbatches` times `batch` samples on each of `ranks` GPUs.

    Gradients are summed over the ranks by one all_reduce in the format's bytes. `link` is by
    default the GPU's own. Raises ValueError for a precision that is not known, or that the GPU does
    not have.
    """
    if precision not in PRECISIONS:
        raise ValueError(
            f"No precision is called {precision!r}. Choose one of {', '.join(PRECISIONS)}."
        )
    kind, times = PRECISIONS[precision], whole(microbatches, "microbatches")
    linear, others = (speeds(gpu, link, dtype) for dtype in (kind.linear, kind.products))
    passes = [
        operations(shape, batch, kind.itemsize, sequence, backward=way) for way in (False, True)
    ]
    forward, backward = (times * _seconds(part, linear, others) for part in passes)
    updated = UPDATE_BYTES * shape.numel
    moved = times * sum(op.bytes for part in passes for op in part) + updated
    gradients = shape.nbytes(kind.itemsize)
    return Cost(
        forward, backward, others.compute(0, updated),
        others.moving("all_reduce", ranks, gradients), moved,
        collective("all_reduce", ranks, gradients).bytes,
    )  # fmt: skip


def operations(
    shape: ModelShape, batch: int, itemsize: int, sequence: int | None = None, *,
    backward: bool = False,
) -> list[Operation]:  # fmt: skip
    """Return the operations of a pass, in which those that stay in fp32 have its bytes."""
    of_pass = step.backward if backward else step.forward
    small = of_pass(shape, batch, sequence, itemsize)
    wide = of_pass(shape, batch, sequence, 4)
    return [b if a.name in IN_FP32 else a for a, b in zip(small, wide, strict=True)]


def _seconds(operations: list[Operation], linear: Speeds, others: Speeds) -> float:
    """Return the seconds of operations, those of linear layers at a peak of their own."""
    return sum(
        (linear if op.name in LINEAR else others).compute(op.flop, op.bytes) for op in operations
    )
