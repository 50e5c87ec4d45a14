"""Scales from the maxima of earlier steps, so that a tensor is rounded without being read first.

    scale = max(history) · 2^margin / largest number of the format

[Note: delay]
To scale a tensor by its own maximum, a kernel reads it twice: once for the maximum and once to
round it. Delayed scaling rounds with a scale that is known beforehand and finds the maximum on the
way, for later steps. It is wrong where a maximum jumps: what is larger than all of the history
becomes the largest number of the format, until `update_scales` has seen the new maximum. A margin
of m leaves room for a jump by 2^m, and costs m powers of two at the other end.

Source: the recipe `DelayedScaling(margin=0, amax_history_len=1024, amax_compute_algo="max")` of
NVIDIA's Transformer Engine, where a scale is 1 before the first update, and stays what it was where
the maximum is 0 or not finite.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from lib.predict.arguments import whole
from lib.single.precision.scaled import FORMATS, SMALLEST_SCALE

CHOICES = ("max", "most_recent")


class DelayedScaling(nn.Module):
    """Keeps the last `history` maxima of one tensor, and the scale that follows from them.

    Buffers: `maxima` [history], of which the first belongs to the current step, and `scale` [].
    `choice` is "max", the largest of them, or "most_recent".
    """

    def __init__(self, format: str, history: int = 1024, margin: int = 0, choice: str = "max"):
        super().__init__()
        if choice not in CHOICES:
            raise ValueError(f"choice must be 'max' or 'most_recent', not {choice!r}.")
        self.largest = torch.finfo(FORMATS[format]).max
        self.margin, self.choice = whole(margin, "margin", 0), choice
        self.register_buffer("maxima", torch.zeros(whole(history, "history")))
        self.register_buffer("scale", torch.ones(()))

    @torch.no_grad()
    def see(self, x: Tensor) -> Tensor:
        """Note the maximum of x for the steps to come, and return the scale of this step: [].

        Several tensors of a step, as of microbatches, count as one. A second look at the same
        tensor, as recomputation takes it, changes nothing.
        """
        self.maxima[0] = torch.maximum(self.maxima[0], x.abs().max())
        return self.scale

    @torch.no_grad()
    def update(self) -> None:
        """End a step: choose the scale of the next one, and forget the oldest maximum."""
        maximum = self.maxima.max() if self.choice == "max" else self.maxima[0]
        scale = (maximum * 2.0**self.margin / self.largest).clamp(min=SMALLEST_SCALE)
        usable = maximum.isfinite() & (maximum > 0)
        # Not a new tensor: what was scaled before may still hold this one for its backward.
        self.scale = torch.where(usable, scale, self.scale)
        # An infinity would otherwise stay the maximum for as long as the history is.
        known = torch.where(self.maxima.isfinite(), self.maxima, 0.0).roll(1)
        known[0] = 0.0
        self.maxima = known


def update_scales(model: nn.Module, reduce: Callable[[Tensor], object] | None = None) -> None:
    """End a step for every DelayedScaling of a model; call it once after each optimizer step.

    On several ranks `reduce(maxima)` gives a tensor [n] the maximum over all ranks, in place and in
    one call for the whole model: an all-reduce with MAX. Without it ranks that hold the same weight
    would round it differently.
    """
    scalings = [module for module in model.modules() if isinstance(module, DelayedScaling)]
    if reduce is not None and scalings:
        maxima = torch.stack([scaling.maxima[0] for scaling in scalings])
        reduce(maxima)
        for scaling, maximum in zip(scalings, maxima):
            scaling.maxima[0] = maximum
    for scaling in scalings:
        scaling.update()
