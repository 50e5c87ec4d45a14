"""Three small networks that differ in what they need to learn in fp16, and the batches they see.

    language   a GPT on bytes: tokens [8, 32] -> logits [8, 32, 256]    learns in fp16 as it is
    detector   4 offsets for each box: [4096, 8] -> [4096, 4]           needs a scaled loss
    regression a fit to one table by small steps: [64, 16] -> [64, 1]   needs master weights

They stand for what Micikevicius et al. 2018 (arXiv 1710.03740, section 4) found in large networks:
classifiers of images needed no scaling, a detector with many boxes and a large LSTM did, and a
model of speech lost accuracy without master weights.

[Note: why they differ]
language   The loss is a mean over 256 tokens, so a gradient is seldom below 2^-24; and the noise of
           the batches makes updates large.
detector   The loss is a mean over 16,384 offsets, each about 1% of the image's width. Its gradient
           by one offset is about 2 · 0.01 / 16,384 = 1.2e-6; in front of the last matrix, whose
           entries are drawn with a deviation of 0.001, it is below 2^-25 = 3e-8, and rounds to 0.
regression The table's last column is a third as large as the first, so that it takes many small
           steps. The batch is always the same: there is no noise, and updates of less than half the
           distance between two numbers of fp16 round to nothing, in each step again.
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
NETWORKS = {network.name: network for network in (LANGUAGE, DETECTOR, REGRESSION)}
