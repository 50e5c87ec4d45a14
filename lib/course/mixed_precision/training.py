"""Training runs of chapter 10: a network in a format, with and without each remedy."""

from dataclasses import dataclass

import torch

from lib.course.mixed_precision.networks import AVERAGE, MIDDLE, NETWORKS, SENSORS, Network
from lib.course.one_thread import one_thread
from lib.single.formats import BF16, FP16, FP32, FloatFormat
from lib.single.precision import LossScaler, MasterWeights, RoundedWeights, accumulated

SEEDS = (0, 1, 2)
LAST = 10  # steps, over which a run's final loss is averaged
BLOCK = 128  # terms of a sum, as in DeepSeek-V3 (arXiv 2412.19437, section 3.3.2)
SUMS = (
    "fp16, sums fp32",
    "fp16, sums fp16",
    "fp16, blocks fp16",
)  # recipes that differ in their sums alone


@dataclass(frozen=True)
class Recipe:
    """Describes how a network is trained: the format of everything in it, and the remedies.

    Weights, activations and gradients are in `format`; the optimizer computes in fp32, as it does
    on a GPU. `weights` is "master", or the rounding of RoundedWeights; `scale` is the first scale
    of a loss that is scaled, or None. The loss itself is computed from outputs in fp32. Products of
    matrices keep their partial sums in `accumulator`, moved to fp32 after each `block` of terms; or
    as PyTorch does, which is in fp32.
    """

    format: torch.dtype
    weights: str = "nearest"
    scale: float | None = None
    accumulator: FloatFormat | None = None
    block: int | None = None


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
    "fp16, sums fp32": Recipe(torch.float16, "master", accumulator=FP32),
    "fp16, sums fp16": Recipe(torch.float16, "master", accumulator=FP16),
    "fp16, blocks fp16": Recipe(torch.float16, "master", accumulator=FP16, block=BLOCK),
    "bf16, sums fp32": Recipe(torch.bfloat16, "master", accumulator=FP32),
    "bf16, sums bf16": Recipe(torch.bfloat16, "master", accumulator=BF16),
    "bf16, blocks bf16": Recipe(torch.bfloat16, "master", accumulator=BF16, block=BLOCK),
}


@one_thread()
def losses(network: Network, recipe: Recipe, seed: int = 0, steps: int | None = None) -> list:
    """Train a network by a recipe and return the loss of each step, before that step.

    The numbers drawn depend on `seed` alone, so two runs are equal on the same machine.
    """
    model = network.model(seed).to(torch.get_default_device(), recipe.format)
    if recipe.accumulator is not None:
        model = accumulated(model, recipe.accumulator, recipe.block)
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
    """Return (network, recipe) -> the final loss for each seed, for all networks."""
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


def means(recipes=SUMS) -> str:
    """Write the means of four sensors' 4,096 readings, as the first layer of AVERAGE has them."""
    inputs = AVERAGE.batch(0, 0)[0][:1]
    rows = {"exact": inputs.double().mean(-1)}
    for name in recipes:
        recipe, mean = RECIPES[name], AVERAGE.model(0)[0].to(inputs.device)
        layer = accumulated(mean.to(recipe.format), recipe.accumulator, recipe.block)
        rows[name] = layer(inputs.to(recipe.format)) / 8 + MIDDLE
    lines = ["mean of sensor".ljust(20) + "".join(f"{n:>7}" for n in range(1, SENSORS + 1))]
    for name, row in rows.items():
        lines.append(f"{name:<20}" + "".join(f"{value:7.3f}" for value in row.flatten().tolist()))
    return "\n".join(lines)


def _optimizer(network: Network, recipe: Recipe, model, seed: int):
    optimizer = network.optimizer(model.parameters())
    if recipe.format == torch.float32:
        return optimizer
    if recipe.weights == "master":
        return MasterWeights(optimizer)
    device = next(model.parameters()).device
    return RoundedWeights(optimizer, recipe.weights, torch.Generator(device).manual_seed(seed))
