"""The products of many experts, each with its own rows: [A, I] · [E, I, O] -> [A, O].

The rows lie in the order of their experts, `counts[e]` of them for expert e, so that each product
reads one contiguous piece. Nothing is padded, and an expert without rows costs nothing.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import grouped_mm


def grouped_product(x: Tensor, weights: Tensor, counts: Sequence[int]) -> Tensor:
    """Multiply each run of rows by its expert's matrix: x [A, I] · weights [E, I, O] -> [A, O].

    On NVIDIA GPUs, in half precision, PyTorch's `grouped_mm` does all of them in one kernel.
    """
    counts = list(counts)
    if len(x) and _one_kernel(x, weights):
        ends = torch.tensor(counts, device="cpu").cumsum(0).to(x.device, torch.int32)
        return grouped_mm(x, weights, offs=ends)
    return _OneByOne.apply(x, weights, counts)


def _one_kernel(x: Tensor, weights: Tensor) -> bool:
    """Return whether `grouped_mm` takes these: half precision, on a GPU, rows of 16 bytes each."""
    aligned = all(size % 8 == 0 for size in weights.shape[1:])
    return x.is_cuda and aligned and x.dtype in (torch.bfloat16, torch.float16)


class _OneByOne(torch.autograd.Function):
    """Multiply in a loop that writes into one result, so that nothing is cut up or put together."""

    @staticmethod
    def forward(ctx, x, weights, counts):
        ctx.save_for_backward(x, weights)
        ctx.counts = counts
        y = x.new_empty(len(x), weights.shape[2])
        for rows, out, weight in zip(x.split(counts), y.split(counts), weights):
            if len(rows):
                torch.mm(rows, weight, out=out)
        return y

    @staticmethod
    def backward(ctx, gradient):
        x, weights = ctx.saved_tensors
        gradient = gradient.contiguous()
        runs = list(zip(x.split(ctx.counts), gradient.split(ctx.counts)))
        dx = dw = None
        if ctx.needs_input_grad[0]:
            dx = torch.empty_like(x)
            for (_, g), out, weight in zip(runs, dx.split(ctx.counts), weights):
                if len(g):
                    torch.mm(g, weight.T, out=out)
        if ctx.needs_input_grad[1]:
            dw = torch.empty_like(weights)
            for (rows, g), out in zip(runs, dw):
                torch.mm(rows.T, g, out=out)  # zeros where there are no rows
        return dx, dw, None
