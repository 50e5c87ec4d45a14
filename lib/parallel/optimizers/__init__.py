"""Optimizers that look at whole matrices, on ranks that have parts of them."""

from lib.parallel.optimizers.adafactor import ShardedAdafactor
from lib.parallel.optimizers.adam_8bit import ShardedAdam8bit
from lib.parallel.optimizers.muon import ShardedMuon
from lib.parallel.optimizers.sm3 import ShardedSM3

__all__ = ["ShardedAdafactor", "ShardedAdam8bit", "ShardedMuon", "ShardedSM3"]
