"""Measures the blocks of a model on this machine, as the partitioner needs them."""

from time import perf_counter

import torch

from lib.predict.arguments import whole
from lib.predict.pipeline.cuts import Layer


def profile(model, inputs, repeats: int = 5) -> list[Layer]:
    """Measure every block of `model` on one microbatch: time, bytes of its output, of its weights.

    `model` is anything with a length and slices that are modules, and inputs [B, ...] are one
    microbatch. The time, in seconds, is the least of `repeats` forward and backward passes, so that
    what else the machine does counts as little as possible. Weights are those that are trained.
    Gradients that the model has are replaced.
    """
    layers, x = [], inputs
    whole(repeats, "repeats")
    for number in range(len(model)):
        block = model[number : number + 1]
        _pass(block, x)  # the first pass allocates memory
        seconds = min(_pass(block, x) for _ in range(repeats))
        with torch.no_grad():
            x = block(x)
        trained = {id(p): p.nbytes for p in block.parameters() if p.requires_grad}
        layers.append(Layer(seconds, float(x.nbytes), float(sum(trained.values()))))
    model.zero_grad()
    return layers


def _pass(block, x) -> float:
    """Return the seconds of one forward and backward pass, the gradient of x included."""
    x = x.detach().requires_grad_(x.is_floating_point())
    _wait(x)
    begin = perf_counter()
    y = block(x)
    if y.requires_grad:
        y.backward(torch.ones_like(y))
    _wait(x)
    return perf_counter() - begin


def _wait(x) -> None:
    """Wait until the device of `x` has done its work."""
    if x.device.type != "cpu":
        torch.accelerator.synchronize(x.device)
