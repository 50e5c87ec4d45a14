"""Cuts a sequence into one shard for each rank, and puts it together again.

    x [B, S, ..] -> [B, S/P, ..]    contiguous: chunk r of P;  zigzag: chunks r and 2P - 1 - r of 2P

A length that does not divide is padded at its end. Every rank has the whole x and gets its own part
of it, so x is *one* tensor in the sense of lib/ranks/collectives.py: `shard_sequence` sends nothing
forward and gathers the gradient backward, and `unshard_sequence` is the reverse.

[Note: two axes]
With `inner`, the ranks of a second group share each shard in contiguous pieces, [B, S/(P·I), ..].
That is how Ulysses works inside a ring: `group` is the ring's, and `inner` that of Ulysses.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad

from lib.predict.sequence.layout import boundaries, chunks_of, padded_length, ranges_of
from lib.ranks import collectives

ALONE = object()  # stands for no second group; None would be the group of all ranks


def shard_sequence(
    x: Tensor, group=None, layout: str = "zigzag", dim: int = 1, *, fill: float = 0, inner=ALONE
) -> Tensor:
    """Return this rank's part of a sequence that all ranks have: [.., S, ..] -> [.., S/P, ..].

    A length that P (or 2P in zigzag) does not divide is padded at the end with `fill`. Backward
    gathers the gradient of x on every rank. Raises ValueError for a layout that is not known.
    """
    ranks, length = dist.get_world_size(group), x.shape[dim]
    padding = padded_length(length, ranks, layout, size_of(inner)) - length
    if padding:
        behind = [0, 0] * (x.dim() - dim % x.dim() - 1)
        x = pad(x, [*behind, 0, padding], value=fill)
    x = collectives.split(from_sequence_order(x, ranks, layout, dim), dim, group)
    return x if inner is ALONE else collectives.split(x, dim, inner)


def unshard_sequence(
    x: Tensor, group=None, layout: str = "zigzag", dim: int = 1, *, length: int | None = None,
    inner=ALONE,
) -> Tensor:  # fmt: skip
    """Return the whole sequence on every rank: [.., S/P, ..] -> [.., S, ..]; backward splits.

    `length` is S without its padding, which is cut off.
    """
    x = x if inner is ALONE else collectives.join(x, dim, inner)
    x = collectives.join(x, dim, group)
    x = to_sequence_order(x, dist.get_world_size(group), layout, dim)
    return x if length is None else x.narrow(dim, 0, length)


def positions_of(
    length: int, group=None, layout: str = "zigzag", *, documents: Sequence[int] | None = None,
    device=None, inner=ALONE,
) -> Tensor:  # fmt: skip
    """Return the position in the whole sequence of each token of this rank: [S/P], whole numbers.

    `length` is S, padded. With `documents`, as cu_seqlens, positions restart at each document, and
    at the padding behind the last one.
    """
    own = dist.get_rank(group)
    ends = boundaries(documents, length)
    ends = ends if ends[-1] == length else [*ends, length]
    positions = torch.cat([
        torch.arange(max(low, chunk.start) - low, min(high, chunk.stop) - low, device=device)
        for chunk in ranges_of(length, own, dist.get_world_size(group), layout)
        for low, high in pairwise(ends)
        if low < chunk.stop and high > chunk.start
    ])  # fmt: skip
    return positions if inner is ALONE else collectives.split(positions, 0, inner)


def size_of(inner) -> int:
    """Return the number of ranks that share a shard."""
    return 1 if inner is ALONE else dist.get_world_size(inner)


def from_sequence_order(x: Tensor, ranks: int, layout: str, dim: int) -> Tensor:
    """Put the chunks of a whole sequence into the order of ranks, those of rank 0 first."""
    return _chunks(x, dim, _order(ranks, layout))


def to_sequence_order(x: Tensor, ranks: int, layout: str, dim: int) -> Tensor:
    """Put the chunks of all ranks, those of rank 0 first, into the order of the sequence."""
    order = _order(ranks, layout)
    return _chunks(x, dim, sorted(range(len(order)), key=order.__getitem__))


def _order(ranks: int, layout: str) -> list[int]:
    """Return the numbers of all chunks, those of rank 0 first."""
    return [chunk for rank in range(ranks) for chunk in chunks_of(rank, ranks, layout)]


def _chunks(x: Tensor, dim: int, order: list[int]) -> Tensor:
    """Cut x along `dim` into equal chunks and put them into another order."""
    if order == list(range(len(order))):
        return x
    return torch.cat([x.chunk(len(order), dim)[number] for number in order], dim)
