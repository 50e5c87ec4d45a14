"""The mean cross-entropy over the tokens of all ranks, however many labels each of them has.

    logits [B, S/P, V], labels [B, S/P] -> Σ losses [] +cp ÷ number of labels [] +cp -> loss []

Ranks rarely have equally many labels that count: padding and ignored tokens lie on some of them. A
mean of the ranks' means would give the labels of such a rank more weight than the others. So sums
are summed, and then divided once.
"""

import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import cross_entropy

from lib.parallel.sequence.shards import ALONE
from lib.ranks import collectives


def sequence_cross_entropy(
    logits: Tensor, labels: Tensor, group=None, *, ignore_index: int = -100, inner=ALONE
) -> Tensor:
    """Return the mean cross-entropy in nats, equal on all ranks: logits [.., V], labels [..] -> [].

    Labels of `ignore_index` count neither in the sum nor in the number. Backward gives each rank
    the gradient of its own logits, so gradients of weights are still to be summed over the ranks.
    """
    flat = logits.flatten(0, -2), labels.flatten()
    total = cross_entropy(*flat, ignore_index=ignore_index, reduction="sum")
    number = (labels != ignore_index).sum()
    for each in (group,) if inner is ALONE else (inner, group):
        total = collectives.all_reduce(total, each)
        dist.all_reduce(number, group=each)
    return total / number
