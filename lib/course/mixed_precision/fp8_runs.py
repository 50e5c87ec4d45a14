"""Training in 8 and 4 bits beside fp32: where an outlier stands, and how a scale comes too late.

[Note: the planted channel]
Large language models have a few channels whose entries are up to 100,000 times larger than others,
about the same for every token (Sun et al. 2024, Massive activations in large language models). Here
one channel of each norm is the constant `size`, and the weights that read it are zero; neither is
trained. So in fp32 and bf16 its size changes nothing, and what it costs in 8 bits is the rounding
of everything that shares its scale.

[Note: one digit]
A sum in float32 ends in other digits on another processor, and rounding to few bits multiplies the
difference. So a loss is the mean of three seeds, and of its digits the nearest of 1, 2 and 5 is
written.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from lib.course.one_thread import one_thread
from lib.predict.shape import GPTShape
from lib.single import GPT, Batches, train
from lib.single.precision import DelayedScaling, fp8, update_scales
from lib.single.precision.scaled import FORMATS, scaled

SMALL_GPT = GPTShape(width=32, heads=2, layers=1, sequence=32)
SEEDS = (0, 1, 2)
LAST = 10  # losses at the end of a run, whose mean is its result


def plant_outlier(model: GPT, size: float, channel: int = 3) -> GPT:
    """Make one channel of every norm the constant `size`, read by weights that stay 0."""
    *blocks, head = list(model.blocks.values())[1:]
    pairs = [(head.norm, head.linear)]
    for block in blocks:
        pairs += [(block.norm1, block.attention.qkv), (block.norm2, block.mlp.up)]
    for norm, linear in pairs:
        _pin(norm.weight, (channel,), 0.0)
        _pin(norm.bias, (channel,), size)
        _pin(linear.weight, (slice(None), channel), 0.0)
    return model


def _pin(parameter: nn.Parameter, entries: tuple, value: float) -> None:
    """Set entries of a parameter for good: they get no gradient."""
    with torch.no_grad():
        parameter[entries] = value
    trained = torch.ones_like(parameter)
    trained[entries] = 0.0
    parameter.register_hook(lambda gradient: torch.where(trained == 0, 0.0, gradient))


@one_thread()
def losses(
    change: Callable[[nn.Module], nn.Module] | None = None,
    seed: int = 0,
    steps: int = 40,
    outlier: float = 0.0,
    bf16: bool = False,
) -> list[float]:
    """Train the small GPT on the course's text; return the losses of all steps, in nats.

    `change(model)` puts other layers into it, for example `fp8`; `outlier` is the size of a planted
    channel, or 0 for none; `bf16` runs it under PyTorch's autocast.
    """
    model = GPT(SMALL_GPT, seed=seed)
    if outlier:
        plant_outlier(model, outlier)
    if change is not None:
        change(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    optimizer.register_step_post_hook(lambda *_: update_scales(model))
    device = next(model.parameters()).device.type
    # Autocast keeps its bf16 copies of the weights until it ends; then it would not see the steps.
    cast = torch.autocast(device, torch.bfloat16, cache_enabled=False) if bf16 else nullcontext()
    with cast:
        return train(model, optimizer, Batches(8, SMALL_GPT.sequence, seed=seed), steps)


def final_losses(
    change: Callable[[nn.Module], nn.Module] | None = None,
    seeds: Sequence[int] = SEEDS,
    world=None,
    **options,
) -> list[float]:
    """Return the mean of the last losses of a run from each seed; options are those of `losses`.

    The seeds are shared out among the ranks of `world`, if given: it has to be on the CPU.
    """
    if world is None:
        runs = [losses(change, seed, **options) for seed in seeds]
    else:
        by_rank = world.run(_of_this_rank, change, seeds, options)
        runs = [by_rank[n % len(by_rank)][n // len(by_rank)] for n in range(len(seeds))]
    return [sum(run[-LAST:]) / len(run[-LAST:]) for run in runs]


def _of_this_rank(change, seeds: Sequence[int], options: dict) -> list[list[float]]:
    """Train every P-th of these seeds, beginning with this rank's."""
    own = seeds[dist.get_rank() :: dist.get_world_size()]
    return [losses(change, seed, **options) for seed in own]


