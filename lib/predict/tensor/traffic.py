"""Communication of a tensor-parallel step of a GPT: which collectives, with how many bytes.

For x [B, S, D] on tp ranks, all of them with the whole batch:

    forward    embedding   all_reduce [B, S, D]              if the vocabulary is split
               each layer  all_reduce [B, S, D] twice        after proj, after down
               loss        all_reduce [B, S] (max), [2, B, S]
    backward   head        all_reduce [B, S, D]              the gradient of its input
               each layer  all_reduce [B, S, D] twice        of the input of up, of the input of qkv

So a layer needs four, of B·S·D numbers each, however many ranks there are. With more ranks than
keys, backward also sums the gradients of a key's rows over the ranks that share it.
Source: Shoeybi et al. 2019 (arXiv 1909.08053), section 3; Narayanan et al. 2021 (arXiv 2104.04473),
section 3.2.
"""

from lib.predict.arguments import whole
from lib.predict.collectives.exchange import Exchange
from lib.predict.shape import GPTShape, length_of
from lib.predict.tensor.shapes import share_of


def of_step(
    shape: GPTShape, ranks: int, batch: int, sequence: int | None = None, itemsize: int = 4, *,
    vocabulary: bool = True,
) -> list[Exchange]:  # fmt: skip
    """Return the collectives of a step, in the order in which they are launched.

    With `vocabulary` embedding, head and loss are split too. The bytes are those of the buffer.
    """
    share = share_of(shape, ranks, vocabulary=vocabulary)
    tokens = whole(batch, "batch") * length_of(shape, sequence)
    make = lambda numbers, among=ranks: Exchange("all_reduce", among, numbers * itemsize)
    x = make(tokens * shape.width)
    ends = [x] if vocabulary else []
    sums = Exchange("all_reduce", ranks, 2 * tokens * max(itemsize, 4))  # in 32 bits at least
    loss = [make(tokens), sums] if vocabulary else []
    layer_back, keys = [x, x], 2 * shape.head_size
    if share.sharers > 1:  # each weight's, and each bias's
        layer_back += [make(keys, share.sharers), make(keys * shape.width, share.sharers)]
    return [*ends, *[x] * (2 * shape.layers), *loss, *ends, *layer_back * shape.layers]


def gathered_logits(
    shape: GPTShape, ranks: int, batch: int, sequence: int | None = None, itemsize: int = 4
) -> Exchange:
    """Return what a loss on whole logits needs instead of its two sums: an all_gather [B, S, V]."""
    rows = share_of(shape, ranks).vocabulary * ranks
    tokens = whole(batch, "batch") * length_of(shape, sequence)
    return Exchange("all_gather", ranks, tokens * rows * itemsize)
