"""Cutting a tensor into one shard for each rank, and refusing where it cannot be cut."""

import torch
from torch import Tensor


def known(x: Tensor, dim: int) -> int:
    """Give `dim` counted from the front; raise ValueError where x has no such dim."""
    if not -x.dim() <= dim < x.dim():
        raise ValueError(f"a tensor of shape {list(x.shape)} has no dim {dim}")
    return dim % x.dim()


def stacked(x: Tensor, ranks: int, dim: int) -> Tensor:
    """View x as its equal shards along `dim`, one above the other: [..., N, ...] -> [n, ..., N/n].

    Raises ValueError where they would not be equal.
    """
    dim = known(x, dim)
    entries = x.shape[dim]
    if entries % ranks:
        raise ValueError(
            f"dim {dim} has {entries} entries: {ranks} ranks cannot share them equally"
        )
    return x.unflatten(dim, (ranks, entries // ranks)).movedim(dim, 0)


def joined(shards: Tensor, dim: int) -> Tensor:
    """Put stacked shards together along `dim`: undoes `stacked`, without copying where dim is 0."""
    dim = known(shards[0], dim)
    return shards.movedim(0, dim).flatten(dim, dim + 1)


def uneven(x: Tensor, counts, ranks: int, dim: int) -> tuple[Tensor, ...]:
    """Cut x along `dim` into pieces of so many entries; raise ValueError where they do not fit."""
    dim = known(x, dim)
    if len(counts) != ranks or sum(counts) != x.shape[dim] or min(counts) < 0:
        raise ValueError(
            f"dim {dim} has {x.shape[dim]} entries: {list(counts)} does not share them "
            f"among {ranks} ranks"
        )
    return torch.split(x, list(counts), dim)
