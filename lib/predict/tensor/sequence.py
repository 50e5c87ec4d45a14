"""What Megatron's sequence parallelism sends in a step of a GPT, and what a rank keeps of it.

For x [B, S, D] on tp ranks, beside tensor parallelism (traffic.py):

    forward    embedding   reduce_scatter
               each layer  all_gather, reduce_scatter twice   before qkv and up, after the others
               head        all_gather
    backward   each of these the other way round, and for each column layer an all_gather more: its
               input is gathered again, because it was not kept
               norms, biases of row layers, positions: all_reduce of the gradient

So a layer sends 10/8 of what tensor parallelism alone sends, and keeps of the 4 D numbers a token
that all ranks had whole a tp-th each.
Source: Korthikanti et al. 2022 (arXiv 2205.05198), section 4.2.2.
"""

from lib.predict.arguments import equal_share, whole
from lib.predict.collectives.exchange import Exchange
from lib.predict.shape import GPTShape, length_of
from lib.predict.tensor import memory
from lib.predict.tensor.shapes import share_of


def of_step(
    shape: GPTShape, ranks: int, batch: int, sequence: int | None = None, itemsize: int = 4
) -> list[Exchange]:
    """Return the collectives of a step, in the order in which they are launched.

    The bytes are those of the buffer that is whole: of all shards together. Raises ValueError for
    sizes, the sequence among them, that the ranks cannot share equally.
    """
    share, d = share_of(shape, ranks), shape.width
    s = _tokens(shape, ranks, sequence)
    tokens = whole(batch, "batch") * s
    make = lambda op, numbers, among=ranks: Exchange(op, among, numbers * itemsize)
    gather, scatter = make("all_gather", tokens * d), make("reduce_scatter", tokens * d)
    sums = Exchange("all_reduce", ranks, 2 * tokens * max(itemsize, 4))  # in 32 bits at least
    loss = [make("all_reduce", tokens), sums]
    forward = [scatter, *[gather, scatter] * (2 * shape.layers), gather, *loss]
    column, row = [gather, scatter], [make("all_reduce", d), gather]  # backward; a row's bias first
    norm, keys = [make("all_reduce", d)] * 2, 2 * shape.head_size
    shared = [make("all_reduce", n, share.sharers) for n in (keys, keys * d)]
    layer = [*row, *column, *norm, *row, *column, *(shared if share.sharers > 1 else []), *norm]
    positions = [make("all_reduce", shape.sequence * d)] * (shape.positions == "learned")
    return [*forward, *column, *norm, *layer * shape.layers, *positions, gather]


def activations(
    shape: GPTShape, ranks: int, batch: int, sequence: int | None = None, itemsize: int = 4
) -> int:
    """Return the bytes that autograd keeps on each rank after forward, without the loss.

    Dropout keeps what it keeps on the CPU; its masks are of a rank's own tokens and heads.
    """
    s, d = _tokens(shape, ranks, sequence), shape.width
    tokens = whole(batch, "batch") * s
    # The inputs of two norms and two column layers, and the head's of one each; mean and deviation.
    outside = tokens * (shape.layers * (4 * d + 4) + 2 * d + 2 + memory.masks(shape)) * itemsize
    ids = 8 * s if shape.positions == "learned" else 0
    all_of_it = memory.activations(shape, ranks, batch, sequence, itemsize)
    return all_of_it - (outside + ids) // ranks * (ranks - 1)


def _tokens(shape: GPTShape, ranks: int, sequence: int | None) -> int:
    s = length_of(shape, sequence)
    equal_share(s, ranks, "A sequence has {} tokens")
    return s
