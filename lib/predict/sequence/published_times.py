"""What Megatron's sequence parallelism saves of a layer's time, beside what was published.

    x [B, S, D] -> norms, dropouts and residuals on [B, S/tp, D] instead of [B, S, D]

They hardly compute, so their time is that of their bytes: each kernel reads its inputs once and writes
its results once. With 2 bytes a number and 1 for an entry of a dropout's mask, a number of x takes

    forward    norm 2 + 2;  bias, dropout and residual in one kernel 2 + 2 + 1 + 2
    backward   norm 2 + 2 + 2;  dropout 2 + 1 + 2;  bias 2;  sum of both branches 2 + 2 + 2

twice a layer each. A rank of tp does a tp-th of this instead of all. Both send the same bytes, but in
backward two inputs are gathered again.

Selective recomputation computes the scores, the softmax, its dropout and the product with the values
again in backward. Source: Korthikanti et al. 2022 (arXiv 2205.05198), table 4 and section 4.2.
"""  # noqa: E501

from typing import NamedTuple

from lib.predict.arguments import equal_share
from lib.predict.shape import GPTShape, length_of

FORWARD = 2 * ((2 + 2) + (2 + 2 + 1 + 2))  # bytes for each number of x
BACKWARD = 2 * ((2 + 2 + 2) + (2 + 1 + 2) + 2 + (2 + 2 + 2))

# Milliseconds of one layer, forward and backward. Table 4: 8 ranks of an A100 machine, 4 samples.
TABLE_4 = {
    "tensor parallel": (7.7, 11.9),
    "sequence parallel": (7.2, 11.8),
    "all recomputed": (7.7, 19.5),
    "selective": (7.7, 13.2),
    "both": (7.2, 13.1),
}
SHAPE_22B = GPTShape(51_200, sequence=2048, width=6144, heads=64, layers=48)
RANKS, SAMPLES = 8, 4


class Saved(NamedTuple):
    """Holds the seconds that a layer saves, and what gathering its inputs again may cost."""

    forward: float
    backward: float
    gathered: float  # in backward, unless computation hides it


def saved_by_splitting_tokens(
    shape: GPTShape, ranks: int, batch: int, speeds, sequence: int | None = None
) -> Saved:
    """Return what a layer on `ranks` ranks of tensor parallelism saves with sequence parallelism.

    Raises ValueError for a sequence that the ranks cannot share equally.
    """
    s = length_of(shape, sequence)
    equal_share(s, ranks, "A sequence has {} tokens")
    numbers = batch * s * shape.width
    less = numbers - numbers // ranks
    gathered = 2 * speeds.moving("all_gather", ranks, 2 * numbers)
    return Saved(speeds.compute(0, FORWARD * less), speeds.compute(0, BACKWARD * less), gathered)


def recomputed_scores(
    shape: GPTShape, ranks: int, batch: int, speeds, sequence: int | None = None
) -> float:
    """Return the seconds in which a layer computes its attention again from q, k and v.

    Each kernel takes the time of its products or of its bytes, whichever is longer.
    """
    s = length_of(shape, sequence)
    scores = batch * equal_share(shape.heads, ranks, "A layer has {} heads") * s * s
    product = 2 * scores * shape.head_size
    qkv = 2 * 3 * batch * s * shape.width // ranks  # bytes of q, k and v
    kernels = [
        (product, 2 * qkv // 3 + 2 * scores), (0, (2 + 2) * scores), (0, (2 + 2 + 1) * scores),
        (product, 2 * qkv // 3 + 2 * scores),
    ]  # fmt: skip
    return sum(speeds.compute(flop, nbytes) for flop, nbytes in kernels)
