"""Real moments and gradients of a small GPT, and what factors, covers and blocks make of them.

They come from trainings of the GPT of training.py, on the CPU with one thread, so that their digits
do not depend on the device.
"""

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lib.course.lean_optimizers.training import RATES, trained
from lib.single.optimizers import SM3, AdamW
from lib.single.optimizers.code_maps import code_map

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


# --- factors, covers, blocks


def factor_table(rank_one) -> str:
    """Write how far steps by `rank_one(v)` are from steps by v, for the matrices of `moments`.

    A step is g/√v. The percentiles are those of √(v/rank_one(v)) over the weights with v > 0: how
    many times as long a step becomes.
    """
    lines = [f"{'matrix':<8}{'numbers':>8}{'kept':>6} times as long: 5, 50, 95 %"]
    for name, (_, v) in moments().items():
        used = v > 0
        longer = (v[used] / rank_one(v)[used]).sqrt()
        low, middle, high = percentiles(longer)
        cells = f"{low:>7.2f}{middle:>6.2f}{high:>6.2f}"
        lines.append(f"{name:<8}{v.numel():>8,}{sum(v.shape):>6}{cells:>25}")
    return "\n".join(lines)


def percentiles(numbers: Tensor, shares=(0.05, 0.5, 0.95)) -> list[float]:
    """Return the numbers below which these shares of all numbers lie."""
    ordered = numbers.flatten().sort().values
    return [ordered[round(share * (len(ordered) - 1))].item() for share in shares]


def bounds_table() -> str:
    """Write how far the bounds of SM3-I and SM3-II lie above Adagrad's sums of real squares."""
    lines = ["steps   SM3-I: 5, 50, 95 %   SM3-II: 5, 50, 95 %"]
    squares = [gradient.square() for gradient in gradients()]
    total = torch.zeros_like(squares[0])
    first = second = (total.new_zeros(len(total), 1), total.new_zeros(1, total.shape[1]))
    for step, square in enumerate(squares, 1):
        total = total + square
        first = tuple(old + square.amax(dim, True) for old, dim in zip(first, (1, 0)))
        nu = torch.minimum(*second) + square
        second = nu.amax(1, True), nu.amax(0, True)
        if step in (1, 5, 20):
            ratios = [(bound / total).sqrt() for bound in (torch.minimum(*first), nu)]
            cells = ["".join(f"{p:>6.1f}" for p in percentiles(ratio)) for ratio in ratios]
            lines.append(f"{step:>5}{cells[0]:>21}{cells[1]:>23}")
    return "\n".join(lines)


def sm3_weights(steps: int = 5) -> Tensor:
    """Return what was a matrix of zeros after steps of the library's SM3-I at the rate 0.1."""
    weight = nn.Parameter(torch.zeros_like(gradients()[0]))
    optimizer = SM3([weight], lr=0.1, momentum=0.0, version="I")
    for gradient in gradients()[:steps]:
        weight.grad = gradient
        optimizer.step()
    return weight.detach()


def code_table() -> str:
    """Write what 8 bits make of real second moments: which become 0, and how far others are off."""
    lines = ["map      a maximum for   become 0   median error"]
    v = moments()["tokens"].v.flatten()
    v = v[: v.numel() // 256 * 256]
    for kind in ("linear", "dynamic"):
        for block, words in ((v.numel(), "all"), (256, "each 256")):
            codes = code_map(kind, signed=False).to(v.device)
            again = codes.decode(*codes.encode(v, block), block)
            used = v > 0
            lost = ((again == 0) & used).sum() / used.sum()
            kept = again > 0
            off = percentiles((again[kept] / v[kept] - 1).abs(), (0.5,))[0]
            lines.append(f"{kind:<9}{words:<13}{lost:>11.1%}{off:>15.1%}")
    return "\n".join(lines)
