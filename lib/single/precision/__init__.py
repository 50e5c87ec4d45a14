"""Training with numbers of fewer bits: what is rounded, when, and what keeps it from being lost."""

from lib.single.precision.accumulate import matmul_in, relative_error, softmax_in, sum_in
from lib.single.precision.accumulating import AccumulatingLinear, accumulated
from lib.single.precision.delayed_scaling import DelayedScaling, update_scales
from lib.single.precision.fp8 import Fp8Linear, fp8
from lib.single.precision.loss_scaler import LossScaler
from lib.single.precision.master_weights import MasterWeights
from lib.single.precision.microscaled import MicroscaledLinear, microscaled
from lib.single.precision.mixed import mixed
from lib.single.precision.rounded_weights import RoundedWeights

__all__ = ["LossScaler", "MasterWeights", "RoundedWeights", "matmul_in", "mixed"]
__all__ += ["relative_error", "softmax_in", "sum_in"]
__all__ += ["DelayedScaling", "Fp8Linear", "MicroscaledLinear", "fp8", "microscaled"]
__all__ += ["update_scales"]
__all__ += ["AccumulatingLinear", "accumulated"]
