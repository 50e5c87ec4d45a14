"""What a checkpoint keeps lies in shares over ranks that all have it, and is gathered when needed.

    x [n], the same on tp ranks -> own share [n/tp] ... backward: all_gather over tp -> x [n]

With tensor parallelism the input of a block is whole on every rank, so its checkpoints are kept tp times.
In shares they are kept once, for one all_gather of the block's input in each backward. Source: Rajbhandari
et al. 2019, "ZeRO" (arXiv 1910.02054), section 6.1 (partitioned activation checkpointing, of ZeRO-R).
"""  # noqa: E501

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks


def in_shares(group=None) -> saved_tensors_hooks:
    """Return a context in which each rank of a group keeps its share of what autograd saves.

    Put it around a checkpoint whose inputs are the same on all ranks of the group, as
    `recompute(model, "all", around=lambda: in_shares(group))` does: then it is the inputs that
    are shared. Where ranks have other values, what is gathered is a mixture of them.
    """
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)

    def own(x: Tensor) -> tuple[Tensor, torch.Size]:
        flat = x.detach().reshape(-1)
        size = -(-len(flat) // ranks)
        share = flat.new_zeros(size)
        piece = flat[rank * size : (rank + 1) * size]
        share[: len(piece)] = piece
        return share, x.shape

    def whole(kept: tuple[Tensor, torch.Size]) -> Tensor:
        share, shape = kept
        gathered = share.new_empty(ranks * len(share))
        dist.all_gather_single(gathered, share, group=group)
        return gathered[: shape.numel()].view(shape)

    return saved_tensors_hooks(own, whole)
