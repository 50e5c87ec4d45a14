"""What chapter 11 runs and prints: what Adam keeps, PyTorch's optimizers, a forgotten line."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from lib.course.lean_optimizers.training import MAKERS, RATES, trained
from lib.predict.shape import GPTShape
from lib.ranks.memory import Memory
from lib.single import GPT, Batches, next_token_loss, optimizers
from lib.single.optimizers import AdamW, Muon, split_parameters

RECORDED = GPTShape(sequence=64, width=128, heads=4, layers=4)


# --- what Adam keeps


def with_memory() -> int:
    """Run two steps of a GPT with AdamW on this rank under `Memory`; return the peak in bytes."""
    model = GPT(RECORDED)
    optimizer = AdamW(model.parameters())
    batches = Batches(1, RECORDED.sequence)
    with Memory(model, optimizer) as memory:
        for step in range(2):
            inputs, targets = batches[step]
            model.zero_grad()
            next_token_loss(model(inputs), targets).backward()
            optimizer.step()
    return memory.peak


# --- PyTorch's own


def pytorchs_table(options: Mapping[str, dict], steps: int = 5) -> str:
    """Write how far our optimizers are from PyTorch's after steps of the small GPT.

    `options` maps the name that both classes have to the options that PyTorch's gets.
    """
    lines = [f"{'':<16}{'largest difference':>20}"]
    for name, own in options.items():
        ours, theirs = getattr(optimizers, name), getattr(torch.optim, name)
        far = _apart(_stepped(ours, {}, steps), _stepped(theirs, own, steps))
        lines.append(f"{name:<16}{difference(far):>20}")
    return "\n".join(lines)


def difference(far: float) -> str:
    """Write a relative difference; one that rounding explains is called so."""
    return "none" if far == 0 else "rounding" if far < 1e-5 else f"{far:.0e}"


def _stepped(make, options: dict, steps: int) -> list[Tensor]:
    """Return the weights that an optimizer has trained for a few steps."""
    found = []

    def maker(model, rate):
        names = {name for name, _ in model.named_parameters() if not name.endswith("qkv.bias")}
        trained_ones = [p for name, p in model.named_parameters() if name in names]
        if make in (Muon, torch.optim.Muon):
            trained_ones, _ = split_parameters(model)
        found.extend(trained_ones)
        return [make(trained_ones, lr=rate, **options)]

    trained(maker, 0, 1e-2, steps)
    return [weight.detach() for weight in found]


def _apart(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """Return the largest distance of two weights, each divided by the root of its mean square."""
    return max(
        ((a - b).abs().max() / b.square().mean().sqrt().clamp(min=1e-8)).item()
        for a, b in zip(ours, theirs, strict=True)
    )


def kept(name: str) -> int:
    """Return the bytes of all that an optimizer of `MAKERS` keeps after a step of the small GPT."""
    made = []

    def make(model, rate):
        made.extend(MAKERS[name](model, rate))
        return made

    trained(make, 0, RATES[name], 1)
    states = [state for one in made for state in one.state.values()]
    return sum(value.nbytes for state in states for value in state.values())


# --- break it


def longer_without_correction(t: int, beta1: float = 0.9, beta2: float = 0.999) -> float:
    """Return how many times as long step t is without the correction, for equal gradients."""
    return (1 - beta1**t) / math.sqrt(1 - beta2**t)
