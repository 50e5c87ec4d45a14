"""Ulysses: ranks exchange tokens for heads, attend to the whole sequence, and exchange them back.

    q [B, H, S/P, K] -> all_to_all -> [B, H/P, S, K] -> attention -> all_to_all -> [B, H, S/P, K]

Attention treats each head alone, so a rank with all tokens of its heads needs nothing from others.
q, k and v travel in one message. With fewer heads of keys (G) than ranks, each head of keys and
values is sent to the P/G ranks whose queries share it.

[Note: both at once]
With a `ring`, the tokens that the ranks of `group` exchange are one shard of a longer sequence.
They have it in P contiguous pieces, and attention over their heads is a ring over the other axis of
the mesh. A sequence of S tokens is then cut into R · P shards, with P at most H.

Source: Jacobs et al. 2023, "DeepSpeed Ulysses" (arXiv 2309.14509); Fang and Zhao 2024, "USP" (arXiv
2405.07719), for both at once.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from lib.parallel.sequence.dropout import noise_of
from lib.parallel.sequence.ring import Ring, attention, check_shapes
from lib.parallel.sequence.shards import ALONE, from_sequence_order, to_sequence_order
from lib.predict.sequence.layout import key_heads_sent
from lib.ranks import collectives


def ulysses_attention(
    q: Tensor, k: Tensor, v: Tensor, group=None, causal: bool = True, layout: str = "zigzag",
    documents: Sequence[int] | None = None, scale: float | None = None, dropout: float = 0.0,
    seed: int | None = None, *, ring=ALONE,
) -> Tensor:  # fmt: skip
    """Return attention over a sequence that is split over a group: [B, H, S/P, K].

    The arguments are those of `ring_attention`. With `ring`, a group, the sequence is split over
    both: `layout` says how along the ring, and each of its shards is split contiguously over
    `group`. Raises ValueError where P does not divide the heads, or neither of the heads of keys
    and P divides the other.
    """
    check_shapes(q, k, v)
    ranks = dist.get_world_size(group)
    heads, key_heads = q.shape[1], k.shape[1]
    sent = key_heads_sent(heads, key_heads, ranks)
    if sent > key_heads:
        k, v = (t.repeat_interleave(sent // key_heads, 1) for t in (k, v))
    by_rank = [t.unflatten(1, (ranks, -1)) for t in (q, k, v)]  # [B, P, heads of a rank, S/P, K]
    x = collectives.all_to_all(torch.cat(by_rank, 2).flatten(1, 2), 1, 2, group)
    alone = ring is ALONE
    if alone:
        x = to_sequence_order(x, ranks, layout, 2)
    q, k, v = x.split([heads // ranks, sent // ranks, sent // ranks], 1)
    place = Ring.alone(documents) if alone else Ring.of(ring, layout, documents)
    noise = noise_of(dropout, seed, dist.get_rank(group) * heads // ranks)
    out = attention(q, k, v, place, causal, scale, noise)
    if alone:
        out = from_sequence_order(out, ranks, layout, 2)
    return collectives.all_to_all(out, 2, 1, group)
