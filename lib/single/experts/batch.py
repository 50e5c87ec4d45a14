"""What a layer of experts decides over the whole batch: on one device nobody has to be asked."""

import torch
from torch import Tensor

from lib.single.experts.routing import Assignments, capacity_of, within


class OneDevice:
    """Says what the whole batch decides where one device has all of it.

    Ranks that share a batch put an object in its place that asks the others.
    """

    def total(self, x: Tensor) -> Tensor:
        """Return the sum of x over all that share the batch."""
        return x

    def largest(self, scores: Tensor, factor: float, k: int) -> Tensor:
        """Return which scores are among the factor · k·N/E largest of their expert: a mask [N, E].

        The number is rounded up, and at most N.
        """
        tokens, experts = scores.shape
        each = min(tokens, capacity_of(factor, k * tokens, experts))
        places = scores.topk(each, 0).indices
        return torch.zeros_like(scores, dtype=torch.bool).scatter_(0, places, True)

    def fitting(self, assignments: Assignments, factor: float, drop: str) -> Tensor:
        """Return which assignments fit into a capacity: a mask [A]."""
        capacity = capacity_of(factor, len(assignments.token), assignments.experts)
        return within(assignments, capacity, drop)
