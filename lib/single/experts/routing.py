"""Which token goes to which expert: a list of assignments, and what a capacity drops of it.

    scores [N, E] -> gate -> token [A], expert [A], weight [A]  -> within capacity -> fewer of them

A gate decides and says so as assignments, one entry for each token that an expert takes: A = k·N
where every token chooses k experts, and A = E·C where every expert chooses C tokens. So what follows
(capacity, sorting by expert, products, sending) is the same for all gates.
"""  # noqa: E501

from math import ceil
from typing import NamedTuple

import torch
from torch import Tensor

from lib.predict.arguments import real

DROPS = ("arrival", "weight")


class Assignments(NamedTuple):
    """Says which tokens which experts take: token [A], expert [A], weight [A], of `experts`.

    `weight` multiplies what the expert returns, and has a gradient.
    """

    token: Tensor
    expert: Tensor
    weight: Tensor
    experts: int

    @property
    def counts(self) -> Tensor:
        """Return how many tokens each expert takes: [E]."""
        return torch.bincount(self.expert, minlength=self.experts)

    def only(self, kept: Tensor) -> "Assignments":
        """Return the assignments at `kept`, a mask [A] or places."""
        places = kept.nonzero().flatten() if kept.dtype == torch.bool else kept
        # Its backward adds rows in place; that of an index with brackets is several times slower.
        token, expert, weight = (t.index_select(0, places) for t in self[:3])
        return Assignments(token, expert, weight, self.experts)

    def by_expert(self) -> "Assignments":
        """Return the same assignments in the order of their experts; each expert's keep theirs."""
        return self.only(torch.argsort(self.expert, stable=True))


def chosen_by_tokens(experts_of: Tensor, weights: Tensor, experts: int) -> Assignments:
    """Return the assignments of tokens that chose: experts_of, weights [N, k] -> A = k·N."""
    n, k = experts_of.shape
    token = torch.arange(n, device=experts_of.device).repeat_interleave(k)
    return Assignments(token, experts_of.flatten(), weights.flatten(), experts)


def capacity_of(factor: float, assignments: int, experts: int) -> int:
    """Return C, the most tokens that an expert takes: factor · A/E, rounded up.

    With A = k·N assignments a factor of 1 is room for exactly a balanced load. Source: Fedus et al.
    2021, "Switch Transformers" (arXiv 2101.03961), equation 3, where k is 1.
    """
    return ceil(real(factor, "The capacity factor", zero=False) * assignments / experts)


def within(
    assignments: Assignments, capacity: int, drop: str = "arrival", before: Tensor | None = None
) -> Tensor:
    """Return which assignments fit, so that no expert takes more than `capacity`: a mask [A].

    With drop="arrival" an expert takes the tokens that come first in the list; with "weight" those
    with the largest weights, and of equal ones the first. `before` [E] are places that tokens which
    are not in this list have already taken.
    """
    if drop not in DROPS:
        raise ValueError(f"Tokens are dropped by {' or '.join(DROPS)}, not by {drop!r}.")
    expert = assignments.expert
    order = torch.arange(len(expert), device=expert.device)
    if drop == "weight":
        order = torch.argsort(assignments.weight.detach(), descending=True, stable=True)
    order = order[torch.argsort(expert[order], stable=True)]
    place = _place_in_run(expert[order], assignments.counts)
    if before is not None:
        place = place + before[expert[order]]
    fits = torch.empty_like(place, dtype=torch.bool)
    fits[order] = place < capacity
    return fits


def _place_in_run(sorted_experts: Tensor, counts: Tensor) -> Tensor:
    """Return each entry's place among those of its expert: 0 0 1 1 1 -> 0 1 0 1 2."""
    starts = counts.cumsum(0) - counts
    return torch.arange(len(sorted_experts), device=counts.device) - starts[sorted_experts]
