"""The mean cross-entropy over the tokens of all ranks, however many labels each of them has.

    logits [B, S/P, V], labels [B, S/P] -> Σ losses [] +cp ÷ number of labels [] +cp -> loss []

Ranks rarely have equally many labels that count: padding and ignored tokens lie on some of them. A
mean of the ranks' means would give the labels of such a rank more weight than the others. So sums
are summed, and then divided once.

With replicas (data parallelism beside it) each replica has a sum of its own, and its gradients are
averaged over the dp replicas. A mean over the replica's own labels would again be a mean of means:

    loss of a replica = dp · its Σ losses ÷ number of labels of all replicas

The average of these over the replicas, and of their gradients, is that of the mean over all labels.
"""

import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import cross_entropy

from lib.parallel.sequence.shards import ALONE
from lib.ranks import collectives


def sequence_cross_entropy(
    logits: Tensor, labels: Tensor, group=None, *, ignore_index: int = -100, inner=ALONE,
    replicas=ALONE,
) -> Tensor:  # fmt: skip
    """Return the mean cross-entropy in nats, equal on all ranks: logits [.., V], labels [..] -> [].

    Labels of `ignore_index` count neither in the sum nor in the number. Backward gives each rank
    the gradient of its own logits, so gradients of weights are still to be summed over the ranks.
    `replicas` is a group of ranks with other samples, over which gradients are averaged. Then the
    loss differs between them, and its average over them is the mean over the labels of all.
    """
    flat = logits.flatten(0, -2), labels.flatten()
    total = cross_entropy(*flat, ignore_index=ignore_index, reduction="sum")
    number = (labels != ignore_index).sum()
    for each in (group,) if inner is ALONE else (inner, group):
        total = collectives.all_reduce(total, each)
        dist.all_reduce(number, group=each)
    if replicas is not ALONE:
        dist.all_reduce(number, group=replicas)
        total = total * dist.get_world_size(replicas)
    return total / number
