"""Master weights: the optimizer steps on fp32 copies of weights that the model has in 16 bits.

    gradient (16 bits) -> fp32        copy (fp32) - update -> copy (fp32) -> weight (16 bits)

Source: Micikevicius et al. 2018, "Mixed Precision Training" (arXiv 1710.03740), section 3.1.

[Note: why copies]
fp16 has 11 significant bits and bf16 has 8, so a weight w in fp16 lies between neighbours that are
|w|/2048 to |w|/1024 apart. An update of less than half that distance rounds to nothing, in every
step again. In the copy the updates add up until the weight reaches its next neighbour.
"""

from collections.abc import Callable

import torch
from torch import Tensor

SIXTEEN_BITS = (torch.float16, torch.bfloat16)


class MasterWeights(torch.optim.Optimizer):
    """An optimizer that steps on fp32 copies of its 16-bit weights, and then rounds them.

    It takes an optimizer that was made from the model's weights and has not stepped yet, and puts a
    copy in the place of each weight in fp16 or bf16; other weights stay as they are. `collect`
    moves the gradients to the copies, as fp32, and `step` and `LossScaler.unscale_` call it. From
    then on they are gradients of `parameters()` and not of the model: clip them there, and forget
    them with `zero_grad` of this optimizer, not with the model's. Weights that you change
    yourself (loading, initialization) must be told: call `refresh()`. Raises ValueError for an
    optimizer that has stepped, wraps another one, or has no weight in 16 bits.
    """

    def __init__(self, optimizer: torch.optim.Optimizer):
        if hasattr(optimizer, "inner"):
            raise ValueError(
                f"{type(optimizer).__name__} steps on weights of its own and not on those in its "
                "param_groups, so copies of them would never change. Give MasterWeights a plain "
                "optimizer."
            )
        if optimizer.state:
            raise ValueError(
                "The optimizer has stepped already, so its state belongs to the 16-bit weights. "
                "Wrap it in MasterWeights before its first step."
            )
        self.inner = optimizer
        self.copies: dict[Tensor, Tensor] = {}  # the model's weight -> its copy
        for group in optimizer.param_groups:
            group["params"] = [self._copy_of(weight) for weight in group["params"]]
        if not self.copies:
            raise ValueError(
                "No weight of this optimizer is in fp16 or bf16, so there is nothing to copy. Make "
                "the optimizer from the weights of the 16-bit model."
            )
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self.state = optimizer.state

    def _copy_of(self, weight: Tensor) -> Tensor:
        if weight.dtype not in SIXTEEN_BITS:
            return weight
        copy = weight.detach().float().requires_grad_(weight.requires_grad)
        self.copies[weight] = copy
        return copy

    def parameters(self) -> list[Tensor]:
        """Return what the optimizer steps on: the copies, and the weights that have none."""
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def collect(self) -> None:
        """Move the gradients of the 16-bit weights to their copies, as fp32.

        Where a copy has a gradient already, they are added in fp32; so microbatches lose nothing if
        you collect after each.
        """
        for weight, copy in self.copies.items():
            if weight.grad is not None:
                gradient = weight.grad.float()
                copy.grad = gradient if copy.grad is None else copy.grad + gradient
                weight.grad = None

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of the weights and of the copies."""
        for weight in self.copies:
            weight.grad = None
        super().zero_grad(set_to_none)

    @torch.no_grad()
    def step(self, closure: Callable | None = None) -> None:
        """Collect the gradients, step on the copies, and round them to the weights.

        Raises ValueError for a closure, which would compute gradients of weights not yet rounded.
        """
        if closure is not None:
            raise ValueError("MasterWeights steps once for each backward, without a closure.")
        self.collect()
        self.inner.step()
        for weight, copy in self.copies.items():
            weight.copy_(copy)

    @torch.no_grad()
    def refresh(self) -> None:
        """Take the weights that the model has now as those of the copies."""
        for weight, copy in self.copies.items():
            copy.copy_(weight)

    @property
    def kept_bytes(self) -> int:
        """Return the bytes kept between steps besides weights, gradients and the inner state."""
        return sum(copy.nbytes for copy in self.copies.values())

    def state_dict(self) -> dict:
        """Return the inner optimizer's state dict, and the copies in the order of the weights."""
        copies = [copy.detach().clone() for copy in self.copies.values()]
        return {"inner": self.inner.state_dict(), "copies": copies}

    @torch.no_grad()
    def load_state_dict(self, state: dict) -> None:
        """Go on from a state, and round the copies to the weights.

        Raises ValueError, before anything changes, where the copies have other shapes.
        """
        shapes = [copy.shape for copy in self.copies.values()]
        if [copy.shape for copy in state["copies"]] != shapes:
            raise ValueError(
                "The state holds copies of other weights: their number or their shapes differ from "
                "those of this optimizer. Load it into an optimizer of the same model."
            )
        self._load_inner(state["inner"])
        for (weight, copy), stored in zip(self.copies.items(), state["copies"], strict=True):
            copy.copy_(stored)
            weight.copy_(copy)

    def _load_inner(self, state: dict) -> None:
        self.inner.load_state_dict(state)  # makes new groups and a new state
        self.param_groups, self.state = self.inner.param_groups, self.inner.state
