"""Three ways to live without master weights: round each update, round it by chance, or keep errors.

    weight (16 bits) -> fp32 [+ error] -> optimizer's step -> rounded to 16 bits [, new error]

Source: Zamirai et al. 2020, "Revisiting BFloat16 Training" (arXiv 2010.06192), which shows that
nearest rounding of weights cancels small updates, and that either of the two others helps.

[Note: three roundings]
nearest      the weight becomes the nearest number of its format. An update below half the distance
             to the neighbour changes nothing.
stochastic   the weight becomes one of its two neighbours, the nearer one more often, so that it is
             right on average: an update of 1% of the distance moves one weight in a hundred.
compensated  the weight is rounded to nearest, and what was lost is kept in 16 bits and added
             before the next step (Kahan 1965). It is the upper and the lower half of a master
             weight, in two tensors of 16 bits.
"""

import torch
from torch import Tensor

from lib.single.formats import BF16, FP16
from lib.single.precision.master_weights import MasterWeights

ROUNDINGS = ("nearest", "stochastic", "compensated")
FORMATS = {torch.float16: FP16, torch.bfloat16: BF16}


class RoundedWeights(MasterWeights):
    """An optimizer whose 16-bit weights are in fp32 only during its step.

    `rounding` says how the results become 16-bit weights: "nearest", "stochastic" (with numbers of
    `generator`) or "compensated", which keeps an error of 16 bits for each weight. The optimizer's
    own state is in fp32, as with `MasterWeights`. Raises ValueError for another rounding, and where
    MasterWeights does.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, rounding: str = "nearest",
        generator: torch.Generator | None = None,
    ):  # fmt: skip
        if rounding not in ROUNDINGS:
            raise ValueError(
                f"Weights are rounded in one of the ways {', '.join(ROUNDINGS)}, not {rounding!r}."
            )
        super().__init__(optimizer)
        self.rounding, self.generator = rounding, generator
        compensated = rounding == "compensated"
        self.errors = {w: torch.zeros_like(w) for w in self.copies} if compensated else {}
        self._free()

    @torch.no_grad()
    def step(self, closure=None) -> None:
        """Widen the weights, step, and round them; raises ValueError for a closure."""
        for weight, copy in self.copies.items():
            copy.untyped_storage().resize_(4 * copy.numel())
            copy.copy_(weight)
            if weight in self.errors:
                copy.add_(self.errors[weight])
        try:
            super().step(closure)  # leaves the nearest numbers in the weights
            for weight, copy in self.copies.items():
                if self.rounding == "stochastic":
                    weight.copy_(self._by_chance(copy, FORMATS[weight.dtype]))
                elif weight in self.errors:
                    self.errors[weight].copy_(copy - weight)
        finally:
            self._free()

    def _by_chance(self, copy: Tensor, number_format) -> Tensor:
        return number_format.round(
            copy, rounding="stochastic", overflow="infinity", generator=self.generator
        )

    def _free(self) -> None:
        """Free the copies' memory; they keep their shapes, so that they can have gradients."""
        for copy in self.copies.values():
            copy.untyped_storage().resize_(0)

    @torch.no_grad()
    def refresh(self) -> None:
        """Forget the errors, which belong to weights that were changed since."""
        for error in self.errors.values():
            error.zero_()

    @property
    def kept_bytes(self) -> int:
        """Return the bytes kept between steps besides weights, gradients and the inner state."""
        return sum(error.nbytes for error in self.errors.values())

    def state_dict(self) -> dict:
        """Return the inner optimizer's state dict, and the errors in the order of the weights."""
        errors = [error.clone() for error in self.errors.values()]
        return {"inner": self.inner.state_dict(), "errors": errors}

    def load_state_dict(self, state: dict) -> None:
        """Go on from a state, with the weights that the model has.

        Raises ValueError, before anything changes, where the errors have other shapes.
        """
        shapes = [error.shape for error in self.errors.values()]
        if [error.shape for error in state["errors"]] != shapes:
            raise ValueError(
                "The state holds errors of other weights, or none: their number or their shapes "
                "differ from those of this optimizer. Use the same model and the same rounding."
            )
        self._load_inner(state["inner"])
        for error, stored in zip(self.errors.values(), state["errors"], strict=True):
            error.copy_(stored)
