"""What ranks that share a batch decide together: losses and capacities over all of their tokens.

Each rank has the decisions of its own tokens. The plain layer decides over the whole batch, and so
does this: sums of the losses are added over the ranks, and an expert's capacity counts the tokens of
the ranks before this one as if they stood earlier in the batch. Experts that choose their tokens see the
scores of all ranks. A layer whose ranks decide alone, each
over its own tokens, sends less and is another model: a loss over each rank's tokens asks every rank to
be even, and a capacity of each rank drops tokens that another rank had room for.
"""  # noqa: E501

import torch
import torch.distributed as dist
from torch import Tensor

from lib.ranks import collectives
from lib.single.experts.batch import OneDevice
from lib.single.experts.routing import Assignments, capacity_of, within


class OverRanks(OneDevice):
    """Asks all ranks of a group what the whole batch has; each rank's loss is a mean of its own.

    The ranks' losses are averaged, so that a loss over the whole batch, which is the same on all P
    ranks, counts once: backward multiplies the gradient of each rank's part by P.
    """

    def __init__(self, group=None):
        self.group = group

    def total(self, x: Tensor) -> Tensor:
        """Return the sum of x over the ranks; backward multiplies by P and sends nothing."""
        ranks = dist.get_world_size(self.group)
        return collectives.all_reduce(_Times.apply(x, ranks), self.group)

    def largest(self, scores: Tensor, factor: float, k: int) -> Tensor:
        """Return which of this rank's scores are among the largest of the whole batch: [N/P, E]."""
        rank, own = dist.get_rank(self.group), len(scores)
        everyone = collectives.all_gather(scores.detach(), 0, self.group)
        return super().largest(everyone, factor, k)[rank * own : (rank + 1) * own]

    def fitting(self, assignments: Assignments, factor: float, drop: str) -> Tensor:
        """Return which of this rank's assignments fit into a capacity of the whole batch: [A]."""
        ranks, rank = dist.get_world_size(self.group), dist.get_rank(self.group)
        own = len(assignments.token)
        if drop == "arrival":
            counts = assignments.counts
            everyone = counts.new_empty(ranks, len(counts))
            dist.all_gather_single(everyone.view(-1), counts, group=self.group)
            capacity = capacity_of(factor, int(everyone.sum()), assignments.experts)
            return within(assignments, capacity, drop, everyone[:rank].sum(0))
        # By weight every rank has to see all weights; A is the same everywhere.
        capacity = capacity_of(factor, own * ranks, assignments.experts)
        expert, weight = (
            collectives.all_gather(t.detach(), 0, self.group)
            for t in (assignments.expert, assignments.weight)
        )
        everyone = assignments._replace(expert=expert, weight=weight)
        return within(everyone, capacity, drop)[rank * own : (rank + 1) * own]


class _Times(torch.autograd.Function):
    """Leave the value as it is, and multiply its gradient."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.factor, None
