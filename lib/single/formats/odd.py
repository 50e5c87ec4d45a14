"""Rounding to odd: what is rounded once more afterwards comes out as if rounded only once.

[Note: why odd]
Rounding fp64 to fp32 and then to fp16 can differ from rounding to fp16 at once: a number just above
the middle of two fp16 numbers becomes the middle itself in fp32, and then goes to the even one. If
the first rounding drops what does not fit and sets the last bit wherever something was dropped,
the middle is never hit by mistake. Two bits more than the last format has are enough.

Source: Boldo and Melquiond 2008, "Emulation of a FMA and Correctly Rounded Sums: Proved Algorithms
Using Rounding to Odd" (IEEE Transactions on Computers 57).
"""

import torch
from torch import Tensor


def to_float32(x: Tensor) -> Tensor:
    """Return fp64 numbers in fp32, rounded to odd; infinity and NaN stay what they are."""
    nearest = x.float()
    back = nearest.double()
    dropped = (back != x) & ~x.isnan()
    bits = nearest.view(torch.int32)
    bits -= ((back.abs() > x.abs()) & dropped).int()
    bits |= dropped.int()
    return nearest


def add(a: Tensor, b: Tensor) -> Tensor:
    """Return the sums of fp64 numbers, rounded to odd."""
    total = a + b
    # Knuth's TwoSum: the error of a sum is a number of the same format.
    part = total - a
    error = (a - (total - part)) + (b - part)
    dropped = (error != 0) & error.isfinite()
    bits = total.view(torch.int64)
    bits -= (dropped & ((error < 0) != (total < 0))).long()
    bits |= dropped.long()
    return total
