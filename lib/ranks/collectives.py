"""Differentiable collectives in conjugate pairs: the backward of one is the forward of the other.

[Note: conjugate pairs]
A collective is a linear map from the tensors of all ranks to the tensors of all ranks. Its backward
is the transposed map, which is a collective too:

    copy           <->  all_reduce         all_to_all  <->  all_to_all, dims swapped
    all_gather     <->  reduce_scatter     broadcast   <->  reduce
    join           <->  split              scatter     <->  gather
                                           shift(by)   <->  shift(-by)

[Note: one or many]
A tensor that is the same on every rank can mean one tensor or n. If it is *one* (a parameter that
all ranks have, a loss that all know), it counts once, and its gradient is the same everywhere:
`copy` and `split` take such a tensor, `all_reduce` and `join` return one. If each rank goes on to
use it in its own way, it is *many*, and their gradients have to be added: `copy` and `all_gather`
return such tensors. So `join` and `all_gather` send the same bytes forward and differ in backward.

[Note: backward comes everywhere]
Backward communicates as well, so either every rank of the group goes backward through a collective
or none does. Let x require a gradient on all ranks or on none, even if only the root's entries
count.

In sharding lines, `[N/g]` is split over the ranks of the group, `+g` says that a sum over them is
pending, and `@0` that only the root has the tensor. `reference.py` says what each function means on
plain lists. All take `group` (None is the world); ranks, `root` and `by` count within it. A group
of one is the identity. Any floating dtype, device and strides are allowed.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from lib.ranks._shards import joined, known, stacked, uneven
from lib.ranks.algorithms import exchange


class _Linear(torch.autograd.Function):
    """Apply `there` to the values and `back`, its conjugate, to the gradient."""

    @staticmethod
    def forward(ctx, x, there, back):
        ctx.back = back
        return there(x)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.back(gradient), None, None


_apply = _Linear.apply


def copy(x: Tensor, group=None) -> Tensor:
    """Use one x on every rank in its own way: [N] -> [N]; backward sums, [N] +g -> [N]."""
    return _apply(x, lambda x: x.view_as(x), partial(all_reduce, group=group))


def all_reduce(x: Tensor, group=None) -> Tensor:
    """Sum over the group, one sum for all: [N] +g -> [N]; backward copies, and sends nothing."""

    def there(x):
        total = _fresh(x)
        dist.all_reduce(total, group=group)
        return total

    return _apply(x, there, partial(copy, group=group))


def all_gather(x: Tensor, dim: int = 0, group=None) -> Tensor:
    """Give every rank all shards: [N/g] -> [N]; backward sums and shards, [N] +g -> [N/g]."""
    there = partial(_gathered, dim=dim, group=group)
    return _apply(x, there, partial(reduce_scatter, dim=dim, group=group))


def reduce_scatter(x: Tensor, dim: int = 0, group=None) -> Tensor:
    """Sum over the group and keep this rank's shard: [N] +g -> [N/g]; backward gathers."""

    def there(x):
        shards = stacked(x, dist.get_world_size(group), dim).contiguous()
        mine = torch.empty_like(shards[0])
        dist.reduce_scatter_single(mine.view(-1), shards.view(-1), group=group)
        return mine

    return _apply(x, there, partial(all_gather, dim=dim, group=group))


def gather_async(x: Tensor, dim: int = 0, group=None) -> Callable[[], Tensor]:
    """Launch an all_gather outside autograd: [N/g] -> a function that waits and returns [N]."""
    known(x, dim)
    shards = x.new_empty(dist.get_world_size(group), *x.shape)
    flat = x.contiguous().view(-1)
    work = dist.all_gather_single(shards.view(-1), flat, group=group, async_op=True)

    def finish():
        work.wait()
        return joined(shards, dim)

    return finish


def reduce_scatter_async(x: Tensor, dim: int = 0, group=None) -> Callable[[], Tensor]:
    """Launch a reduce_scatter outside autograd: [N] +g -> a function that waits for [N/g]."""
    shards = stacked(x, dist.get_world_size(group), dim).contiguous()
    shard = torch.empty_like(shards[0])
    flat = shards.view(-1)
    work = dist.reduce_scatter_single(shard.view(-1), flat, group=group, async_op=True)

    def finish():
        work.wait()
        return shard

    return finish


def split(x: Tensor, dim: int = 0, group=None) -> Tensor:
    """Keep this rank's shard of an x that all have: [N] -> [N/g], no bytes; backward joins."""

    def there(x):
        return _fresh(stacked(x, dist.get_world_size(group), dim)[dist.get_rank(group)])

    return _apply(x, there, partial(join, dim=dim, group=group))


def join(x: Tensor, dim: int = 0, group=None) -> Tensor:
    """Join all shards to one x for all ranks: [N/g] -> [N]; backward splits, no bytes."""
    there = partial(_gathered, dim=dim, group=group)
    return _apply(x, there, partial(split, dim=dim, group=group))


