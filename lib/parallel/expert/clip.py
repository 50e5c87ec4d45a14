"""The norm of all gradients of an expert-parallel model, in which each number counts once."""

import torch.distributed as dist
from torch import Tensor, nn

from lib.parallel.expert.transform import ExpertShard
from lib.ranks.norms import norm_of_all, scale_gradients, sum_of_powers


def clip_grad_norm_(model: nn.Module, max_norm: float, norm_type: float = 2.0) -> Tensor:
    """Scale the gradients of a model so that the norm of the whole model's is at most `max_norm`.

    Returns the norm before, which is the same on every rank. The gate and the dense parts, which
    all ranks have, count on the group's first rank alone, and each expert on the rank that has it.
    """
    group = model.expert_parallel_group
    shards = (part for part in model.modules() if isinstance(part, ExpertShard))
    own = {id(p) for shard in shards for p in shard.parameters()}
    trained = [p for p in model.parameters() if p.grad is not None]
    first = dist.get_rank(group) == 0
    counted = [p.grad for p in trained if first or id(p) in own]
    like = next(model.parameters())
    norm = norm_of_all(sum_of_powers(counted, norm_type), group, like, norm_type)
    scale_gradients([p.grad for p in trained], norm, max_norm)
    return norm
