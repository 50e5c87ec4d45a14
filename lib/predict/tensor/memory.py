"""What a rank of tensor parallelism keeps of a GPT: bytes by kind, from the model's shape.

For each token a layer keeps 4 D numbers that every rank has whole (the inputs of both norms, of qkv
and of up), and the share of everything between: q, k, v, the result of attention, the hidden layer
before and after its GELU. So the more ranks, the more of a rank's activations are copies.

Dropout keeps its mask, a number for each of its inputs (on a GPU a byte, which is not counted
here): 2 D in a layer and D after the embedding, whole on every rank. Attention with dropout is not
one kernel: a rank keeps q, k and v of its heads, for each head and pair of tokens the probability,
its mask and their product, and once for each pair of tokens whether it is masked.

Source: Korthikanti et al. 2022 (arXiv 2205.05198), section 4.1, where a layer keeps, in 2 bytes a
number and with dropout, sbh·(10 + 24/t + 5as/(ht)) bytes.
"""

from lib.predict.arguments import whole
from lib.predict.memory import STATES, Held
from lib.predict.shape import GPTShape, length_of
from lib.predict.tensor.shapes import parameters_of_a_rank, share_of


def held(
    shape: GPTShape, ranks: int, batch: int, sequence: int | None = None,
    optimizer: str = "adamw", itemsize: int = 4, *, vocabulary: bool = True,
) -> Held:  # fmt: skip
    """Return the bytes of a rank at the end of forward, with its loss, by kind."""
    mine = parameters_of_a_rank(shape, ranks, vocabulary=vocabulary)
    weights = sum(p.numel for p in mine) * itemsize
    counters = 4 * len(mine) if optimizer.startswith("adam") else 0
    kept = activations(shape, ranks, batch, sequence, itemsize, vocabulary=vocabulary)
    kept += loss(shape, ranks, batch, sequence, itemsize, vocabulary=vocabulary)
    return Held(weights, weights, STATES[optimizer] * weights + counters, kept)


def activations(
    shape: GPTShape, ranks: int, batch: int, sequence: int | None = None, itemsize: int = 4, *,
    vocabulary: bool = True,
) -> int:  # fmt: skip
    """Return the bytes that autograd keeps on each rank after forward, without the loss.

    Dropout keeps what it keeps on the CPU.
    """
    share, d = share_of(shape, ranks, vocabulary=vocabulary), shape.width
    s, keys = length_of(shape, sequence), share.kv_heads * shape.head_size
    queries = share.heads * shape.head_size
    turned = shape.positions == "rotary"
    copied = 1 < share.kv_heads < share.heads
    tokens = whole(batch, "batch") * s
    if shape.dropout:
        # With one sample q is used where it lies, beside k and v; otherwise it is copied. So it is
        # with one token, where heads that share a key are not evenly spaced over all samples.
        alone = 1 in (batch, share.heads) or (s == 1 and share.kv_heads == share.heads)
        in_place = alone and not (turned or copied)
        between = 4 * queries + 3 * share.heads * s + (2 * keys if in_place else 0)
        statistics, pairs = 0, shape.layers * s * s
    else:
        between = 2 * queries + 2 * keys + (queries + keys if turned else queries if copied else 0)
        statistics, pairs = share.heads * max(itemsize, 4), 0
    layer = (4 * d + 4 + between + 2 * share.hidden) * itemsize + statistics
    kept = tokens * (shape.layers * layer + (2 * d + 2) * itemsize) + pairs
    kept += tokens * masks(shape) * itemsize
    kept += 8 * s if not turned else shape.layers * 2 * s * shape.head_size * itemsize
    # A split embedding keeps the row of each token (8 bytes), and whether it has it (1).
    return kept + (9 * tokens if vocabulary else 0)


def masks(shape: GPTShape) -> int:
    """Return the numbers of the masks of dropout between a GPT's split regions, for each token."""
    return (2 * shape.layers + 1) * shape.width if shape.dropout else 0


def loss(
    shape: GPTShape, ranks: int, batch: int, sequence: int | None = None, itemsize: int = 4, *,
    vocabulary: bool = True,
) -> int:  # fmt: skip
    """Return the bytes that the loss keeps: probabilities [B, S, V/tp], and 10 for each token."""
    rows = share_of(shape, ranks, vocabulary=vocabulary).vocabulary
    tokens = whole(batch, "batch") * length_of(shape, sequence)
    return tokens * (rows * max(itemsize, 4) + 10) if vocabulary else tokens * rows * itemsize


def published_layer(
    width: int, heads: int, sequence: int, batch: int, ranks: int, *, scores: bool = True,
    sequence_parallel: bool = False,
) -> float:  # fmt: skip
    """Return the bytes of a layer's activations as published: sbh·(10 + 24/t + 5as/(ht)).

    Numbers take 2 bytes and masks of dropout 1; without `scores` the last term is left out, as
    where attention is one kernel or is computed again. With `sequence_parallel` the 10 are divided
    by t as well: sbh·(34/t + 5as/(ht)). Source: Korthikanti et al. 2022, table 2.
    """
    t = whole(ranks, "The number of ranks")
    inner = 5 * heads * sequence / (width * t) if scores else 0
    outer = 10 / t if sequence_parallel else 10
    return sequence * batch * width * (outer + 24 / t + inner)
