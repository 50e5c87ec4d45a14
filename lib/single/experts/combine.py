"""What the experts return is weighed and added: [A, D] -> [N, D], one row for each token."""

import torch
from torch import Tensor


def weighted_sum(returned: Tensor, weight: Tensor, token: Tensor, tokens: int) -> Tensor:
    """Return for each token Σ weight · row over its rows: returned [A, D], weight [A] -> [N, D].

    Row a belongs to token[a], and a token without a row gets 0. Backward keeps the rows as they
    came; written as a product and `index_add`, it would keep them weighed as well.
    """
    return _WeightedSum.apply(returned, weight, token, tokens)


class _WeightedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, returned, weight, token, tokens):
        ctx.save_for_backward(returned, weight, token)
        y = returned.new_zeros(tokens, returned.shape[1])
        return y.index_add_(0, token, returned * weight[:, None])

    @staticmethod
    def backward(ctx, gradient):
        returned, weight, token = ctx.saved_tensors
        of_rows = gradient.index_select(0, token)
        of_weights = (of_rows * returned).sum(1)
        return of_rows.mul_(weight[:, None]), of_weights, None, None
