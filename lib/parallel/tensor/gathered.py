"""A column layer whose input is split by tokens: gathered forward, and gathered again backward.

    forward   x [B, S/tp, D] -> all_gather -> [B, S, D] · W [D, F/tp] -> y [B, S, F/tp]
    backward  x [B, S/tp, D] -> all_gather -> [B, S, D]    while dy · Wᵀ is computed
              dx [B, S, D] +tp -> reduce_scatter -> [B, S/tp, D]    while dW = xᵀ · dy is computed

Autograd keeps this rank's tokens of x, not the gathered ones: a tp-th of the memory, for one more
all_gather. Source: Korthikanti et al. 2022 (arXiv 2205.05198), section 4.2.2.
"""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from lib.parallel.tensor.operators import gather_sequence
from lib.ranks.collectives import gather_async, reduce_scatter_async


def gathered_product(x: Tensor, weight: Tensor, bias: Tensor | None, group=None) -> Tensor:
    """Return x of all tokens · Wᵀ + b: [B, S/tp, D] -> [B, S, F/tp]; backward splits dx."""
    return _Gathered.apply(x, weight, bias, group)


class _Gathered(torch.autograd.Function):
    """gather_sequence and a linear layer in one, because their backwards overlap."""

    @staticmethod
    def forward(ctx, x, weight, bias, group):
        ctx.group = group
        needs_x, needs_weight, *_ = ctx.needs_input_grad
        ctx.save_for_backward(x if needs_weight else None, weight if needs_x else None)
        return linear(gather_sequence(x, group), weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        of_x = of_weight = of_bias = None
        if x is not None:
            whole = gather_async(x, 1, ctx.group)
        if weight is not None:  # while x is gathered
            of_x = reduce_scatter_async(gradient @ weight, 1, ctx.group)
        rows = gradient.flatten(0, -2)  # [B·S, F/tp]
        if x is not None:  # while the gradient of x is summed
            of_weight = rows.t().mm(whole().flatten(0, -2))
        if ctx.needs_input_grad[2]:
            of_bias = rows.sum(0)
        return None if of_x is None else of_x(), of_weight, of_bias, None
