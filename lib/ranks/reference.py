"""What each collective means: pure functions on a list that holds the tensors of all ranks.

`xs[r]` is the tensor that rank r gives, and entry r of the returned list is what rank r gets. These
functions need no ranks and send no messages, and autograd works through them. The collectives of
`collectives.py` are tested against them.
"""

import torch


def copy(xs):
    """Let every rank keep its own tensor; in `collectives.py` all ranks have the same one."""
    return list(xs)


def all_reduce(xs):
    """Give every rank the sum of all tensors."""
    return [sum(xs)] * len(xs)


def all_gather(xs, dim=0):
    """Give every rank all tensors, one after the other."""
    return [torch.cat(xs, dim)] * len(xs)


def reduce_scatter(xs, dim=0):
    """Give rank r piece r of the sum of all tensors."""
    return list(sum(xs).chunk(len(xs), dim))


def split(xs, dim=0):
    """Let rank r keep piece r of the tensor that all ranks have."""
    return [x.chunk(len(xs), dim)[rank] for rank, x in enumerate(xs)]


def join(xs, dim=0):
    """Give every rank all tensors, one after the other, as one tensor that all ranks share."""
    return [torch.cat(xs, dim)] * len(xs)


def all_to_all(xs, split_dim=0, concat_dim=0):
    """Give rank r piece r of every rank's tensor, one after the other."""
    pieces = [x.chunk(len(xs), split_dim) for x in xs]
    return [torch.cat(column, concat_dim) for column in zip(*pieces)]


def all_to_all_uneven(xs, counts, split_dim=0, concat_dim=0):
    """Do an all_to_all in which counts[s][r] entries go from rank s to rank r."""
    pieces = [x.split(row, split_dim) for x, row in zip(xs, counts)]
    return [torch.cat(column, concat_dim) for column in zip(*pieces)]


def broadcast(xs, root=0):
    """Give every rank the tensor of the root."""
    return [xs[root]] * len(xs)


def reduce(xs, root=0):
    """Give the root the sum of all tensors, and the other ranks zeros."""
    return [sum(xs) if rank == root else torch.zeros_like(x) for rank, x in enumerate(xs)]


def scatter(xs, root=0, dim=0):
    """Give rank r piece r of the root's tensor."""
    return list(xs[root].chunk(len(xs), dim))


def gather(xs, root=0, dim=0):
    """Give the root all tensors, one after the other, and the other ranks zeros."""
    full_x = torch.cat(xs, dim)
    return [full_x if rank == root else torch.zeros_like(full_x) for rank in range(len(xs))]


def shift(xs, by=1):
    """Give rank r the tensor of rank r - by, counted round the ring."""
    return [xs[(rank - by) % len(xs)] for rank in range(len(xs))]
