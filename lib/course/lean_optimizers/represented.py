"""Real moments and gradients of a small GPT, of which chapter 11 keeps less.

They come from trainings of the GPT of training.py, on the CPU with one thread, so that their digits
do not depend on the device.
"""

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lib.course.lean_optimizers.training import RATES, trained
from lib.single.optimizers import AdamW

MOMENT_STEPS = 100
MATRICES = {
    "tokens": "blocks.0.tokens.weight",
    "qkv": "blocks.1.attention.qkv.weight",
    "up": "blocks.1.mlp.up.weight",
    "down": "blocks.1.mlp.down.weight",
}


class Moments(NamedTuple):
    """Holds Adam's two moments of a parameter: averages of its gradients and of their squares."""

    m: Tensor
    v: Tensor


@cache
def moments() -> dict[str, Moments]:
    """Return Adam's moments of matrices of a small GPT after 100 steps, by their short names."""
    model, optimizer = _kept(AdamW)
    named = dict(model.named_parameters())
    states = {name: optimizer.state[named[full]] for name, full in MATRICES.items()}
    return {name: Moments(state["exp_avg"], state["exp_avg_sq"]) for name, state in states.items()}


@cache
def gradients(name: str = "up", steps: int = 20) -> list[Tensor]:
    """Return the gradients of a matrix in the first steps of a training with AdamW."""
    found = []

    class Keeping(AdamW):
        def step(self, closure=None):
            (own,) = [p for p in parameters if p[0] == MATRICES[name]]
            found.append(own[1].grad.clone())
            return super().step(closure)

    parameters = []  # of the model, by name

    def make(model, rate):
        parameters.extend(model.named_parameters())
        return [Keeping(model.parameters(), lr=rate)]

    trained(make, 0, RATES["adamw"], steps)
    return found


def _kept(optimizer: type) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Train the small GPT for 100 steps; return it and its optimizer with all that it keeps."""
    kept = []

    def make(model, rate):
        kept.append((model, optimizer(model.parameters(), lr=rate)))
        return [kept[0][1]]

    trained(make, 0, RATES["adamw"], MOMENT_STEPS)
    return kept[0]


# --- what the chapter does with them


def percentiles(numbers: Tensor, shares=(0.05, 0.5, 0.95)) -> list[float]:
    """Return the numbers below which these shares of all numbers lie."""
    ordered = numbers.flatten().sort().values
    return [ordered[round(share * (len(ordered) - 1))].item() for share in shares]


def sm3_ii(rows: Tensor, columns: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return SM3-II's bounds ν of all weights, and the new bounds of rows and of columns."""
    nu = torch.minimum(rows[:, None], columns) + g**2
    return nu, nu.amax(1), nu.amax(0)
