"""Trainings with 8-bit Adam by map and by blocks: what happens where a second moment becomes 0.

Adam divides by √v̂ + ε. A weight whose v became 0 in its code, and whose gradient is 0 in the next
step while its m is not, moves by rate · m̂/ε, with ε = 10⁻⁸. So do the weights of tokens that a
batch does not contain.
"""

from collections.abc import Mapping
from statistics import mean

import torch
from torch import nn

from lib.course.lean_optimizers.training import MAKERS, RATES, SEEDS, trained
from lib.single.optimizers import Adam8bit, AdamW

RATE, STEPS = RATES["adam8bit"], 50
# how a table names a training -> whether embeddings keep AdamW's fp32 moments, options of Adam8bit
Cases = Mapping[str, tuple[bool, dict]]
CASES: Cases = {
    "linear, one maximum": (False, {"kind": "linear", "block": None}),
    "linear, blocks": (False, {"kind": "linear"}),
    "dynamic, blocks": (False, {}),
    "dynamic, embeddings fp32": (True, {}),
}


def made(
    name: str, model: nn.Module, rate: float, cases: Cases = CASES
) -> list[torch.optim.Optimizer]:
    """Return the optimizers of a case: 8-bit Adam, and AdamW where embeddings keep 32 bits."""
    if name == "AdamW":
        return MAKERS["adamw"](model, rate)
    embeddings_in_fp32, options = cases[name]
    named = {False: [], True: []}
    for parameter_name, parameter in model.named_parameters():
        embedding = parameter_name.endswith(("tokens.weight", "positions.weight"))
        named[embedding and embeddings_in_fp32].append(parameter)
    optimizers: list = [Adam8bit(named[False], lr=rate, weight_decay=1e-2, **options)]
    return optimizers + ([AdamW(named[True], lr=rate)] if named[True] else [])


class Moved:
    """Steps some optimizers together, and keeps the largest move of a weight in one step.

    `moves[t - 1]` is (how far, the gradient there) for step t.
    """

    def __init__(self, model: nn.Module, optimizers: list[torch.optim.Optimizer]):
        self.parameters, self.optimizers = list(model.parameters()), optimizers
        self.moves: list[tuple[float, float]] = []

    def step(self) -> None:
        """Take a step with each optimizer."""
        before = [parameter.detach().clone() for parameter in self.parameters]
        for optimizer in self.optimizers:
            optimizer.step()
        moves = [(p.detach() - old).abs() for p, old in zip(self.parameters, before, strict=True)]
        largest = max(range(len(moves)), key=lambda n: moves[n].max().item())
        where = moves[largest].argmax()
        gradient = self.parameters[largest].grad.flatten()[where].item()
        self.moves.append((moves[largest].max().item(), gradient))


def training_of(
    name: str, seed: int = 0, steps: int = STEPS, cases: Cases = CASES
) -> tuple[list[float], list[tuple[float, float]]]:
    """Train the small GPT as one of `cases` or "AdamW"; return losses, and the moves of `Moved`."""
    kept = []

    def make(model, rate):
        kept.append(Moved(model, made(name, model, rate, cases)))
        return kept

    return trained(make, seed, RATE, steps), kept[0].moves


def table(cases: Cases = CASES, steps: int = STEPS) -> str:
    """Write for each case the largest move of a weight in step 2, and mean losses of three seeds.

    Of the moves stand those of the seeds with the least and the most. What exploded has other
    digits on another processor, so that it is rounded down: "> 100", "> 1,000".
    """
    lines = [
        f"{'':<24}{'move, step 2':>13}{'loss, step':>12}",
        f"{'seed with the':<24}{'least':>6}{'most':>7}{3:>4}{steps:>8}",
    ]
    for name in ("AdamW", *cases):
        runs = [training_of(name, seed, steps, cases) for seed in SEEDS]
        of_seeds = sorted(moves[1][0] for _, moves in runs)
        third, last = (mean(losses[n] for losses, _ in runs) for n in (2, -1))
        least, most = move_in_words(of_seeds[0]), move_in_words(of_seeds[-1])
        lines.append(f"{name:<24}{least:>6}{most:>7}{third:>4.1f}{in_words(last):>8}")
    return "\n".join(lines)


def move_in_words(move: float) -> str:
    """Write a move; one that is at least 0.1 is rounded down to a power of ten, at most 100."""
    limits = (100, 10, 1, 0.1)
    return next((f"> {limit:g}" for limit in limits if move >= limit), f"{move:.3f}")


def in_words(loss: float) -> str:
    """Write a loss; one that exploded is rounded down to a power of ten."""
    return "> 1,000" if loss > 1000 else "> 10" if loss > 10 else f"{loss:.2f}"