def nearest(loss: float) -> str:
    """Write the nearest of 0.01, 0.02, 0.05, 0.1 and so on: "about 0.05", or "under 0.01"."""
    if abs(loss) < 0.01:
        return "under 0.01"
    steps = [digit * 10.0**power for power in range(-2, 2) for digit in (1, 2, 5)]
    best = min(steps, key=lambda step: abs(math.log(abs(loss) / step)))
    return f"{'-' if loss < 0 else ''}about {best:g}"


class Errors(NamedTuple):
    """Holds relative errors, ‖found - exact‖ / ‖exact‖, of a layer's three products."""

    y: float
    dx: float
    dw: float


def product_errors(
    scaling: str, outlier: str, size: float = 2.0**20, seed: int = 0, **options
) -> Errors:
    """Compare the products of a layer of 8 bits with those of float64, without what is planted.

    x is [64, 64] and the layer [64, 64], of normal random numbers. `outlier` is "none", "token" (a
    row of x is `size` times larger, and its gradient as much smaller) or "channel" (a column of x
    is `size` times larger, and the weights that read it are 0). Errors are those of the other rows
    and columns. Blocks have 16 entries, and `options` are those of `fp8`. Raises ValueError for
    another outlier.
    """
    if outlier not in ("none", "token", "channel"):
        raise ValueError(f"outlier must be 'none', 'token' or 'channel', not {outlier!r}.")
    generator = torch.Generator("cpu").manual_seed(seed)
    x, dy, weight = torch.randn(3, 64, 64, generator=generator, device="cpu").unbind()
    rows = columns = slice(None)
    if outlier == "token":
        x[0] *= size
        dy[0] /= size
        rows = slice(1, None)
    if outlier == "channel":
        x[:, 0] *= size
        weight[:, 0] = 0
        columns = slice(1, None)
    layer = nn.Linear(64, 64, bias=False, device="cpu")
    with torch.no_grad():
        layer.weight.copy_(weight)
    layer = fp8(layer, scaling, block=16, **options)
    x.requires_grad_()
    y = layer(x)
    y.backward(dy)
    exact = x.detach().double(), dy.double(), weight.double()
    return Errors(
        _error(y[rows], (exact[0] @ exact[2].T)[rows]),
        _error(x.grad[rows, columns], (exact[1] @ exact[2])[rows, columns]),
        _error(layer.weight.grad[:, columns], (exact[1].T @ exact[0])[:, columns]),
    )


def _error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return ((found.detach() - exact).norm() / exact.norm()).item()


class DelayedStep(NamedTuple):
    """Holds one step of delayed scaling: the largest entry, and what became of a tensor."""

    maximum: float
    scale: float
    clipped: float  # the share of entries that became the largest number
    error: float  # ‖found - exact‖ / ‖exact‖


def delayed_steps(
    sizes: Sequence[float], history: int = 4, margin: int = 0, format: str = "e4m3", seed: int = 0
) -> list[DelayedStep]:
    """Round a tensor of 1,024 normal random numbers, times each of `sizes` in turn, with delay.

    The scale is known for the first size: an update before it has seen `sizes[0]`.
    """
    generator = torch.Generator("cpu").manual_seed(seed)
    x = torch.randn(32, 32, generator=generator, device="cpu")
    scaling = DelayedScaling(format, history, margin).to("cpu")
    scaling.see(sizes[0] * x)
    scaling.update()
    steps = []
    for size in sizes:
        tensor = size * x
        scale = scaling.see(tensor)
        found = scaled(tensor, format, scale=scale).decode()
        clipped = (tensor.abs() > torch.finfo(FORMATS[format]).max * scale).float().mean()
        error = _error(found, tensor)
        steps.append(DelayedStep(tensor.abs().max().item(), scale.item(), clipped.item(), error))
        scaling.update()
    return steps
