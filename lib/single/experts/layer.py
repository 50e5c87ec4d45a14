"""The plain layer of experts, which is the truth for all that run on ranks, and a GPT that has it.

    x [B, S, D] -> gate -> each token to its k experts, D -> F -> D -> y [B, S, D] = Σ weight · expert(x)

All E experts are kept, and k of them work on a token: the layer has E/k times the parameters of what
it computes. A token that a capacity drops from all its experts gives 0, and the block's residual
connection carries it on.
"""  # noqa: E501

from collections.abc import Callable, Mapping, Sequence
from math import sqrt

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from lib.predict.arguments import real, whole
from lib.single.experts.balance import LOSSES
from lib.single.experts.batch import OneDevice
from lib.single.experts.combine import weighted_sum
from lib.single.experts.kinds import gate_of
from lib.single.experts.products import grouped_product
from lib.single.experts.routing import DROPS, Assignments
from lib.single.models import Block


class Experts(nn.Module):
    """Holds the two matrices of E feed-forward networks: rows [A, D] -> [A, F] -> [A, D].

    The rows lie in the order of their experts, `counts[e]` for expert e.
    """

    def __init__(self, width: int, hidden: int, experts: int):
        super().__init__()
        self.up = nn.Parameter(torch.empty(experts, width, hidden))
        self.down = nn.Parameter(torch.empty(experts, hidden, width))

    def forward(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        return grouped_product(gelu(grouped_product(rows, self.up, counts)), self.down, counts)

    def launch(self, rows: Tensor, counts: Tensor) -> Callable[[], Tensor]:
        """Return a function that gives the result; where rows travel first, they are under way."""
        return lambda: self(rows, counts.tolist())


class MoE(nn.Module):
    """Sends each token to k of E feed-forward networks and adds what they return, by weight.

    `gate` is one of `kinds.GATES`, such as "softmax", and `gate_options` are its own. With
    `capacity`, a factor, an expert takes at most capacity · k·N/E of the N tokens, and `drop` says
    which ("arrival" or "weight"); without it nothing is dropped. `shared` experts work on every
    token. `losses` names auxiliary losses (balance.py) and their weights. After each forward
    `layer.losses` holds them, weighted, `layer.decision` what the gate decided, and `layer.kept`
    the tokens of each expert, [E].
    """

    def __init__(
        self, width: int, hidden: int, experts: int, k: int, gate: str = "softmax",
        capacity: float | None = None, drop: str = "arrival", shared: int = 0,
        losses: Mapping[str, float] | None = None, seed: int = 0, **gate_options,
    ):  # fmt: skip
        super().__init__()
        whole(width, "The width of a layer of experts")
        whole(hidden, "The hidden size of an expert")
        self.gate = gate_of(gate, width, experts, k, **gate_options)
        self.experts = Experts(width, hidden, experts)
        self.shared = Experts(width, hidden * shared, 1) if whole(shared, "shared", 0) else None
        if drop not in DROPS:
            raise ValueError(f"Tokens are dropped by {' or '.join(DROPS)}, not by {drop!r}.")
        if capacity is not None:
            real(capacity, "The capacity factor", zero=False)
        self.capacity, self.drop, self.batch = capacity, drop, OneDevice()
        self.loss_weights = _checked(losses or {})
        self.losses: dict[str, Tensor] = {}
        self.decision, self.kept = None, None
        self.draw(seed)

    def draw(self, seed: int, scale: float = 0.02, added_to_x: float = 0.02) -> None:
        """Draw all weights again, on every device the same; `added_to_x` is the scale of `down`."""
        generator = torch.Generator("cpu").manual_seed(seed)
        for name, parameter in self.named_parameters():
            size = added_to_x if name.endswith("down") else scale
            if not parameter.is_meta:
                drawn = torch.randn(
                    parameter.shape, generator=generator, dtype=torch.float32, device="cpu"
                )
                parameter.data.copy_(size * drawn)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        self.decision = self.gate(rows)
        self.losses = {
            name: weight * LOSSES[name](self.decision, self.batch.total)
            for name, weight in self.loss_weights.items()
        }
        kept = self.fitting(self.decision.assignments).by_expert()
        self.kept = kept.counts
        finish = self.experts.launch(rows.index_select(0, kept.token), self.kept)
        always = None if self.shared is None else self.shared(rows, [len(rows)])
        y = self.combined(rows, kept, finish())
        return (y if always is None else y + always).view(x.shape)

    def fitting(self, assignments: Assignments) -> Assignments:
        """Return the assignments that the capacity leaves."""
        if self.capacity is None:
            return assignments
        return assignments.only(self.batch.fitting(assignments, self.capacity, self.drop))

    @staticmethod
    def combined(rows: Tensor, kept: Assignments, returned: Tensor) -> Tensor:
        """Return each token's sum of weight · what its experts returned: [N, D]."""
        return weighted_sum(returned, kept.weight.to(returned.dtype), kept.token, len(rows))


def _checked(losses: Mapping[str, float]) -> dict[str, float]:
    for name, weight in losses.items():
        if name not in LOSSES:
            raise ValueError(f"No loss is called {name!r}. Choose from {', '.join(LOSSES)}.")
        real(weight, f"The weight of the loss {name!r}")
    return dict(losses)


def auxiliary_loss(model: nn.Module) -> Tensor | float:
    """Return the sum of the weighted losses of all layers of experts since their last forward: [].

    Each layer counts its own tokens; layers are not thrown together, because one layer's even load
    would hide another's uneven one.
    """
    layers = (layer for layer in model.modules() if isinstance(layer, MoE))
    return sum((loss for layer in layers for loss in layer.losses.values()), 0.0)


def with_auxiliary(loss: Tensor, model: nn.Module, share: float = 1.0) -> Tensor:
    """Return the loss with `share` of the model's auxiliary losses added, to go backward from.

    Without layers of experts it is the loss itself, so that a plain step computes nothing more.
    """
    own = auxiliary_loss(model)
    return loss + share * own if isinstance(own, Tensor) else loss


def with_experts(
    model: nn.Module, experts: int, k: int, every: int = 1, seed: int = 0, **options
) -> nn.Module:
    """Replace the feed-forward part of every `every`-th block of a GPT by experts, and return it.

    Each expert has the size of the part that it replaces; `options` are those of `MoE`. Weights are
    drawn by the model's rule from `seed` and the block's number.
    """
    blocks = [part for part in model.modules() if isinstance(part, Block)]
    if not blocks[whole(every, "every") - 1 :]:
        raise ValueError(
            f"The model has {len(blocks)} blocks, and every={every} chooses none of them. Give a "
            "GPT, and a smaller `every`."
        )
    for number in range(every - 1, len(blocks), every):
        plain = blocks[number].mlp
        hidden, width = plain.up.weight.shape
        layer = MoE(width, hidden, experts, k, **options)
        layer.draw(seed + number, 0.02, 0.02 / sqrt(2 * len(blocks)))
        blocks[number].mlp = layer.to(plain.up.weight)
    return model
