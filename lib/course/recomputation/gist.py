"""An experiment: a small VGG learns with each encoding of Gist, from three seeds."""

from statistics import mean
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, interpolate

from lib.course.one_thread import on_one_thread
from lib.predict.recompute.encodings import encoded_bytes, vgg
from lib.single.convnet import VGG
from lib.single.encode import gist, nonzeros
from lib.single.recompute import kept_bytes
from lib.single.train import train

GROUPS, HIDDEN, SIZE, CLASSES = ((8, 8), (16, 16)), (32,), 16, 10
BATCH, STEPS, SEEDS = 16, 50, (0, 1, 2)
LAST = 10  # steps at the end whose losses are averaged
NEITHER = {"binarise": False, "sparse": False}

# What gist() is given, by the name of a row; the plain network is given nothing.
ENCODINGS: dict[str, dict] = {
    "plain": {},
    "binarise": {"binarise": True, "sparse": False},
    "sparse": {"binarise": False, "sparse": True},
    "lossless": {"binarise": True, "sparse": True},
    "fp16": {**NEITHER, "delayed": "fp16"},
    "fp10": {**NEITHER, "delayed": "fp10"},
    "fp8": {**NEITHER, "delayed": "fp8"},
    "all, fp8": {"binarise": True, "sparse": True, "delayed": "fp8"},
}


class Trained(NamedTuple):
    """Holds a training: its losses, the accuracy on other images, and what a batch then keeps.

    `kept` are the bytes that autograd holds, `predicted` those of the formula, and `zeros` is the
    share of zeros in the feature maps that feed a convolution or a linear layer.
    """

    losses: list[float]
    accuracy: float
    kept: int
    predicted: int
    zeros: float

    @property
    def loss(self) -> float:
        """Return the mean loss of the last steps."""
        return mean(self.losses[-LAST:])


def images(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return images [N, 3, H, H] and their classes [N], the same for a seed on every machine.

    Each class has a pattern of 4 × 4 coloured patches; an image is its pattern, moved by up to two
    pixels, under noise half as strong.
    """
    drawn = torch.Generator("cpu").manual_seed(4)
    patterns = torch.randn(CLASSES, 3, 4, 4, generator=drawn, device="cpu")
    patterns = interpolate(patterns, size=SIZE)
    drawn.manual_seed(1000 + seed)
    classes = torch.randint(CLASSES, (count,), generator=drawn, device="cpu")
    moves = torch.randint(-2, 3, (count, 2), generator=drawn, device="cpu").tolist()
    moved = [patterns[c].roll(move, (1, 2)) for c, move in zip(classes.tolist(), moves)]
    noise = torch.randn(count, 3, SIZE, SIZE, generator=drawn, device="cpu")
    return torch.stack(moved) + noise / 2, classes


def trained(encodings: dict, seed: int, steps: int = STEPS) -> Trained:
    """Train a VGG from a seed with these arguments of `gist`, or plainly where there are none."""
    model = VGG(GROUPS, HIDDEN, SIZE, CLASSES, seed=seed)
    if encodings:
        gist(model, **encodings)
    x, classes = images(BATCH * steps, seed)
    batches = list(zip(x.split(BATCH), classes.split(BATCH)))
    optimizer = torch.optim.Adam(model.parameters(), 0.003)
    losses = train(model, optimizer, batches, steps, cross_entropy)

    others, expected = images(500, -1)
    with torch.no_grad():
        accuracy = (model(others).argmax(1) == expected).float().mean().item()
    maps, counts = vgg(BATCH, GROUPS, HIDDEN, SIZE), nonzeros(model, x[:BATCH])
    predicted = encoded_bytes(maps, counts, **(encodings or NEITHER))
    fed = sum(one.numel for one in maps if one.kind.endswith("to layer"))
    kept = kept_bytes(model, x[:BATCH])
    return Trained(losses, accuracy, kept, predicted, 1 - sum(counts) / fed)


def compared(names=tuple(ENCODINGS), seeds=SEEDS, steps: int = STEPS) -> dict[str, list[Trained]]:
    """Train with each encoding from each seed; return what came out by the encoding's name.

    One thread computes, so that the order of sums does not depend on the machine's cores.
    """
    with on_one_thread():
        return {n: [trained(ENCODINGS[n], seed, steps) for seed in seeds] for n in names}


def table(results: dict[str, list[Trained]]) -> str:
    """Return a table of `compared`: bytes kept, how many times fewer than plain, loss by seed.

    Bytes are the mean of the seeds, and of plain trainings there must be a row. Losses are exact
    where they are the plain ones. Training multiplies a difference in rounding, so that the digits
    of the others depend on the processor: only one digit of their mean is written.
    """
    plain = mean(one.kept for one in results["plain"])
    exact = [one.losses for one in results["plain"]]
    rows = ["                kept  fewer  loss by seed"]
    for name, runs in results.items():
        kept = mean(one.kept for one in runs)
        fewer = plain / kept
        losses = "  ".join(f"{one.loss:.3f}" for one in runs)
        if [one.losses for one in runs] != exact:
            losses = f"others, mean {mean(one.loss for one in runs):.1f}"
        rows.append(
            f"{name:<9}{kept / 1e3:>8,.0f} kB{fewer:>6.{1 if fewer < 5 else 0}f}x  {losses}"
        )
    return "\n".join(rows)
