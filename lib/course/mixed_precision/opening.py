"""The training with which chapter 10 opens: a GPT with everything in one format, Adam's state too.

In fp16 the second loss is NaN. [Note: why]
Adam divides the mean of the gradients m by √v + ε, where v is the mean of their squares. A gradient
of this GPT is about 10^-4, its square times 1 - β₂ = 0.001 is 10^-11, and that is 0 in fp16, whose
smallest number is 6 · 10^-8. ε = 10^-8 is 0 as well. So each weight gets an update of m / 0: it is
infinite, or NaN where the gradient is 0. In bf16, which has the exponents of fp32, all of these
numbers exist.
"""

from dataclasses import dataclass

import torch

from lib.course.mixed_precision.networks import LANGUAGE, text

RATE = 1e-3


@dataclass(frozen=True)
class Opening:
    """Holds the losses of a run, and how many weights were finite after each step, of how many."""

    losses: list[float]
    finite: list[int]
    weights: int

    @property
    def failed_at(self) -> int | None:
        """The first step whose loss is infinite or NaN, counted from 0, or None."""
        failed = (n for n, loss in enumerate(self.losses) if not abs(loss) < float("inf"))
        return next(failed, None)


def opening(
    format: torch.dtype = torch.float16, steps: int = 10, epsilon: float = 1e-8, seed: int = 0
) -> Opening:
    """Train the small GPT with PyTorch's Adam, and everything in `format` except the loss."""
    model = LANGUAGE.model(seed).to(torch.get_default_device(), format)
    # One weight after the other, as the formula says, so that every intermediate is in `format`.
    optimizer = torch.optim.Adam(model.parameters(), RATE, eps=epsilon, foreach=False)
    losses, finite = [], []
    for step in range(steps):
        tokens, targets = text(seed, step)
        optimizer.zero_grad()
        loss = LANGUAGE.loss(model(tokens).float(), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        finite.append(sum(int(p.isfinite().sum()) for p in model.parameters()))
    return Opening(losses, finite, sum(p.numel() for p in model.parameters()))
