"""Training with numbers of fewer bits: what is rounded, when, and what keeps it from being lost."""

from lib.single.precision.accumulate import matmul_in, relative_error, softmax_in, sum_in
from lib.single.precision.loss_scaler import LossScaler
from lib.single.precision.master_weights import MasterWeights
from lib.single.precision.mixed import mixed
from lib.single.precision.rounded_weights import RoundedWeights

__all__ = ["LossScaler", "MasterWeights", "RoundedWeights", "matmul_in", "mixed"]
__all__ += ["relative_error", "softmax_in", "sum_in"]
