"""The products of many experts, each with its own rows: [A, I] · [E, I, O] -> [A, O].

The rows lie in the order of their experts, `counts[e]` of them for expert e, so that each product
reads one contiguous piece. Nothing is padded, and an expert without rows costs nothing.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import grouped_mm

HALF = (torch.bfloat16, torch.float16)


def grouped_product(x: Tensor, weights: Tensor, counts: Sequence[int]) -> Tensor:
    """Multiply each run of rows by its expert's matrix: x [A, I] · weights [E, I, O] -> [A, O].

    PyTorch's `grouped_mm` does all of them at once where it can: on NVIDIA GPUs in half precision
    in one kernel, on the CPU in a loop that is not Python's.
    """
    # The kernel wants rows that begin at whole 16 bytes; rows cut out of wider ones may not.
    return _Grouped.apply(x.contiguous(), weights.contiguous(), list(counts))


class _Grouped(torch.autograd.Function):
    """Multiply, and give both gradients without one tensor more than the results."""

    @staticmethod
    def forward(ctx, x, weights, counts):
        ctx.save_for_backward(x, weights)
        ctx.counts = counts
        return _rows_times_matrices(x, weights, counts)

    @staticmethod
    def backward(ctx, gradient):
        x, weights = ctx.saved_tensors
        gradient = gradient.contiguous()
        dx = dw = None
        if ctx.needs_input_grad[0]:
            dx = _rows_times_matrices(gradient, weights.transpose(1, 2), ctx.counts)
        if ctx.needs_input_grad[1]:
            dw = _rows_times_rows(x, gradient, ctx.counts)
        return dx, dw, None


def _rows_times_matrices(rows: Tensor, matrices: Tensor, counts: list[int]) -> Tensor:
    """Multiply rows [A, I] by the matrices [E, I, O] of their experts: [A, O]."""
    if _at_once(rows, matrices):
        return grouped_mm(rows, matrices, offs=_ends(counts, rows.device))
    product = rows.new_empty(len(rows), matrices.shape[2])
    for run, out, matrix in zip(rows.split(counts), product.split(counts), matrices):
        if len(run):
            torch.mm(run, matrix, out=out)
    return product


def _rows_times_rows(x: Tensor, gradient: Tensor, counts: list[int]) -> Tensor:
    """Return Σ xᵀ · gradient over the rows of each expert, [E, I, O]: zeros where it has none."""
    if _at_once(x, gradient):
        return grouped_mm(x.T, gradient, offs=_ends(counts, x.device))
    sums = x.new_empty(len(counts), x.shape[1], gradient.shape[1])
    for run, own, out in zip(x.split(counts), gradient.split(counts), sums):
        torch.mm(run.T, own, out=out)
    return sums


def _at_once(rows: Tensor, others: Tensor) -> bool:
    """Return whether `grouped_mm` takes these: such numbers, there, and rows of whole 16 bytes."""
    sizes = (*rows.shape[1:], *others.shape[1:])
    aligned = all(size * rows.element_size() % 16 == 0 for size in sizes)
    kinds = HALF if rows.is_cuda else (torch.float32,)
    return len(rows) > 0 and aligned and rows.dtype in kinds and rows.device.type in ("cuda", "cpu")


def _ends(counts: list[int], device) -> Tensor:
    """Return where each expert's rows end, as `grouped_mm` wants it: [E]."""
    return torch.tensor(counts, device="cpu").cumsum(0).to(device, torch.int32)
