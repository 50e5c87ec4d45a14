"""What each way to split a sequence runs out of first: heads, memory or bandwidth.

    heads      Megatron's way and Ulysses give each rank whole heads
    memory     what a rank keeps: activations, and its share of the states of all weights
    bandwidth  the share of a layer's forward in which ranks compute is below `least`

All ways have equally many FLOP on a rank: those of the layer, the masked half of the scores left
out, divided by P. What differs is what is sent, and what of it is exposed:

    megatron   2 all_gathers and 2 reduce_scatters of [B, S, D], all exposed
    ulysses    an all_to_all of q, k, v and one of the result, both exposed
    ring       what ring_step.py takes longer than the scores, in the layout "zigzag"
    both       Ulysses over the ranks of a node, and a ring over nodes for the heads that each has

Where `speeds` has several nodes, what passes between them takes the time of the link between nodes; a
ring is as slow as its slowest link.

[Note: memory]
States (weights, gradients, Adam's moments) are counted with 16 bytes a parameter, divided by P: by
FSDP over the same ranks, or by Megatron's tensor parallelism. Gathered weights are left out. With
`recompute` a rank keeps the input of each layer, S/P tokens of it, and what is largest beside them:
what one layer keeps while it runs again, or the logits and as many numbers of the loss. Without it a
rank keeps the activations of all layers, and logits and loss as well. A `gated` MLP has two matrices to
its hidden layer; it adds D·F weights, and 2·F numbers a token: what the second one gives, and the
product of both.
"""  # noqa: E501

from dataclasses import replace
from typing import NamedTuple

from lib.predict.arguments import equal_share, whole
from lib.predict.flops import flops_of_blocks
from lib.predict.roofline import Speeds
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


class _Case(NamedTuple):
    """Holds one question: a model, how its sequence is split, and over which ranks."""

    shape: GPTShape
    method: str
    length: int
    ranks: int
    itemsize: int
    gated: bool
    inner: int  # ranks of Ulysses inside a ring, 1 where there is no such ring


def what_runs_out(
    shape: GPTShape, method: str, length: int, ranks: int, speeds, memory_bytes: float, *,
    least: float = 0.8, itemsize: int = 2, gated: bool = False, recompute: bool = False,
) -> Limit:  # fmt: skip
    """Return what one sample of `length` tokens on `ranks` ranks lacks first, and how it fares.

    `memory_bytes` are those of a device, and `speeds` is a Roofline. Raises ValueError for another
    method than "megatron", "ulysses", "ring" or "both", for the last where speeds have no nodes,
    and for a length that 2P chunks cannot share equally.
    """
    it = _case(shape, method, length, ranks, speeds, itemsize, gated)
    chunks = 2 * whole(ranks, "The number of ranks")
    equal_share(length, chunks, "A sequence has {} tokens", "{} chunks", advice="Pad it first.")
    if not _has_heads(it):
        return Limit("heads", 0, 0.0)
    kept = _kept(it, recompute)
    computing = _computing_share(it, speeds)
    if kept > memory_bytes:
        return Limit("memory", kept, computing)
    return Limit("" if computing >= least else "bandwidth", kept, computing)


def computing_share(
    shape: GPTShape, method: str, length: int, ranks: int, speeds, itemsize: int = 2, *,
    gated: bool = False,
) -> float:  # fmt: skip
    """Return the share of a layer's forward in which a rank computes its matrix products."""
    return _computing_share(_case(shape, method, length, ranks, speeds, itemsize, gated), speeds)


def _case(shape, method, length, ranks, speeds, itemsize, gated) -> _Case:
    """Return the question, with the ranks of a node as inner ranks where methods are combined."""
    known = (*METHODS, "both")
    if method not in known:
        raise ValueError(f"No method is called {method!r}. Choose one of {', '.join(known)}.")
    inner = 1
    if method == "both":
        if getattr(speeds, "nodes", None) is None:
            raise ValueError(
                "Ulysses inside a ring needs several nodes. Give speeds(..., node=8, between=...)."
            )
        inner = min(whole(ranks, "The number of ranks"), speeds.nodes.ranks)
        equal_share(ranks, inner, "There are {} ranks", "nodes of {}")
    return _Case(shape, method, length, ranks, itemsize, gated, inner)


