"""What a rank keeps for backward when sequences are split: bytes, as a function of S and P.

Every tensor between two layers has S/P tokens, so all activations fall with the number of ranks:

    ring      keeps what one device keeps of S/P tokens, and nothing else: its own q, k, v, the result,
              and one number for each head and token. Keys and values of others are not kept.
    Ulysses   keeps q, k, v and the result of S tokens of H/P heads, and the result again as it comes
              back, for the matrix product behind it. With fewer heads of keys than ranks there are
              copies: max(G, P) heads instead of G.

Weights, gradients and optimizer states are whole on every rank. `travelling` counts what a ring has
under way besides. Source: Korthikanti et al. 2022 (arXiv 2205.05198), section 4, for what a layer
keeps; Liu et al. 2023 (arXiv 2310.01889), table 1, for the six blocks of a ring.
"""  # noqa: E501

from lib.predict import memory
from lib.predict.arguments import whole
from lib.predict.memory import Held, optimizer_states
from lib.predict.sequence.layout import key_heads_sent
from lib.predict.sequence.traffic import check_method, tokens_of_a_rank
from lib.predict.shape import GPTShape


def held(
    shape: GPTShape, method: str, ranks: int, batch: int, sequence: int | None = None,
    optimizer: str = "adamw", itemsize: int = 4, *, inner: int = 1,
) -> Held:  # fmt: skip
    """Return the bytes of a rank at the end of forward, with its loss, by kind."""
    weights = shape.nbytes(itemsize)
    kept = activations(shape, method, ranks, batch, sequence, itemsize, inner=inner)
    own = tokens_of_a_rank(shape, ranks * inner, sequence)
    kept += memory.outputs(shape, batch, own, itemsize)
    return Held(weights, weights, optimizer_states(shape, optimizer, itemsize), kept)


def activations(
    shape: GPTShape, method: str, ranks: int, batch: int, sequence: int | None = None,
    itemsize: int = 4, *, inner: int = 1,
) -> int:  # fmt: skip
    """Return the bytes that autograd keeps on each rank after forward, without the loss.

    `sequence` is the padded length, and `inner` the ranks of Ulysses inside a ring. Raises
    ValueError for dropout, and for heads or lengths that the ranks cannot share equally.
    """
    check_method(method, inner)
    if shape.dropout:
        raise ValueError("What masks of dropout keep is not counted here. Choose dropout=0.")
    own = tokens_of_a_rank(shape, ranks * inner, sequence)
    kept = memory.activations(shape, batch, own, itemsize)
    swapping = ranks if method == "ulysses" else inner
    if method == "ring" and inner == 1:
        return kept
    turned, copied = shape.positions == "rotary", 1 < shape.kv_heads < shape.heads
    keys = shape.kv_heads * shape.head_size
    beside = shape.width + keys if turned else shape.width if copied else 0
    sent = key_heads_sent(shape.heads, shape.kv_heads, swapping)
    gathered = shape.width + 2 * sent * shape.head_size  # q, k and v of fewer heads, more tokens
    more = gathered + shape.width - shape.qkv_width - beside
    return kept + whole(batch, "batch") * own * shape.layers * more * itemsize


def travelling(
    shape: GPTShape, ranks: int, batch: int, sequence: int | None = None, itemsize: int = 4
) -> int:
    """Return the bytes of the blocks that a ring has under way in backward, when it has the most.

    Those are K and V that are computed with and sent and those that arrive, and the same for dK and
    dV: four blocks. Two ranks have three, because their last K and V are sent no further.
    """
    own = tokens_of_a_rank(shape, ranks, sequence) * whole(batch, "batch")
    block = 2 * own * shape.kv_heads * shape.head_size * itemsize
    return min(ranks + 1, 4) * block if ranks > 1 else 0
