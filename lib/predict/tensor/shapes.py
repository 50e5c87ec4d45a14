"""The part of a GPT that each rank of tensor parallelism has: every parameter's shape there.

attention.qkv [(H + 2·G)·K, D] -> [(H + 2·G)·K/tp, D]     with tp > G [(H/tp + 2)·K, D]
attention.proj [D, D] -> [D, D/tp]     mlp.up [F, D] -> [F/tp, D]     mlp.down [D, F] -> [D, F/tp]
tokens, linear [V, D] -> [V/tp, D], V padded to a multiple of tp     the rest stays whole
"""

from typing import NamedTuple

from lib.predict.arguments import equal_share, whole
from lib.predict.shape import GPTShape, Parameter


class Share(NamedTuple):
    """Holds the sizes of a GPT on each of `ranks` ranks: query heads, keys, hidden, vocabulary."""

    ranks: int
    heads: int
    kv_heads: int
    sharers: int  # ranks that have the same key and value
    hidden: int
    vocabulary: int  # rows of the embedding and of the head, with the padding


def share_of(shape: GPTShape, ranks: int, *, vocabulary: bool = True) -> Share:
    """Return what each of `ranks` has; without `vocabulary`, embedding and head stay whole.

    Raises ValueError for heads, keys or a hidden layer that the ranks cannot share equally.
    """
    ranks = whole(ranks, "The number of ranks")
    heads = equal_share(shape.heads, ranks, "An attention has {} heads")
    if ranks > shape.kv_heads:
        equal_share(ranks, shape.kv_heads, "{} ranks split an attention", "{} heads of keys")
    else:
        equal_share(shape.kv_heads, ranks, "An attention has {} heads of keys")
    hidden = equal_share(shape.hidden, ranks, "The hidden layer has {} entries")
    rows = -(-shape.vocabulary // ranks) if vocabulary else shape.vocabulary
    kv_heads = max(shape.kv_heads // ranks, 1)
    return Share(ranks, heads, kv_heads, max(ranks // shape.kv_heads, 1), hidden, rows)


def parameters_of_a_rank(
    shape: GPTShape, ranks: int, *, vocabulary: bool = True
) -> tuple[Parameter, ...]:
    """Return every parameter of a rank, with the names and in the order of the plain model."""
    share = share_of(shape, ranks, vocabulary=vocabulary)
    d, qkv = shape.width, (share.heads + 2 * share.kv_heads) * shape.head_size
    shapes = {
        "attention.qkv.weight": (qkv, d),
        "attention.qkv.bias": (qkv,),
        "attention.proj.weight": (d, share.heads * shape.head_size),
        "mlp.up.weight": (share.hidden, d),
        "mlp.up.bias": (share.hidden,),
        "mlp.down.weight": (d, share.hidden),
        "tokens.weight": (share.vocabulary, d),
        "linear.weight": (share.vocabulary, d),
    }
    return tuple(
        p._replace(shape=shapes.get(p.name.split(".", 2)[2], p.shape)) for p in shape.parameters
    )
