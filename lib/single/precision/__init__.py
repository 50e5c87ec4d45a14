"""Training with numbers of fewer bits: what is rounded, when, and what keeps it from being lost."""

from lib.single.precision.accumulate import matmul_in, relative_error, softmax_in, sum_in

__all__ = ["matmul_in", "relative_error", "softmax_in", "sum_in"]
