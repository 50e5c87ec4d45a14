"""Optimizers that look at whole matrices, on ranks that have parts of them."""

from lib.parallel.optimizers.adafactor import ShardedAdafactor
from lib.parallel.optimizers.sm3 import ShardedSM3

__all__ = ["ShardedAdafactor", "ShardedSM3"]
