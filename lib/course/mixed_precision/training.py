"""Training runs of chapter 10: a network in a format, with and without each remedy."""

from dataclasses import dataclass

import torch

from lib.course.mixed_precision.networks import NETWORKS, Network
from lib.single.precision import LossScaler, MasterWeights, RoundedWeights

SEEDS = (0, 1, 2)
LAST = 10  # steps, over which a run's final loss is averaged


@dataclass(frozen=True)
class Recipe:
    """Describes how a network is trained: the format of everything in it, and the remedies.

    Weights, activations and gradients are in `format`; the optimizer computes in fp32, as it does
    on a GPU. `weights` is "master", or the rounding of RoundedWeights; `scale` is the first scale
    of a loss that is scaled, or None. The loss itself is computed from outputs in fp32.
    """

    format: torch.dtype
    weights: str = "nearest"
    scale: float | None = None


RECIPES = {
    "fp32": Recipe(torch.float32),
    "fp16": Recipe(torch.float16),
    "fp16, scaled": Recipe(torch.float16, scale=2.0**16),
    "fp16, masters": Recipe(torch.float16, "master"),
    "fp16, both": Recipe(torch.float16, "master", 2.0**16),
    "bf16": Recipe(torch.bfloat16),
    "bf16, masters": Recipe(torch.bfloat16, "master"),
    "bf16, stochastic": Recipe(torch.bfloat16, "stochastic"),
    "bf16, compensated": Recipe(torch.bfloat16, "compensated"),
}


def losses(network: Network, recipe: Recipe, seed: int = 0, steps: int | None = None) -> list:
    """Train a network by a recipe and return the loss of each step, before that step.

    The numbers drawn depend on `seed` alone, so two runs are equal on the same machine.
    """
    model = network.model(seed).to(torch.get_default_device(), recipe.format)
    optimizer = _optimizer(network, recipe, model, seed)
    scaler = None if recipe.scale is None else LossScaler(recipe.scale)
    values = []
    for step in range(network.steps if steps is None else steps):
        inputs, targets = network.batch(seed, step)
        if inputs.is_floating_point():
            inputs = inputs.to(recipe.format)
        optimizer.zero_grad()
        loss = network.loss(model(inputs).float(), targets)
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        values.append(loss.item())
    return values


def final_loss(values: list) -> float:
    """Return the mean loss of the last ten steps."""
    return sum(values[-LAST:]) / len(values[-LAST:])


def final_losses(
    recipes=("fp32", "fp16", "fp16, scaled", "fp16, masters", "fp16, both"), seeds=SEEDS
) -> dict[tuple[str, str], list[float]]:
    """Return (network, recipe) -> the final loss for each seed, for all three networks."""
    return {
        (name, recipe): [final_loss(losses(network, RECIPES[recipe], seed)) for seed in seeds]
        for name, network in NETWORKS.items()
        for recipe in recipes
    }


def table(finals: dict[tuple[str, str], list[float]]) -> str:
    """Write final losses as multiples of fp32's with the same seed, the lowest to the highest."""
    recipes = list(dict.fromkeys(recipe for _, recipe in finals if recipe != "fp32"))
    lines = ["loss / fp32's" + "".join(f"{recipe:>18}" for recipe in recipes)]
    for name in dict.fromkeys(name for name, _ in finals):
        cells = []
        for recipe in recipes:
            pairs = zip(finals[name, recipe], finals[name, "fp32"], strict=True)
            ratios = [ours / plain for ours, plain in pairs]
            cells.append(f"{min(ratios):.2f} to {max(ratios):.2f}")
        lines.append(f"{name:<13}" + "".join(f"{cell:>18}" for cell in cells))
    return "\n".join(lines)


def _optimizer(network: Network, recipe: Recipe, model, seed: int):
    optimizer = network.optimizer(model.parameters())
    if recipe.format == torch.float32:
        return optimizer
    if recipe.weights == "master":
        return MasterWeights(optimizer)
    device = next(model.parameters()).device
    return RoundedWeights(optimizer, recipe.weights, torch.Generator(device).manual_seed(seed))
