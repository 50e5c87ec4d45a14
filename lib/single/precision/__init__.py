"""Training in few bits: scaled losses, master weights, and operations in the format they need."""

from lib.single.precision.loss_scaler import LossScaler
from lib.single.precision.master_weights import MasterWeights
from lib.single.precision.mixed import mixed

__all__ = ["LossScaler", "MasterWeights", "mixed"]