def _has_heads(it: _Case) -> bool:
    """Return whether each rank can have whole heads; a ring does not divide them."""
    sharers = it.inner if it.method in ("ring", "both") else it.ranks
    keys = it.shape.kv_heads  # shared out, or each copied to equally many ranks
    return it.shape.heads % sharers == 0 and (keys % sharers == 0 or sharers % keys == 0)


def _kept(it: _Case, recompute: bool) -> int:
    """Return the bytes that a rank keeps when it has the most."""
    shape, tokens = it.shape, it.length // it.ranks
    layers = 1 if recompute else shape.layers
    weights = shape.numel + shape.layers * shape.width * shape.hidden * it.gated
    states = STATES * weights // it.ranks
    kept = _activations(it, replace(shape, layers=layers))
    kept += 2 * layers * tokens * shape.hidden * it.itemsize * it.gated
    outputs = 2 * tokens * shape.vocabulary * it.itemsize
    if not recompute:
        return states + kept + outputs
    return states + shape.layers * tokens * shape.width * it.itemsize + max(kept, outputs)


def _activations(it: _Case, shape: GPTShape) -> int:
    """Return what autograd keeps on a rank of a GPT that has one matrix to its hidden layer."""
    if it.method == "megatron":
        return megatron.activations(shape, it.ranks, 1, it.length, it.itemsize)
    method = "ring" if it.method == "both" else it.method
    outer = it.ranks // it.inner
    return memory.activations(shape, method, outer, 1, it.length, it.itemsize, inner=it.inner)


def _computing_share(it: _Case, speeds) -> float:
    shape, length = it.shape, it.length
    scores = 2 * length**2 * shape.width  # of two products, half of them masked
    products = flops_of_blocks(shape, 1, length)[1].forward - 2 * scores
    products += 2 * length * shape.width * shape.hidden * it.gated
    of_products, of_scores = (speeds.compute(flop / it.ranks, 0) for flop in (products, scores))
    computing = of_products + of_scores
    return computing / (computing + _exposed(it, speeds, of_scores))


def _exposed(it: _Case, speeds, of_scores: float) -> float:
    """Return the seconds of a layer's forward in which a rank waits for what is sent."""
    shape, members = it.shape, range(it.ranks)
    if it.method == "megatron":
        buffer = it.length * shape.width * it.itemsize
        ops = "all_gather", "reduce_scatter"
        return 2 * sum(speeds.moving(op, it.ranks, buffer, members) for op in ops)
    if it.method == "ring":
        return _of_ring(it, it.ranks, shape.heads, shape.kv_heads, speeds, of_scores)
    if it.method == "ulysses" or it.inner == it.ranks:
        return _of_swaps(it, it.ranks, it.length, speeds)
    keys = traffic.key_heads_sent(shape.heads, shape.kv_heads, it.inner) // it.inner
    outer = it.ranks // it.inner
    ring = _of_ring(it, outer, shape.heads // it.inner, keys, _between(speeds), of_scores)
    return ring + _of_swaps(it, it.inner, it.length // outer, speeds)


def _of_ring(it: _Case, ranks: int, heads: int, keys: int, speeds, of_scores: float) -> float:
    """Return what a ring of so many heads takes longer than its scores."""
    nodes = getattr(speeds, "nodes", None)
    slowest = _between(speeds) if nodes is not None and ranks > nodes.ranks else speeds
    attention = Attention(1, heads, keys, it.length, it.shape.head_size, it.itemsize)
    took = ring_seconds(attention, ranks, slowest, backward=False, masked=0.5)
    return max(0.0, took - of_scores)


def _of_swaps(it: _Case, ranks: int, length: int, speeds) -> float:
    """Return the seconds of Ulysses' two all_to_alls of `length` tokens on so many ranks."""
    moves = traffic.of_layer(it.shape, "ulysses", ranks, 1, length, it.itemsize).forward
    return sum(speeds.moving(move.op, ranks, move.bytes, range(ranks)) for move in moves)


def _between(speeds) -> Speeds:
    """Return the speeds with the link between nodes in place of the one inside."""
    alpha, bandwidth = speeds.nodes.alpha, speeds.nodes.bandwidth
    return replace(speeds, alpha=alpha, bandwidth=bandwidth, nodes=None)
