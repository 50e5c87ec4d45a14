"""What a rank sends when a sequence is split over ranks: ring, Ulysses, and Ulysses inside a ring.

For one layer, with B samples, H heads, G heads of keys, and P ranks with S/P tokens each:

    ring      forward    P - 1 sends of K and V, [2, B, G, S/P, K]
              backward   P - 1 sends of K and V, and P - 1 of dK and dV
    Ulysses   forward    all_to_all of q, k, v, [B, H + 2·max(G, P), S/P, K], then of the result
              backward   the same in reverse
    both      Ulysses over I inner ranks, and a ring of R ranks for the heads that each has then
    Megatron  forward    all_gather and reduce_scatter of [B, S, D], around attention and around the MLP
              backward   the same the other way round, and each input is gathered again

A step of the first three adds an all_reduce of each parameter's gradient, because all ranks have all weights, and two of
one number for the loss. Buffers are those of a rank, as in the ledger.

Ulysses sends less with each additional rank; a ring sends almost 2·N·G·K numbers on any number of
ranks. Megatron's sequence parallelism sends 4·N·h on any number. Sources: Jacobs et al. 2023 (arXiv
2309.14509), section 3.2; Liu et al. 2023 (arXiv 2310.01889), section 3.
"""  # noqa: E501

from typing import NamedTuple

from lib.predict.arguments import equal_share, whole
from lib.predict.collectives.exchange import Exchange
from lib.predict.sequence.layout import key_heads_sent
from lib.predict.shape import GPTShape, length_of
from lib.predict.tensor import sequence as tensor_sequence

METHODS = ("ring", "ulysses", "megatron")


class SequenceMoves(NamedTuple):
    """Holds what a rank sends in forward and in backward, in the order in which it is launched."""

    forward: list[Exchange]
    backward: list[Exchange]

    @property
    def sent(self) -> float:
        """Return the bytes that a rank sends in both."""
        return sum(exchange.sent for exchange in (*self.forward, *self.backward))


def of_layer(
    shape: GPTShape, method: str, ranks: int, batch: int, sequence: int | None = None,
    itemsize: int = 4, *, inner: int = 1,
) -> SequenceMoves:  # fmt: skip
    """Return what one layer sends on each of the ranks for its activations.

    `sequence` is the padded length, and `method` "ring", "ulysses" or "megatron". With `inner` it
    is "ring" over `ranks`, and Ulysses over as many inner ranks. Raises ValueError for another
    method, and for heads or lengths that the ranks cannot share equally.
    """
    check_method(method, inner, METHODS)
    own = tokens_of_a_rank(shape, ranks * inner, sequence) * whole(batch, "batch")
    if method == "megatron":
        return _megatron(ranks, own * ranks * shape.width * whole(itemsize, "itemsize"))
    number = own * shape.head_size * whole(itemsize, "itemsize")  # bytes of one head
    if method == "ulysses":
        return _ulysses(shape, ranks, number)
    if inner == 1:
        return _ring(ranks, 2 * shape.kv_heads * number)
    swaps = _ulysses(shape, inner, number)
    # An inner rank has the tokens of all of them, and of the heads its share.
    ring = _ring(ranks, 2 * key_heads_sent(shape.heads, shape.kv_heads, inner) * number)
    there, back = swaps.forward, swaps.backward
    return SequenceMoves(
        [there[0], *ring.forward, there[1]],
        [back[0], *ring.backward, back[1]],
    )


def _ring(ranks: int, nbytes: int) -> SequenceMoves:
    sends = [Exchange("send", ranks, nbytes)] * (ranks - 1)
    return SequenceMoves(sends, 2 * sends)


def _ulysses(shape: GPTShape, ranks: int, number: int) -> SequenceMoves:
    heads = shape.heads + 2 * key_heads_sent(shape.heads, shape.kv_heads, ranks)
    qkv = Exchange("all_to_all", ranks, heads * number)
    out = Exchange("all_to_all", ranks, shape.heads * number)
    return SequenceMoves([qkv, out], [out, qkv])


def _megatron(ranks: int, nbytes: int) -> SequenceMoves:
    gather, scatter = (Exchange(op, ranks, nbytes) for op in ("all_gather", "reduce_scatter"))
    return SequenceMoves([gather, scatter] * 2, [gather, gather, scatter] * 2)


def of_step(
    shape: GPTShape, method: str, ranks: int, batch: int, sequence: int | None = None,
    itemsize: int = 4, *, inner: int = 1,
) -> SequenceMoves:  # fmt: skip
    """Return what a step of a GPT sends: attention, the loss, and the gradients of the weights.

    Where in backward a gradient is sent depends on the order of autograd; here they come last. With
    `inner` ranks each sum goes over both groups, one after the other.
    """
    if method == "megatron":
        check_method(method, inner, METHODS)
        moves = tensor_sequence.of_step(shape, ranks, batch, sequence, itemsize)
        forward = 4 + 4 * shape.layers  # embedding, layers, head, and two sums of the loss
        return SequenceMoves(moves[:forward], moves[forward:])
    layer = of_layer(shape, method, ranks, batch, sequence, itemsize, inner=inner)
    groups = [ranks] if inner == 1 else [inner, ranks]
    reduce = lambda nbytes, among: Exchange("all_reduce", among, nbytes)
    # the sum of the losses, and the number of labels
    loss = [reduce(nbytes, among) for among in groups for nbytes in (itemsize, 8)]
    weights = [reduce(p.numel * itemsize, n) for p in shape.parameters for n in groups[::-1]]
    return SequenceMoves(
        layer.forward * shape.layers + loss, layer.backward * shape.layers + weights
    )


def published_layer(
    method: str, tokens: int, width: int, ranks: int, *, key_share: float = 1.0
) -> float:
    """Return the numbers that a rank sends in one layer's forward, as published, N tokens of width h.

    Ulysses: 4·N·h/P. Megatron's sequence parallelism: 4·N·h. Ring: K and V on P - 1 hops,
    2·N·h·(P - 1)/P, times `key_share` = G/H with grouped queries. The first two leave out the factor
    (P - 1)/P.
    """  # noqa: E501
    if method not in METHODS:
        raise ValueError(f"No method is called {method!r}. Choose one of {', '.join(METHODS)}.")
    numbers, ranks = tokens * width, whole(ranks, "The number of ranks")
    if method == "ring":
        return 2 * numbers * key_share * (ranks - 1) / ranks
    return 4 * numbers / (ranks if method == "ulysses" else 1)


def check_method(method: str, inner: int = 1, known=("ring", "ulysses")) -> None:
    """Raise ValueError unless the method is a known one, and a ring where there are inner ranks."""
    if method not in known:
        raise ValueError(f"No method is called {method!r}. Choose one of {', '.join(known)}.")
    if whole(inner, "The number of inner ranks") > 1 and method != "ring":
        raise ValueError("Inner ranks are those of Ulysses inside a ring. Give method='ring'.")


def tokens_of_a_rank(shape: GPTShape, ranks: int, sequence: int | None = None) -> int:
    """Return S/P. Raises ValueError where the ranks cannot share the sequence equally."""
    length = length_of(shape, sequence)
    return equal_share(length, ranks, "A sequence has {} tokens", advice="Give the padded length.")
