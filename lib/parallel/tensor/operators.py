"""Megatron's four operators, in conjugate pairs: what one does forward, its partner does backward.

    copy_to_group      forward  x -> x                    backward  dx +tp -> all_reduce -> dx
    reduce_from_group  forward  y +tp -> all_reduce -> y  backward  dy -> dy
    split_to_group     forward  [.., D] -> [.., D/tp]     backward  [.., D/tp] -> all_gather -> [.., D]
    gather_from_group  forward  [.., D/tp] -> all_gather -> [.., D]     backward  [.., D] -> [.., D/tp]
    gather_sequence    forward  [B, S/tp, D] -> all_gather -> [B, S, D]
                       backward [B, S, D] +tp -> reduce_scatter -> [B, S/tp, D]
    scatter_sequence   the other way round

The tensors outside a split region are *one*: all ranks have the same x, and the same gradient of it.
With sequence parallelism each rank has other tokens there, and the last pair takes the place of the
first: an all_reduce is a reduce_scatter and an all_gather.
Source: Shoeybi et al. 2019, "Megatron-LM" (arXiv 1909.08053), section 3, where the first two are
called f and g; Korthikanti et al. 2022 (arXiv 2205.05198), section 4.2.2, where the last two are.
"""  # noqa: E501

import torch
import torch.distributed as dist
from torch import Tensor

from lib.predict.arguments import equal_share
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


def gather_sequence(x: Tensor, group=None) -> Tensor:
    """Begin a split region with all tokens: x [B, S/tp, D] -> [B, S, D]; backward scatters sums."""
    return collectives.all_gather(x, 1, group)


def scatter_sequence(x: Tensor, group=None) -> Tensor:
    """End a split region with own tokens: x [B, S, D] +tp -> [B, S/tp, D]; backward gathers.

    Raises ValueError where the ranks cannot share the S tokens equally.
    """
    equal_share(x.shape[1], dist.get_world_size(group), "A sequence has {} tokens")
    return collectives.reduce_scatter(x, 1, group)


class _SumInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.mark_dirty(x)
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None
