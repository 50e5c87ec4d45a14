"""Attention of some queries to some keys, with what is needed to join it to that of other keys.

    q [B, H, Q, K], k, v [B, G, T, K] -> out [B, H, Q, K], log_sum [B, H, Q]

log_sum is the logarithm of the softmax's denominator, log Σ exp(q·k · scale): with it, two results
over different keys become the result over all of them (merging.py).

Backward needs the log_sum and the output over *all* keys. With them the gradients of a block are
those that the whole attention would give its pairs, and dQ of all blocks is their sum.

There are two versions. `readable_forward` and `readable_backward` are written out and work for every
dtype and device; PyTorch's kernels never write the scores to memory. `forward` and `backward` choose
the kernel that has log_sum among its results: flash attention on the CPU (flash_on_cpu.py), and on
CUDA flash attention or else memory-efficient attention, as PyTorch allows; everywhere else the
readable version.
Source: Milakov and Gimelshein 2018 (arXiv 1805.02867); Dao 2023, "FlashAttention-2" (arXiv
2307.08691), section 3.1.
"""  # noqa: E501

import math

import torch
from torch import Tensor
from torch.backends.cuda import (
    SDPAParams,
    can_use_efficient_attention,
    can_use_flash_attention,
)

from lib.parallel.sequence import flash_on_cpu

_aten = torch.ops.aten


def readable_forward(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Return out and log_sum; the scores [B, H, Q, T] of this block are the largest tensor."""
    scores = _scores(q, k, causal, scale)
    log_sum = scores.logsumexp(-1)
    return ((scores - log_sum.unsqueeze(-1)).exp() @ _repeated(v, q)).to(q.dtype), log_sum


def dropped_forward(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, noise: Tensor
) -> tuple[Tensor, Tensor]:
    """Return out and log_sum where probabilities are multiplied by `noise`, [B, H, Q, T].

    The log_sum is that without noise, so blocks merge as ever.
    """
    scores = _scores(q, k, causal, scale)
    log_sum = scores.logsumexp(-1)
    probabilities = (scores - log_sum.unsqueeze(-1)).exp() * noise
    return (probabilities @ _repeated(v, q)).to(q.dtype), log_sum


def readable_backward(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, log_sum: Tensor, causal: bool,
    scale: float, noise: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return dq, dk and dv of this block, given `out` and `log_sum` over all keys and the noise."""
    probabilities = (_scores(q, k, causal, scale) - log_sum.unsqueeze(-1)).exp()
    gradient, wide = gradient.to(probabilities.dtype), probabilities.dtype
    of_probabilities = gradient @ _repeated(v, q).mT
    kept = probabilities
    if noise is not None:
        of_probabilities, kept = of_probabilities * noise, probabilities * noise
    delta = (gradient * out).sum(-1, keepdim=True)
    of_scores = probabilities * (of_probabilities - delta) * scale
    dq = of_scores @ _repeated(k, q)
    dk, dv = of_scores.mT @ q.to(wide), kept.mT @ gradient
    groups = k.shape[1]
    dk, dv = (t.unflatten(1, (groups, -1)).sum(2) for t in (dk, dv))
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


def _scores(q, k, causal, scale):
    """Return q·k · scale, in 4 bytes at least: [B, H, Q, T], -inf above the diagonal if causal."""
    wide = torch.promote_types(q.dtype, torch.float32)
    scores = q.to(wide) @ _repeated(k, q).mT * scale
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    return scores


def _repeated(x, q):
    """Repeat each key or value for the queries that share it, in 4 bytes at least."""
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    return x.repeat_interleave(q.shape[1] // x.shape[1], 1)


# PyTorch's kernels.


def kernel_of(q: Tensor, v: Tensor) -> str:
    """Return which kernel computes a block: "cpu", "flash", "efficient" or "readable"."""
    if q.shape[-1] != v.shape[-1]:
        return "readable"
    if q.device.type == "cpu":
        return "cpu"
    if q.device.type != "cuda" or q.dtype == torch.float64:
        return "readable"
    # PyTorch knows which of its kernels this GPU, dtype and head size have.
    like = SDPAParams(q, q, q, None, 0.0, False, False)
    if can_use_flash_attention(like):
        return "flash"
    return "efficient" if can_use_efficient_attention(like) else "readable"


def forward(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, noise: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return out and log_sum from the kernel that fits; as `readable_forward`.

    With noise it is `dropped_forward`, because a kernel draws its own and not by place.
    """
    if noise is not None:
        return dropped_forward(q, k, v, causal, scale, noise)
    kernel = kernel_of(q, v)
    if kernel == "cpu":
        return flash_on_cpu.forward(q, k, v, causal, scale)
    if kernel == "flash":
        return _aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, scale=scale)[:2]
    if kernel == "efficient":
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
        out, log_sum, *_ = _aten._scaled_dot_product_efficient_attention(
            q, k, v, None, True, 0.0, causal, scale=scale
        )
        return out, log_sum[:, :, : q.shape[2]]  # the kernel pads its rows to a multiple of 32
    return readable_forward(q, k, v, causal, scale)


def backward(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, log_sum: Tensor, causal: bool,
    scale: float, noise: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return dq, dk and dv of this block from the kernel that fits; as `readable_backward`."""
    kernel = kernel_of(q, v)
    if kernel == "readable" or noise is not None:
        return readable_backward(gradient, q, k, v, out, log_sum, causal, scale, noise)
    if kernel == "cpu":
        return flash_on_cpu.backward(gradient, q, k, v, out, log_sum, causal, scale)
    # Without dropout a kernel draws nothing, and its seed and offset are not read.
    nothing = torch.zeros((), dtype=torch.int64, device=q.device)
    if kernel == "flash":
        lengths = q.shape[2], k.shape[2]
        return _aten._scaled_dot_product_flash_attention_backward(
            gradient, q, k, v, out, log_sum.contiguous(), None, None, *lengths, 0.0, causal,
            nothing, nothing, scale=scale,
        )  # fmt: skip
    groups = k.shape[1]
    k, v = (t.repeat_interleave(q.shape[1] // groups, 1) for t in (k, v))
    padding = -q.shape[2] % 32
    log_sum = torch.nn.functional.pad(log_sum, (0, padding), value=math.inf)
    dq, dk, dv, _ = _aten._scaled_dot_product_efficient_attention_backward(
        gradient, q, k, v, None, out, log_sum, nothing, nothing, 0.0, [True, True, True, False],
        causal, scale=scale,
    )  # fmt: skip
    dk, dv = (t.unflatten(1, (groups, -1)).sum(2) for t in (dk, dv))
    return dq, dk, dv
