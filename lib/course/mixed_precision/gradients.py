"""The gradients of a network as they would be in exact arithmetic, and what fp16 makes of them."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lib.course.mixed_precision.networks import Network
from lib.predict.number_formats import FP16, NumberFormat


@dataclass(frozen=True)
class Gradients:
    """Holds a step's gradients in fp32, of each weight and of each layer's output, by name."""

    weights: dict[str, Tensor]
    activations: dict[str, Tensor]

    @property
    def all(self) -> list[Tensor]:
        """Return all of them, weights first."""
        return [*self.weights.values(), *self.activations.values()]


@dataclass(frozen=True)
class Shares:
    """Holds which share of the numbers other than 0 a format would lose, blur, hold or overflow."""

    zero: float  # rounded to 0
    subnormal: float  # with fewer significant bits than the format's normal numbers have
    normal: float
    overflow: float  # rounded to infinity


def gradients(network: Network, seed: int = 0, steps: int = 0) -> Gradients:
    """Train a network in fp32 for some steps, and return the gradients of the step after them."""
    model = network.model(seed).to(torch.get_default_device())
    optimizer = network.optimizer(model.parameters())
    activations: dict[str, Tensor] = {}
    for step in range(steps + 1):
        optimizer.zero_grad()
        inputs, targets = network.batch(seed, step)
        hooks = _watch(model, activations) if step == steps else []
        network.loss(model(inputs), targets).backward()
        for hook in hooks:
            hook.remove()
        if step < steps:
            optimizer.step()
    weights = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return Gradients(weights, activations)


def _watch(model: nn.Module, activations: dict[str, Tensor]) -> list:
    """Note the gradient of the output of each module that has weights of its own."""

    def noting(name):
        def after_forward(module, inputs, output):
            output.register_hook(lambda gradient: activations.update({name: gradient.detach()}))

        return after_forward

    return [
        module.register_forward_hook(noting(name))
        for name, module in model.named_modules()
        if list(module.parameters(recurse=False))
    ]


def shares(
    numbers: Tensor | Iterable[Tensor], scale: float = 1.0, number_format: NumberFormat = FP16
) -> Shares:
    """Return what becomes of numbers that are multiplied by `scale` and rounded to a format.

    Numbers that are 0 already are left out. Raises ValueError where there are no others.
    """
    magnitudes = _magnitudes(numbers) * scale
    step = number_format.epsilon * 2.0 ** math.floor(math.log2(number_format.largest))
    zero = magnitudes <= number_format.smallest / 2  # a tie goes to 0, whose mantissa is even
    overflow = magnitudes >= number_format.largest + step / 2  # a tie goes up
    subnormal = ~zero & (magnitudes < number_format.smallest_normal)
    part = lambda mask: mask.double().mean().item()
    normal = ~(zero | overflow | subnormal)
    return Shares(part(zero), part(subnormal), part(normal), part(overflow))


def powers(numbers: Tensor | Iterable[Tensor]) -> dict[str, dict[int, int] | int]:
    """Count numbers by their power of two, -3 being those from 2^-3 up to 2^-2; and the zeros.

    They come as the arguments `exponents` and `zeros` of the picture of bits.
    """
    flat = torch.cat([t.detach().flatten() for t in _list(numbers)])
    exponents = torch.frexp(flat[flat != 0].double()).exponent - 1
    counts = dict(sorted(Counter(exponents.tolist()).items()))
    return {"exponents": counts, "zeros": int((flat == 0).sum())}


def _list(numbers) -> list[Tensor]:
    return [numbers] if isinstance(numbers, Tensor) else list(numbers)


def _magnitudes(numbers) -> Tensor:
    flat = torch.cat([t.detach().flatten().double() for t in _list(numbers)]).abs()
    if not flat.any():
        raise ValueError("All of these numbers are 0, so there is nothing to round.")
    return flat[flat > 0]
