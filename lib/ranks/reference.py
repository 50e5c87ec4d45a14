"""What each collective means: pure functions of all ranks' tensors, as a list by rank.

`xs[r]` is what rank r gives, and the list that comes back holds what each rank gets. No ranks, no
messages, and autograd goes through: these are what `collectives.py` is tested against.
"""

import torch


def copy(xs):
    """Everybody keeps what everybody has."""
    return list(xs)


def all_reduce(xs):
    """Everybody gets the sum."""
    return [sum(xs)] * len(xs)


def all_gather(xs, dim=0):
    """Everybody gets all shards, one after the other."""
    return [torch.cat(xs, dim)] * len(xs)


def reduce_scatter(xs, dim=0):
    """Rank r gets shard r of the sum."""
    return list(sum(xs).chunk(len(xs), dim))


def split(xs, dim=0):
    """Rank r keeps shard r of what everybody has."""
    return [x.chunk(len(xs), dim)[rank] for rank, x in enumerate(xs)]


def join(xs, dim=0):
    """Everybody gets all shards, one after the other: one tensor, everywhere the same."""
    return [torch.cat(xs, dim)] * len(xs)


def all_to_all(xs, split_dim=0, concat_dim=0):
    """Rank r gets piece r of everybody's."""
    pieces = [x.chunk(len(xs), split_dim) for x in xs]
    return [torch.cat(column, concat_dim) for column in zip(*pieces)]


def all_to_all_uneven(xs, counts, split_dim=0, concat_dim=0):
    """Rank r gets piece r of everybody's; counts[s][r] entries go from rank s to rank r."""
    pieces = [x.split(row, split_dim) for x, row in zip(xs, counts)]
    return [torch.cat(column, concat_dim) for column in zip(*pieces)]


def broadcast(xs, root=0):
    """Everybody gets what the root has."""
    return [xs[root]] * len(xs)


def reduce(xs, root=0):
    """The root gets the sum, the others zeros."""
    return [sum(xs) if rank == root else torch.zeros_like(x) for rank, x in enumerate(xs)]


def scatter(xs, root=0, dim=0):
    """Rank r gets shard r of what the root has."""
    return list(xs[root].chunk(len(xs), dim))


def gather(xs, root=0, dim=0):
    """The root gets all shards, one after the other, the others zeros."""
    full_x = torch.cat(xs, dim)
    return [full_x if rank == root else torch.zeros_like(full_x) for rank in range(len(xs))]


def shift(xs, by=1):
    """Rank r gets what rank r - by has, round the ring."""
    return [xs[(rank - by) % len(xs)] for rank in range(len(xs))]
