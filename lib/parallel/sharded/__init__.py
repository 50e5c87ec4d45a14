"""Sharded data parallelism: ranks share a batch, and each keeps only a part of the model."""

from lib.parallel.sharded.fsdp import FSDP
from lib.parallel.sharded.sharded_data_parallel import ShardedDataParallel
from lib.parallel.sharded.zero_optimizer import ZeroRedundancyOptimizer

__all__ = ["FSDP", "ShardedDataParallel", "ZeroRedundancyOptimizer"]
