"""What optimizers keep, and what they send where parameters are sharded: formulas from shapes."""

from lib.predict.optimizers.states import state_bytes

__all__ = ["state_bytes"]
