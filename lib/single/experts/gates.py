"""Gates: a matrix that scores every expert for every token, and a rule that decides by the scores.

    x [N, D] · W [D, E] -> logits [N, E] -> scores [N, E] -> assignments

| gate | scores | who chooses | weights |
|---|---|---|---|
| `softmax` | softmax of the logits | each token its k best | the chosen scores, divided by their sum if k > 1 |
| `sigmoid` | sigmoid of the logits | each token its k best, by score and bias | the chosen scores ÷ their sum |
| `expert choice` | softmax of the logits | each expert its N·k/E best tokens | the chosen scores |

With k = 1 a weight divided by its own sum would be 1 whatever the gate says, and the gate would get no
gradient; so the softmax gate keeps the score itself there, as Switch does. Scores are computed in at
least float32: in bfloat16 many of them tie (8 bits), and a small gradient vanishes in the sum.

Gates with noise are in `noisy_gates.py`.

Sources: Lepikhin et al. 2020, "GShard" (arXiv 2006.16668) and Fedus et al. 2021, "Switch Transformers"
(arXiv 2101.03961) for softmax; Zhou et al. 2022 (arXiv 2202.09368) for expert choice; DeepSeek-AI 2024, "DeepSeek-V3" (arXiv 2412.19437),
equations 12 to 16, for sigmoid; Wang et al. 2024 (arXiv 2408.15664) for the bias.
"""  # noqa: E501

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from lib.predict.arguments import real, whole
from lib.single.experts.batch import OneDevice
from lib.single.experts.routing import Assignments, chosen_by_tokens


def alone(x: Tensor) -> Tensor:
    """Return x as it is: the sum over one rank."""
    return x


class Load(NamedTuple):
    """Holds sums over tokens, from which the expected number of tokens of each expert follows.

    With one level `experts` [E] is that number. With two levels `experts` [G, n] counts the tokens
    of each group, `groups` [G] are the expected tokens of the groups, and `members` [G] those that
    they have.
    """

    experts: Tensor
    groups: Tensor | None = None
    members: Tensor | None = None

    def estimate(self, total: Callable = alone) -> Tensor:
        """Return the expected tokens of each expert, [E]; `total` adds sums over ranks."""
        if self.groups is None:
            return total(self.experts)
        share = total(self.experts) / total(self.members).clamp(min=1)[:, None]
        return (total(self.groups)[:, None] * share).flatten()


class Decision(NamedTuple):
    """Holds what a gate decided for N tokens, and from what.

    `gates` [N, E] are the weights of all experts, 0 where a token does not go (Shazeer's G(x));
    `load` is a smooth estimate of the tokens of each expert, where the gate has noise.
    """

    assignments: Assignments
    logits: Tensor
    scores: Tensor
    load: Load | None = None

    @property
    def gates(self) -> Tensor:
        """Return the weight of every expert for every token: [N, E]."""
        token, expert, weight, _ = self.assignments
        return torch.zeros_like(self.scores).index_put((token, expert), weight)


class Gate(nn.Module):
    """Scores E experts for each token and lets each token choose the k best: the softmax gate.

    `bias` [E] is added to the scores for the choice, and not to the weights; it is a buffer that
    `balance.nudge` changes, and it begins at 0. Raises ValueError where k is above E.
    """

    def __init__(self, width: int, experts: int, k: int):
        super().__init__()
        self.experts, self.k = whole(experts, "The number of experts"), whole(k, "k of a gate")
        if k > experts:
            raise ValueError(
                f"Each token cannot choose {k} of {experts} experts. Choose k of at most {experts}."
            )
        self.weight = nn.Parameter(torch.empty(experts, width))
        self.register_buffer("bias", torch.zeros(experts))

    def forward(self, x: Tensor) -> Decision:
        """Decide for x [N, D]."""
        logits = self.logits(x, self.weight)
        scores = self.scores(logits)
        chosen = (scores + self.bias).topk(self.k, -1).indices
        weights = self.weights(scores.gather(-1, chosen))
        return Decision(chosen_by_tokens(chosen, weights, self.experts), logits, scores)

    def logits(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return x [N, D] · W [D, E], computed in at least float32."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            return linear(x.to(dtype), weight.to(dtype))

    def scores(self, logits: Tensor) -> Tensor:
        """Return the scores of all experts: [N, E] -> [N, E]."""
        return logits.softmax(-1)

    def weights(self, chosen: Tensor) -> Tensor:
        """Return the weights of the experts that a token chose, from their scores: [N, k]."""
        return chosen if self.k == 1 else chosen / chosen.sum(-1, keepdim=True)


class SigmoidGate(Gate):
    """Scores each expert alone, by a sigmoid, and divides the chosen scores by their sum.

    `scale` multiplies the weights; DeepSeek-V3 has 2.5.
    """

    def __init__(self, width: int, experts: int, k: int, scale: float = 1.0):
        super().__init__(width, experts, k)
        self.scale = real(scale, "scale of a gate", zero=False)

    def scores(self, logits: Tensor) -> Tensor:
        return logits.sigmoid()

    def weights(self, chosen: Tensor) -> Tensor:
        return self.scale * chosen / chosen.sum(-1, keepdim=True)


class ExpertChoice(Gate):
    """Lets each expert choose its tokens, so that all experts have the same load by construction.

    An expert takes the `room` · N·k/E tokens with the largest scores for it, so that a token has
    k experts on average, and may have none. A token's choice depends on the tokens after it, so
    that a model which writes one token after the other cannot decide as it did in training.
    """

    def __init__(self, width: int, experts: int, k: int, room: float = 1.0):
        super().__init__(width, experts, k)
        self.room = real(room, "room of a gate", zero=False)
        self.batch = OneDevice()

    def forward(self, x: Tensor) -> Decision:
        logits = self.logits(x, self.weight)
        scores = self.scores(logits)
        chosen = self.batch.largest(scores + self.bias, self.room, self.k)
        token, expert = chosen.nonzero(as_tuple=True)
        weights = scores[token, expert]
        return Decision(Assignments(token, expert, weights, self.experts), logits, scores)
