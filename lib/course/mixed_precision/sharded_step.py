"""The check of a mixed-precision step on sharded weights: unscale, skip together, clip, step."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from lib.course.checks.arguments import name_of
from lib.course.checks.on_ranks import Exercise
from lib.course.checks.verdict import Verdict

SCALE, RATE, LIMIT = 1024.0, 0.1, 1.0  # at the start; of SGD; the largest norm of the gradient
STEPS = 4  # a long gradient, a short one, one that overflows on the last rank, a short one


def _gradients(rank: int, ranks: int, size: int) -> Tensor:
    """Draw this rank's shard of the gradient in each step, before it is scaled: [STEPS, size]."""
    draw = torch.Generator("cpu").manual_seed(100 * size + rank)
    gradients = torch.randn(STEPS, size, generator=draw, device="cpu")
    gradients *= torch.tensor([1.0, 0.05 / size, 0.05 / size, 0.05 / size], device="cpu")[:, None]
    if rank == ranks - 1:
        gradients[2, 0] = 100.0  # times 1,024 this is too much for float16, times 512 it is not
    return gradients


def _inputs(ranks: int, size: int) -> list[tuple]:
    weights = torch.linspace(-1, 1, size, device="cpu")
    return [(weights + rank, _gradients(rank, ranks, size)) for rank in range(ranks)]


def _reference(inputs) -> list:
    """Take the steps on the shards of all ranks together."""
    weights, results, scale = [weight for weight, _ in inputs], [[] for _ in inputs], SCALE
    for step in range(STEPS):
        halves = [(gradients[step] * scale).half() for _, gradients in inputs]
        shards = [half.float() / scale for half in halves]
        if all(shard.isfinite().all() for shard in shards):
            factor = min(1.0, LIMIT / float(torch.cat(shards).norm()))
            weights = [w - RATE * factor * g for w, g in zip(weights, shards)]
        else:
            scale /= 2
        for result, weight in zip(results, weights):
            result += [weight, scale]
    return results


def _tried(attempt: Callable, weight: Tensor, gradients: Tensor) -> list | None:
    """Take the steps with the reader's function, its scale and its weights going on from each."""
    results, scale = [], SCALE
    for own in gradients:
        result = attempt(weight.clone(), (own * scale).half(), scale)
        if result is None or result is ...:
            return None
        weight, scale = result
        scale = float(scale)
        results += [weight.detach(), scale]
    return results


@dataclass
class Steps(Exercise):
    """Runs a few steps of the reader's function on every rank, and compares after each.

    The function takes this rank's shard of the weights, float32 [n], its shard of the gradient of
    loss times scale, float16 [n], and the scale; it returns the new shard and the new scale.
    """

    task: str = (
        "Repair `my_step`: the whole gradient is clipped, and one rank's overflow skips the step "
        "on all ranks."
    )
    inputs: Callable = staticmethod(_inputs)
    reference: Callable = staticmethod(_reference)
    sizes: tuple[int, ...] = (3, 64)
    words: str = "{} weights on each rank"
    names: tuple[str, ...] = tuple(
        f"the {what} after step {step}"
        for step in range(1, STEPS + 1)
        for what in ("weight", "scale")
    )

    def check(self, attempt: Callable, world) -> Verdict:
        """Take the steps with `attempt` on every rank, and return the verdict."""
        run = partial(_tried, attempt)
        run.__name__ = name_of(attempt)
        return super().check(run, world)
