"""PyTorch's flash attention on the CPU, where a causal block costs little more than its own pairs.

The kernel takes 512 keys at a time and computes them for all queries of a tile, whatever the mask
hides: at 2,048 tokens a quarter more pairs than the mask leaves, at 512 twice as many. In halves, a
causal block is two smaller ones and a square of which nothing is hidden:

    queries of the first half     their own keys, causal
    queries of the second half    their own keys, causal, merged with all keys of the first half

and the smaller ones are cut again, down to `LEAF` tokens.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from lib.parallel.sequence.merging import merge

LEAF = 128  # tokens; smaller pieces cost as much in calls as they spare in pairs

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def pieces(queries: int, keys: int, causal: bool) -> Iterator[tuple[slice, slice, bool]]:
    """Yield the queries and keys of each piece of a block, and whether it is causal.

    A query's own keys come before the earlier ones, so that those are added to what is there.
    """
    if causal and queries == keys:
        yield from _halves(0, queries)
    else:
        yield slice(0, queries), slice(0, keys), causal


def _halves(first: int, end: int):
    if end - first <= LEAF:
        yield slice(first, end), slice(first, end), True
        return
    middle = (first + end) // 2
    yield from _halves(first, middle)
    yield from _halves(middle, end)
    yield slice(middle, end), slice(first, middle), False


def forward(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """Return out [B, H, Q, K] and log_sum [B, H, Q] of one block."""
    out = log_sum = None
    for rows, columns, masked in pieces(q.shape[2], k.shape[2], causal):
        piece = _forward(
            q[:, :, rows], k[:, :, columns], v[:, :, columns], 0.0, masked, scale=scale
        )
        if rows == slice(0, q.shape[2]):
            return piece
        if out is None:
            out = torch.empty_like(q, dtype=piece[1].dtype)  # 4 bytes at least
            log_sum = piece[1].new_empty(q.shape[:3])
        if masked:
            out[:, :, rows], log_sum[:, :, rows] = piece
        else:
            merge(out[:, :, rows], log_sum[:, :, rows], *piece)
    return out.to(q.dtype), log_sum


def backward(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, log_sum: Tensor, causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return dq, dk and dv of one block, given `out` and `log_sum` over all keys."""
    sums = None
    for rows, columns, masked in pieces(q.shape[2], k.shape[2], causal):
        piece = _backward(
            gradient[:, :, rows], q[:, :, rows], k[:, :, columns], v[:, :, columns],
            out[:, :, rows], log_sum[:, :, rows].contiguous(), 0.0, masked, scale=scale,
        )  # fmt: skip
        if rows == slice(0, q.shape[2]):
            return piece
        sums = sums or [torch.empty_like(t, dtype=log_sum.dtype) for t in (q, k, v)]
        for total, places, part in zip(sums, (rows, columns, columns), piece):
            if masked:
                total[:, :, places] = part
            else:
                total[:, :, places].add_(part)
    return tuple(total.to(q.dtype) for total in sums)
