"""Recomputation on ranks: what checkpoints keep may lie in shares."""

from lib.parallel.recompute.shares import in_shares

__all__ = ["in_shares"]
