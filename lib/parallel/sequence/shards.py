"""Cuts a sequence into one shard for each rank, and puts it together again.

    x [B, S, ..] -> [B, S/P, ..]    contiguous: chunk r of P;  zigzag: chunks r and 2P - 1 - r of 2P

A length that does not divide is padded at its end. Every rank has the whole x and gets its own part
of it, so x is *one* tensor in the sense of lib/ranks/collectives.py: `shard_sequence` sends nothing
forward and gathers the gradient backward, and `unshard_sequence` is the reverse.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad

from lib.predict.sequence.layout import boundaries, chunks_of, padded_length, ranges_of
from lib.ranks import collectives


def shard_sequence(
    x: Tensor, group=None, layout: str = "zigzag", dim: int = 1, *, fill: float = 0
) -> Tensor:
    """Return this rank's part of a sequence that all ranks have: [.., S, ..] -> [.., S/P, ..].

    A length that P (or 2P in zigzag) does not divide is padded at the end with `fill`. Backward
    gathers the gradient of x on every rank. Raises ValueError for a layout that is not known.
    """
    ranks, length = dist.get_world_size(group), x.shape[dim]
    padding = padded_length(length, ranks, layout) - length
    if padding:
        behind = [0, 0] * (x.dim() - dim % x.dim() - 1)
        x = pad(x, [*behind, 0, padding], value=fill)
    return collectives.split(_chunks(x, dim, _order(ranks, layout)), dim, group)


def unshard_sequence(
    x: Tensor, group=None, layout: str = "zigzag", dim: int = 1, *, length: int | None = None
) -> Tensor:
    """Return the whole sequence on every rank: [.., S/P, ..] -> [.., S, ..]; backward splits.

    `length` is S without its padding, which is cut off.
    """
    order = _order(dist.get_world_size(group), layout)
    back = sorted(range(len(order)), key=order.__getitem__)
    x = _chunks(collectives.join(x, dim, group), dim, back)
    return x if length is None else x.narrow(dim, 0, length)


def positions_of(
    length: int, group=None, layout: str = "zigzag", *, documents: Sequence[int] | None = None,
    device=None, rank: int | None = None,
) -> Tensor:  # fmt: skip
    """Return the position in the whole sequence of each token of a rank: [S/P], whole numbers.

    `length` is S, padded. With `documents`, as cu_seqlens, positions restart at each document, and
    at the padding behind the last one. `rank` is that of this process by default.
    """
    own = dist.get_rank(group) if rank is None else rank
    ends = boundaries(documents, length)
    ends = ends if ends[-1] == length else [*ends, length]
    return torch.cat([
        torch.arange(max(low, chunk.start) - low, min(high, chunk.stop) - low, device=device)
        for chunk in ranges_of(length, own, dist.get_world_size(group), layout)
        for low, high in pairwise(ends)
        if low < chunk.stop and high > chunk.start
    ])  # fmt: skip


def _order(ranks: int, layout: str) -> list[int]:
    """Return the numbers of all chunks, those of rank 0 first."""
    return [chunk for rank in range(ranks) for chunk in chunks_of(rank, ranks, layout)]


def _chunks(x: Tensor, dim: int, order: list[int]) -> Tensor:
    """Cut x along `dim` into equal chunks and put them into another order."""
    if order == list(range(len(order))):
        return x
    return torch.cat([x.chunk(len(order), dim)[number] for number in order], dim)
