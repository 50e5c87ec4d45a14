"""What each way to split a sequence runs out of first: heads, memory or bandwidth.

    heads      Megatron's way and Ulysses give each rank whole heads
    memory     what a rank keeps: activations of all layers, and its share of the states of all weights
    bandwidth  the share of a layer's forward in which ranks compute is below `least`

All ways have equally many FLOP on a rank: those of the layer, the masked half of the scores left
out, divided by P. What differs is what is sent, and what of it is exposed:

    megatron   2 all_gathers and 2 reduce_scatters of [B, S, D], all exposed
    ulysses    an all_to_all of q, k, v and one of the result, both exposed
    ring       what ring_step.py takes longer than the scores, in the layout "zigzag"

States (weights, gradients, Adam's moments) are counted with 16 bytes a parameter, divided by P: by
FSDP over the same ranks, or by Megatron's tensor parallelism. Gathered weights are left out.
"""  # noqa: E501

from typing import NamedTuple

from lib.predict.arguments import equal_share, whole
from lib.predict.flops import flops_of_blocks
from lib.predict.sequence import memory, traffic
from lib.predict.sequence.ring_step import Attention, ring_seconds
from lib.predict.sequence.traffic import METHODS
from lib.predict.shape import GPTShape
from lib.predict.tensor import sequence as megatron

STATES = 16  # bytes a parameter: bf16 weight and gradient, and three numbers of fp32


class Limit(NamedTuple):
    """Says what is missing ("heads", "memory", "bandwidth" or ""), and how a rank would fare.

    `bytes` are those that a rank keeps, and `computing` is the share of a layer's forward in which
    it computes; both are 0 where heads are missing.
    """

    missing: str
    bytes: int
    computing: float


def what_runs_out(
    shape: GPTShape, method: str, length: int, ranks: int, speeds, memory_bytes: float, *,
    least: float = 0.8, itemsize: int = 2,
) -> Limit:  # fmt: skip
    """Return what one sample of `length` tokens on `ranks` ranks lacks first, and how it fares.

    `memory_bytes` are those of a device, and `speeds.compute(flop, bytes)` and `speeds.moving(op,
    ranks, bytes)` return seconds. Raises ValueError for another method than "megatron", "ulysses" or
    "ring", and for a length that 2P chunks cannot share equally.
    """  # noqa: E501
    if method not in METHODS:
        raise ValueError(f"No method is called {method!r}. Choose one of {', '.join(METHODS)}.")
    chunks = 2 * whole(ranks, "The number of ranks")
    equal_share(length, chunks, "A sequence has {} tokens", "{} chunks", advice="Pad it first.")
    if not _has_heads(shape, method, ranks):
        return Limit("heads", 0, 0.0)
    if method == "megatron":
        kept = megatron.activations(shape, ranks, 1, length, itemsize)
    else:
        kept = memory.activations(shape, method, ranks, 1, length, itemsize)
    kept += STATES * shape.numel // ranks
    computing = computing_share(shape, method, length, ranks, speeds, itemsize)
    if kept > memory_bytes:
        return Limit("memory", kept, computing)
    return Limit("" if computing >= least else "bandwidth", kept, computing)


def _has_heads(shape: GPTShape, method: str, ranks: int) -> bool:
    """Return whether each rank can have whole heads; a ring does not divide them."""
    if method == "ring":
        return True
    keys = shape.kv_heads  # shared out, or each copied to equally many ranks
    return shape.heads % ranks == 0 and (keys % ranks == 0 or ranks % keys == 0)


def computing_share(
    shape: GPTShape, method: str, length: int, ranks: int, speeds, itemsize: int = 2
) -> float:
    """Return the share of a layer's forward in which a rank computes its matrix products."""
    attention = Attention(1, shape.heads, shape.kv_heads, length, shape.head_size, itemsize)
    scores = 2 * length**2 * shape.width  # of two products, half of them masked
    products = flops_of_blocks(shape, 1, length)[1].forward - 2 * scores
    of_products, of_scores = (speeds.compute(flop / ranks, 0) for flop in (products, scores))
    if method == "ring":
        ring = ring_seconds(attention, ranks, speeds, backward=False, masked=0.5)
        exposed = max(0.0, ring - of_scores)
    elif method == "megatron":
        buffer = length * shape.width * itemsize
        exposed = 2 * sum(
            speeds.moving(op, ranks, buffer) for op in ("all_gather", "reduce_scatter")
        )
    else:
        moves = traffic.of_layer(shape, method, ranks, 1, length, itemsize).forward
        exposed = sum(speeds.moving(move.op, ranks, move.bytes) for move in moves)
    computing = of_products + of_scores
    return computing / (computing + exposed)