def all_to_all(
    x: Tensor, split_dim: int = 0, concat_dim: int = 0, group=None, *, sent=None, received=None
) -> Tensor:
    """Cut x along one dim, swap pieces, put them together along another: [A, B/g] -> [A/g, B].

    Piece r goes to rank r; if both dims are the same, pieces change places. Backward swaps the
    dims. For uneven pieces, `sent[r]` entries of split_dim go to rank r, and `received[r]` entries
    of concat_dim come from it; with two different dims all ranks must pass the same `sent`.
    """
    there = partial(_swapped, split_dim=split_dim, concat_dim=concat_dim, group=group,
                    sent=sent, received=received)  # fmt: skip
    back = partial(all_to_all, split_dim=concat_dim, concat_dim=split_dim, group=group,
                   sent=received, received=sent)  # fmt: skip
    return _apply(x, there, back)


def broadcast(x: Tensor, root: int = 0, group=None) -> Tensor:
    """Give every rank the root's x: [N] @0 -> [N]; backward sums at the root.

    The others give a tensor of the same shape; its entries do not count.
    """

    def there(x):
        copied = _fresh(x)
        dist.broadcast(copied, group_src=root, group=group)
        return copied

    return _apply(x, there, partial(reduce, root=root, group=group))


def reduce(x: Tensor, root: int = 0, group=None) -> Tensor:
    """Sum over the group at the root, zeros elsewhere: [N] +g -> [N] @0; backward broadcasts."""

    def there(x):
        total = _fresh(x)
        dist.reduce(total, group_dst=root, group=group)
        return total if dist.get_rank(group) == root else torch.zeros_like(total)

    return _apply(x, there, partial(broadcast, root=root, group=group))


def scatter(x: Tensor, root: int = 0, dim: int = 0, group=None) -> Tensor:
    """Give rank r shard r of the root's x: [N] @0 -> [N/g]; backward gathers at the root.

    The others give a tensor of the same shape; its entries do not count.
    """

    def there(x):
        shards = stacked(x, dist.get_world_size(group), dim).contiguous()
        mine, is_root = torch.empty_like(shards[0]), dist.get_rank(group) == root
        dist.scatter(mine, list(shards) if is_root else None, group_src=root, group=group)
        return mine

    return _apply(x, there, partial(gather, root=root, dim=dim, group=group))


def gather(x: Tensor, root: int = 0, dim: int = 0, group=None) -> Tensor:
    """Join all shards at the root, zeros elsewhere: [N/g] -> [N] @0; backward scatters."""

    def there(x):
        known(x, dim)
        shards = x.new_zeros(dist.get_world_size(group), *x.shape)
        is_root = dist.get_rank(group) == root
        dist.gather(_fresh(x), list(shards) if is_root else None, group_dst=root, group=group)
        return joined(shards, dim)

    return _apply(x, there, partial(scatter, root=root, dim=dim, group=group))


def shift(x: Tensor, by: int = 1, group=None) -> Tensor:
    """Pass x on to the rank `by` further round the ring: [N] -> [N]; backward passes it back."""

    def there(x):
        rank, n = dist.get_rank(group), dist.get_world_size(group)
        if by % n == 0:
            return _fresh(x)  # all the way round, or a ring of one: every rank keeps its own
        arrived = torch.empty_like(x, memory_format=torch.contiguous_format)
        sends, receives = {(rank + by) % n: x.contiguous()}, {(rank - by) % n: arrived}
        exchange(sends, receives, group, f"shift {by}")
        return arrived

    return _apply(x, there, partial(shift, by=-by, group=group))


def _fresh(x):
    """Copy x into contiguous memory of its own, because collectives write in place."""
    return x.clone(memory_format=torch.contiguous_format)


def _gathered(x, dim, group):
    known(x, dim)
    shards = x.new_empty(dist.get_world_size(group), *x.shape)
    dist.all_gather_single(shards.view(-1), x.contiguous().view(-1), group=group)
    return joined(shards, dim)


def _swapped(x, split_dim, concat_dim, group, sent, received):
    """Send the pieces as one flat buffer, which is the same for all dims, even or uneven."""
    n, rank, concat_dim = dist.get_world_size(group), dist.get_rank(group), known(x, concat_dim)
    if (sent is None) != (received is None):
        raise ValueError(
            "all_to_all got only one of `sent` and `received`: give both of them, or none."
        )
    if sent is None:
        pieces = stacked(x, n, split_dim).unbind()
        received = [pieces[0].shape[concat_dim]] * n
    else:
        pieces = uneven(x, sent, n, split_dim)
    if len(received) != n:
        raise ValueError(f"received={list(received)} does not name a count for each of {n} ranks.")
    mine = list(pieces[rank].shape)
    shapes = [mine[:concat_dim] + [count] + mine[concat_dim + 1 :] for count in received]
    sizes = [torch.Size(shape).numel() for shape in shapes]
    arrived = x.new_empty(sum(sizes))
    flat = torch.cat([piece.reshape(-1) for piece in pieces])
    dist.all_to_all_single(arrived, flat, sizes, [p.numel() for p in pieces], group=group)
    parts = [part.view(shape) for part, shape in zip(arrived.split(sizes), shapes)]
    return torch.cat(parts, concat_dim)
