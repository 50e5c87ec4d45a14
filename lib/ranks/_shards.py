"""Cuts a tensor into one shard for each rank, and refuses sizes that cannot be cut."""

import torch
from torch import Tensor

from lib.predict.arguments import equal_share


def known(x: Tensor, dim: int) -> int:
    """Return `dim` counted from the front; raise ValueError where x has no such dim."""
    if not -x.dim() <= dim < x.dim():
        raise ValueError(f"A tensor of shape {list(x.shape)} has no dim {dim}.")
    return dim % x.dim()


def stacked(x: Tensor, ranks: int, dim: int) -> Tensor:
    """View x as its equal shards along `dim`, stacked in front: [..., N, ...] -> [n, ..., N/n].

    Raises ValueError where they would not be equal.
    """
    dim = known(x, dim)
    entries = equal_share(x.shape[dim], ranks, f"Dim {dim} has {{}} entries")
    return x.unflatten(dim, (ranks, entries)).movedim(dim, 0)


def joined(shards: Tensor, dim: int) -> Tensor:
    """Join stacked shards along `dim`, the inverse of `stacked`; dim 0 needs no copy."""
    dim = known(shards[0], dim)
    return shards.movedim(0, dim).flatten(dim, dim + 1)


def uneven(x: Tensor, counts, ranks: int, dim: int) -> tuple[Tensor, ...]:
    """Cut x along `dim` into pieces of these counts; raise ValueError where they do not fit."""
    dim = known(x, dim)
    if len(counts) != ranks or sum(counts) != x.shape[dim] or min(counts) < 0:
        raise ValueError(
            f"Dim {dim} has {x.shape[dim]} entries, which the counts {list(counts)} do not divide "
            f"among {ranks} ranks."
        )
    return torch.split(x, list(counts), dim)
