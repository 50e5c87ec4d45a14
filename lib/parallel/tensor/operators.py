"""Megatron's four operators, in conjugate pairs: what one does forward, its partner does backward.

    copy_to_group      forward  x -> x                    backward  dx +tp -> all_reduce -> dx
    reduce_from_group  forward  y +tp -> all_reduce -> y  backward  dy -> dy
    split_to_group     forward  [.., D] -> [.., D/tp]     backward  [.., D/tp] -> all_gather -> [.., D]
    gather_from_group  forward  [.., D/tp] -> all_gather -> [.., D]     backward  [.., D] -> [.., D/tp]

The tensors outside a split region are *one*: all ranks have the same x, and the same gradient of it.
Source: Shoeybi et al. 2019, "Megatron-LM" (arXiv 1909.08053), section 3, where the first two are
called f and g.
"""  # noqa: E501

import torch
import torch.distributed as dist
from torch import Tensor

from lib.ranks import collectives


def copy_to_group(x: Tensor, group=None) -> Tensor:
    """Begin a split region: x [N] -> [N], which each rank uses in its own way; backward sums."""
    return collectives.copy(x, group)


def reduce_from_group(x: Tensor, group=None, *, in_place: bool = False) -> Tensor:
    """End a split region: sum what each rank has computed, x [N] +tp -> [N]; backward copies.

    With `in_place` the sum takes the memory of `x`, which autograd must not need any more.
    """
    return _SumInPlace.apply(x, group) if in_place else collectives.all_reduce(x, group)


def split_to_group(x: Tensor, dim: int = -1, group=None) -> Tensor:
    """Keep this rank's share of a dim: x [.., D] -> [.., D/tp]; backward gathers."""
    return collectives.split(x, dim, group)


def gather_from_group(x: Tensor, dim: int = -1, group=None) -> Tensor:
    """Join the shares of a dim on every rank: x [.., D/tp] -> [.., D]; backward splits."""
    return collectives.join(x, dim, group)


class _SumInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.mark_dirty(x)
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None
