"""Training with numbers of fewer bits: what is rounded, when, and what keeps it from being lost."""

from lib.single.precision.accumulate import matmul_in, relative_error, softmax_in, sum_in
from lib.single.precision.delayed_scaling import DelayedScaling, update_scales
from lib.single.precision.fp8 import Fp8Linear, fp8
from lib.single.precision.microscaled import MicroscaledLinear, microscaled

__all__ = ["matmul_in", "relative_error", "softmax_in", "sum_in"]
__all__ += ["DelayedScaling", "Fp8Linear", "fp8", "update_scales"]
__all__ += ["MicroscaledLinear", "microscaled"]
