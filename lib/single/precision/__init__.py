"""Training with numbers of fewer bits: what is rounded, when, and what keeps it from being lost."""

from lib.single.precision.delayed_scaling import DelayedScaling, update_scales
from lib.single.precision.fp8 import Fp8Linear, fp8
from lib.single.precision.scaled import Scaled, product, scaled

__all__ = [
    "DelayedScaling",
    "Fp8Linear",
    "Scaled",
    "fp8",
    "product",
    "scaled",
    "update_scales",
]
