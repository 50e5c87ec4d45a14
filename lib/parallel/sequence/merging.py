"""Two results of attention over different keys become the result over all of them.

    out [.., Q, K] and log_sum [.., Q], the logarithm of the softmax's denominator, of both:

    weight = sigmoid(log_sum_b - log_sum_a)         b's share of both denominators
    out = out_a + weight · (out_b - out_a)          log_sum = log(exp(log_sum_a) + exp(log_sum_b))

Source: Milakov and Gimelshein 2018 (arXiv 1805.02867).
"""

import math

import torch
from torch import Tensor


def merge(out: Tensor, log_sum: Tensor, block_out: Tensor, block_log_sum: Tensor) -> None:
    """Join a block's result to that over earlier keys, in place: [.., Q, K] and [.., Q].

    If the mask hides all keys of a block from a query, the block's log_sum is -inf for it and the
    query's result does not change.
    """
    difference = block_log_sum - log_sum
    # Where both are -inf, their difference is not a number; such a block has no weight.
    difference = difference.masked_fill(block_log_sum == -math.inf, -math.inf)
    out.lerp_(block_out.to(out.dtype), difference.sigmoid().unsqueeze(-1).to(out.dtype))
    torch.logaddexp(log_sum, block_log_sum, out=log_sum)
