"""Four small networks that differ in what they need to learn in fp16, and the batches they see.

    language   a GPT on bytes: tokens [8, 32] -> logits [8, 32, 256]    learns in fp16 as it is
    detector   4 offsets for each box: [4096, 8] -> [4096, 4]           needs a scaled loss
    regression a fit to one table by small steps: [64, 16] -> [64, 1]   needs master weights
    average    the mean of 4,096 readings: [16, 4, 4096] -> [16, 1]     needs sums in fp32

They stand for what Micikevicius et al. 2018 (arXiv 1710.03740, section 4) found in large networks:
classifiers of images needed no scaling, a detector with many boxes and a large LSTM did, and a
model of speech lost accuracy without master weights. Some networks also needed products of fp16
numbers to be added up in fp32 (section 3.3).

[Note: why they differ]
language   The loss is a mean over 256 tokens, so a gradient is seldom below 2^-24; and the noise of
           the batches makes updates large.
detector   The loss is a mean over 16,384 offsets, each about 1% of the image's width. Its gradient
           by one offset is about 2 · 0.01 / 16,384 = 1.2e-6; in front of the last matrix, whose
           entries are drawn with a deviation of 0.001, it is below 2^-25 = 3e-8, and rounds to 0.
regression The table's last column is a third as large as the first, so that it takes many small
           steps. The batch is always the same: there is no noise, and updates of less than half the
           distance between two numbers of fp16 round to nothing, in each step again.
average    Its first layer takes the mean of a sensor's 4,096 readings, all between 0.5 and 1: one
           long sum of terms of one sign. Numbers of fp16 are 1 apart from 1,024 on, so that every
           reading counts as 1, and 2 apart from 2,048 on, where every reading rounds to nothing.
           All means become 2,048 / 4,096 = 0.5, and nothing is left to learn from. (The layer's
           weights are all 8 / 4,096, a power of two, which changes no rounding.) PyTorch's own
           products of fp16 numbers add up in fp32; `accumulated` adds up as it is told.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from lib.predict.shape import GPTShape, MLPShape
from lib.single import GPT, MLP, Batches, mean_squares, next_token_loss

SMALL_GPT = GPTShape(width=32, heads=2, layers=2, sequence=32)
BOXES, OFFSET, HEAD = 4096, 0.01, 0.001  # HEAD: deviation of the detector's last matrix
ROWS, COLUMNS, HIDDEN = 64, 16, 128
EXAMPLES, SENSORS, READINGS = 16, 4, 4096
MIDDLE, LEVEL, NOISE = 0.75, 0.12, 0.12  # the last two: how far each takes a reading off


@dataclass(frozen=True)
class Network:
    """Describes a network, its batches and how it is trained.

    `model(seed)` builds it, in fp32; `batch(seed, step)` gives inputs and targets; `optimizer`
    takes parameters. `needs` says what it does not learn without in fp16.
    """

    name: str
    needs: str
    steps: int
    model: Callable[[int], nn.Module]
    batch: Callable[[int, int], tuple[torch.Tensor, torch.Tensor]]
    loss: Callable
    optimizer: Callable


def text(seed: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens and the tokens that follow them from the course's text, [8, 32] each."""
    return _batches(seed)[step]


@functools.cache
def _batches(seed: int) -> Batches:
    return Batches(8, SMALL_GPT.sequence, seed=seed)


def detector(seed: int) -> MLP:
    """Return a network whose last matrix starts near zero, as that of a detector's head does."""
    model = MLP(MLPShape((8, 16, 4)), seed)
    last = list(model.parameters())[-2]
    with torch.no_grad():
        last.mul_(HEAD * (last.shape[1] / 2) ** 0.5)  # drawn with a deviation of √(2/I)
    return model


def boxes(seed: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what is known of each box, [4096, 8], and its offsets, [4096, 4]."""
    directions = _normal(seed, 8, 4)
    directions /= directions.norm(dim=0)
    x = _normal(1_000 * (seed + 1) + step, BOXES, 8)
    return _here(x), _here(OFFSET * (x @ directions).abs())


def rows(seed: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a table of 64 rows, [64, 16], and a weighted sum of its columns, [64, 1]."""
    sizes = torch.logspace(0, -0.5, COLUMNS, device="cpu")
    drawn = _normal(seed, ROWS + 1, COLUMNS)
    x, weights = drawn[:ROWS] * sizes, drawn[ROWS:] / sizes / 4
    return _here(x), _here(x @ weights.mT)


def averaging(seed: int) -> nn.Sequential:
    """Return a network that takes the mean of each sensor's readings, and an MLP of these means.

    The mean is a linear layer, 8 · (mean - 0.75), whose equal weights are not trained; its bias is.
    """
    mean = nn.Linear(READINGS, 1, device="cpu")
    with torch.no_grad():
        mean.weight.fill_(8 / READINGS)
        mean.bias.fill_(-8 * MIDDLE)
    mean.weight.requires_grad_(False)
    return nn.Sequential(mean, nn.Flatten(), MLP(MLPShape((SENSORS, 16, 1)), seed))


def readings(seed: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return noisy readings of sensors, [16, 4, 4096], and a weighted sum of their levels, [16, 1].

    A level is between -1 and 1.
    """
    generator = torch.Generator("cpu").manual_seed(1_000 * (seed + 1) + step)
    shape = (EXAMPLES, SENSORS, READINGS + 1)
    drawn = 2 * torch.rand(shape, generator=generator, dtype=torch.float32, device="cpu") - 1
    levels, noise = drawn[..., :1], drawn[..., 1:]
    weights = _normal(seed, SENSORS, 1)
    targets = levels.squeeze(-1) @ (weights / weights.norm())
    return _here(MIDDLE + LEVEL * levels + NOISE * noise), _here(targets)


def _normal(seed: int, *shape: int) -> torch.Tensor:
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")


def _here(tensor: torch.Tensor) -> torch.Tensor:
    """Return on the default device a tensor drawn on the CPU, so that it is the same anywhere."""
    return tensor.to(torch.get_default_device())


LANGUAGE = Network(
    "language", "nothing", 40, lambda seed: GPT(SMALL_GPT, seed), text, next_token_loss,
    lambda parameters: torch.optim.SGD(parameters, 0.3),
)  # fmt: skip
DETECTOR = Network(
    "detector", "a scaled loss", 300, detector, boxes, mean_squares,
    lambda parameters: torch.optim.Adam(parameters, 3e-3),
)  # fmt: skip
REGRESSION = Network(
    "regression", "master weights", 1500,
    lambda seed: MLP(MLPShape((COLUMNS, HIDDEN, 1)), seed), rows, mean_squares,
    lambda parameters: torch.optim.SGD(parameters, 1e-3),
)  # fmt: skip
AVERAGE = Network(
    "average", "sums in fp32", 60, averaging, readings, mean_squares,
    lambda parameters: torch.optim.Adam([p for p in parameters if p.requires_grad], 3e-2),
)  # fmt: skip
NETWORKS = {network.name: network for network in (LANGUAGE, DETECTOR, REGRESSION, AVERAGE)}
