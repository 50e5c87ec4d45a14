"""Noisy top-k: noise lets a gate try other experts, and gives the load of an expert a gradient.

    H(x) = x·W + noise · softplus(x·W_noise)          G(x) = softmax over the k largest of H(x), 0 elsewhere

How many tokens an expert gets is a count, which has no gradient. But the probability that expert i is
among the k best, if its own noise were drawn once more, is smooth in x:

    P(x, i) = Φ((x·W_i − the k-th largest of the others' H) / softplus(x·W_noise,i))    load_i = Σ_x P(x, i)

With two levels a primary gate chooses groups of experts, and each group has a gate of its own:

    G(x)_ij = G_primary(x)_i · G_i(x)_j        load_ij = load_primary,i · load_i(X_i)_j / |X_i|

where X_i are the tokens that go to group i. Ranks of one node hold one group, so that a token travels
to few nodes.

Source: Shazeer et al. 2017 (arXiv 1701.06538), equations 3 to 5 and appendices A and B.
"""  # noqa: E501

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from lib.predict.arguments import equal_share, whole
from lib.single.experts.gates import Decision, Gate, Load
from lib.single.experts.routing import chosen_by_tokens


class NoisyGate(Gate):
    """Adds noise to the logits while it trains, keeps the k largest, and takes their softmax."""

    def __init__(self, width: int, experts: int, k: int):
        super().__init__(width, experts, k)
        self.noise_weight = nn.Parameter(torch.empty(experts, width))

    def forward(self, x: Tensor) -> Decision:
        clean, logits, spread = self.noisy_logits(x, self.weight, self.noise_weight)
        best = (logits + self.bias).topk(self.k, -1).indices
        weights = logits.gather(-1, best).softmax(-1)
        load = None
        if spread is not None:
            load = Load(chosen_again(clean, logits, spread, self.k).sum(0))
        decided = chosen_by_tokens(best, weights, self.experts)
        return Decision(decided, logits, logits.softmax(-1), load)

    def noisy_logits(self, x: Tensor, weight: Tensor, noise_weight: Tensor):
        """Return x·W, the same with noise, and the noise's standard deviation: each [N, E].

        Outside training there is no noise, and the last is None.
        """
        clean = self.logits(x, weight)
        if not self.training:
            return clean, clean, None
        spread = softplus(self.logits(x, noise_weight))
        return clean, clean + self.noise(clean) * spread, spread

    def noise(self, like: Tensor) -> Tensor:
        """Return standard normal numbers in the shape of `like`."""
        return torch.randn_like(like)


class TwoLevelGate(NoisyGate):
    """Chooses groups of experts by one noisy gate, and experts within each by another.

    The E experts form `groups`, expert i·n + j being the j-th of group i. A token goes to
    `groups_chosen` groups, and in each to k/groups_chosen experts. Raises ValueError where these
    do not divide.
    """

    def __init__(self, width: int, experts: int, k: int, groups: int = 2, groups_chosen: int = 1):
        super().__init__(width, experts, k)
        self.groups = whole(groups, "The number of groups")
        self.primary = NoisyGate(width, groups, groups_chosen)
        group_size = equal_share(experts, groups, "There are {} experts", "{} groups")
        self.k_inside = equal_share(k, groups_chosen, "k of a gate is {}", "{} chosen groups")
        if self.k_inside > group_size:
            raise ValueError(
                f"A token cannot choose {self.k_inside} of the {group_size} experts of a group. "
                "Choose more groups for each token, or a smaller k."
            )

    def forward(self, x: Tensor) -> Decision:
        first = self.primary(x)
        groups, n = first.assignments.expert.view(len(x), -1), self.experts // self.groups
        clean, logits, spread = (
            None if t is None else t.unflatten(-1, (self.groups, n))
            for t in self.noisy_logits(x, self.weight, self.noise_weight)
        )
        best = logits.topk(self.k_inside, -1).indices  # [N, G, k inside]
        inside = logits.gather(-1, best).softmax(-1)
        pick = groups[:, :, None].expand(-1, -1, self.k_inside)
        experts_of = (groups[:, :, None] * n + best.gather(1, pick)).flatten(1)
        weights = (first.assignments.weight.view(len(x), -1, 1) * inside.gather(1, pick)).flatten(1)
        scores = (first.scores[:, :, None] * logits.softmax(-1)).flatten(1)
        load = None
        if spread is not None:
            goes = torch.zeros_like(first.scores).scatter(1, groups, 1.0)  # [N, G], X_i
            again = chosen_again(clean, logits, spread, self.k_inside)
            inside_load = (again * goes[:, :, None]).sum(0)
            load = Load(inside_load, first.load.experts, goes.sum(0))
        decided = chosen_by_tokens(experts_of, weights, self.experts)
        return Decision(decided, logits.flatten(1), scores, load)


def chosen_again(clean: Tensor, logits: Tensor, spread: Tensor, k: int) -> Tensor:
    """Return P(x, i), the probability that i is among the k best if its noise is drawn again.

    All are [.., E]; `logits` has the noise, `clean` has not, and `spread` is its deviation.
    """
    if k == clean.shape[-1]:
        return torch.ones_like(clean)
    largest = logits.topk(k + 1, -1).values
    last_in, first_out = largest[..., k - 1, None], largest[..., k, None]
    # The k-th largest of the others: for one of the k best that is the first after them.
    bar = torch.where(logits >= last_in, first_out, last_in)
    return torch.special.ndtr((clean - bar) / spread)
