"""Gist: what layers keep for backward lies encoded in memory until backward needs it.

[Note: which encoding where]
    ReLU -> max pooling                    signs, and places in windows     `binarise`  lossless
    ReLU (-> max pooling) -> convolution   compressed sparse rows           `sparse`    lossless
                          or linear layer
    every feature map                      16, 10 or 8 bits for a number    `delayed`   lossy

Together, the values of sparse rows have the reduced format too, and signs stay bits.

Source: Jain et al. 2018, "Gist: Efficient Data Encoding for Deep Neural Network Training" (ISCA).
"""

import functools
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lib.predict.recompute.encodings import reduced_bytes
from lib.single.encode.feature import Encoding, Feature, run
from lib.single.encode.lossless import check_window, nonzero, signs, sparse_rows, windows
from lib.single.encode.reduced import reduced
from lib.single.models import Chain
from lib.single.recompute.chain import blocks_of

LAYERS = (nn.Conv2d, nn.Linear)
PASSING = (nn.Flatten, nn.Identity, nn.Dropout)  # a zero stays a zero, a sign a sign


class _Step(NamedTuple):
    """How a block runs: the encoding of its output, and whether places in windows are kept."""

    output: Encoding | None
    windows: bool


def gist(
    model: nn.Module, *, binarise: bool = True, sparse: bool = True, delayed: str | None = None
) -> nn.Module:
    """Let a chain keep its feature maps encoded for backward, in place, and return it.

    The model is a `Chain` whose blocks are single layers, such as VGG, or an `nn.Sequential`. With
    `binarise` a ReLU before a max pooling layer keeps its signs, with `sparse` one before a
    convolution or a linear layer keeps its nonzero numbers; neither changes a bit of a gradient.
    `delayed` is a format for all other feature maps and for those numbers, "fp16", "fp10" or "fp8";
    it changes gradients, and no output. What a block keeps besides its input and output stays as it
    is, and so do the samples. Names and weights of the model stay. The model's forward is replaced,
    so a plan that `recompute` has set is lost.

    Raises TypeError for a model that is no chain, and ValueError for an unknown format, for a
    window too large, and for a model in which there is nothing to encode.
    """
    if not isinstance(model, Chain | nn.Sequential):
        raise TypeError(
            f"A {type(model).__name__} is no chain of layers. Give a Chain, such as VGG, or an "
            "nn.Sequential, so that it is known which layer follows which."
        )
    reduced_bytes(0, delayed)  # refuses an unknown format
    blocks = blocks_of(model)
    steps = [_step(blocks, n, binarise, sparse, delayed) for n in range(len(blocks))]
    if not any(step.output or step.windows for step in steps):
        raise ValueError(
            f"There is nothing to encode in this {type(model).__name__}: `binarise` needs a block "
            "nn.ReLU before an nn.MaxPool2d, `sparse` one before an nn.Conv2d or nn.Linear, and "
            "`delayed` a format. Give a chain whose blocks are single layers, such as VGG."
        )
    model.forward = functools.partial(_run, model, steps)
    return model


def _step(blocks: list[nn.Module], n: int, binarise: bool, sparse: bool, delayed) -> _Step:
    """Choose what is done with the output of block n."""
    block, follower = blocks[n], _follower(blocks, n)
    pooled = isinstance(block, nn.MaxPool2d) and isinstance(_source(blocks, n - 1), nn.ReLU)
    if pooled and binarise:
        check_window(block)
    output: Encoding | None = None
    if binarise and isinstance(follower, nn.MaxPool2d) and isinstance(block, nn.ReLU):
        output = signs
    elif sparse and isinstance(follower, LAYERS) and _has_zeros(blocks, n):
        output = functools.partial(sparse_rows, delayed=delayed)
    elif delayed:
        output = functools.partial(reduced, delayed=delayed)
    return _Step(output, pooled and binarise)


def _has_zeros(blocks: list[nn.Module], n: int) -> bool:
    """Return whether the output of block n is a new one with zeros that a ReLU has made."""
    kinds = (nn.ReLU, nn.MaxPool2d, nn.Dropout)
    if not isinstance(blocks[n], kinds):
        return False
    while isinstance(blocks[n], (*kinds[1:], *PASSING)) and n > 0:
        n -= 1
    return isinstance(blocks[n], nn.ReLU)


def _follower(blocks: list[nn.Module], n: int) -> nn.Module | None:
    """Return the first block after block n that does more than pass its output on."""
    return next((block for block in blocks[n + 1 :] if not isinstance(block, PASSING)), None)


def _source(blocks: list[nn.Module], n: int) -> nn.Module | None:
    """Return the last block up to block n that does more than pass its input on."""
    before = reversed(blocks[: n + 1])
    return next((block for block in before if not isinstance(block, PASSING)), None)


def _run(model: nn.Module, steps: list[_Step], x: Tensor) -> Tensor:
    feature = Feature(x, None)
    for block, step in zip(blocks_of(model), steps, strict=True):
        places = functools.partial(windows, block, x.shape) if step.windows else None
        x, feature = run(block, x, feature, step.output, places)
    return x


def nonzeros(model: nn.Module, x: Tensor) -> list[int]:
    """Return how many numbers are not zero in each output for which `sparse` chooses sparse rows.

    A number is zero where all its bits are 0. Whether rows are smaller is not asked.
    """
    counts: list[int] = []
    blocks = blocks_of(model)
    with torch.no_grad():
        for n, block in enumerate(blocks):
            x = block(x)
            if _has_zeros(blocks, n) and isinstance(_follower(blocks, n), LAYERS):
                counts.append(nonzero(x.contiguous().flatten()).numel())
    return counts
