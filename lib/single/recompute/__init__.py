"""Recomputation: what backward needs is forgotten in forward, and computed again."""

from lib.single.recompute.chain import block_costs, recompute
from lib.single.recompute.checkpoint import checkpoint
from lib.single.recompute.kept_operations import only

__all__ = ["block_costs", "checkpoint", "only", "recompute"]
