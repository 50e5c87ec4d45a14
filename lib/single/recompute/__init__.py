"""Recomputation: what backward needs is forgotten in forward, and computed again."""

from lib.single.recompute.chain import best_plan, block_costs, kept_bytes, recompute
from lib.single.recompute.checkpoint import checkpoint
from lib.single.recompute.kept_operations import only
from lib.single.recompute.surroundings import repeated

__all__ = ["best_plan", "block_costs", "checkpoint", "kept_bytes", "only", "recompute", "repeated"]
