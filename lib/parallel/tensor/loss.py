"""The mean cross-entropy of logits that are split by vocabulary; no rank ever has a whole row.

    logits [.., V/tp] -> largest [..]: all_reduce (max)
                      -> Σ exp [..] and the target's logit [..]: one all_reduce (sum) -> loss []

Backward sends nothing: a rank's part of softmax - target is computed from what it has kept.
With label smoothing ε the loss is (1 - ε)·(-log p[target]) - ε·mean(log p), as in PyTorch.
Source: Megatron-LM, megatron/core/tensor_parallel/cross_entropy.py.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from lib.single.vocabulary import check_targets


def vocab_parallel_cross_entropy(
    logits: Tensor, targets: Tensor, group=None, *, vocabulary: int | None = None,
    label_smoothing: float = 0.0, ignore_index: int = -100, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """Return the cross-entropy in nats: logits [.., V/tp], targets [..] -> [] or [..].

    Every rank gives the same targets, in the numbers of the whole vocabulary, and gets the same
    loss. `vocabulary` is V where it was padded; the head gives -inf for what was added, so it is
    needed with label smoothing only, or for logits of another head. Targets of `ignore_index` count
    neither in the sum nor in the mean. `reduction` is "mean", "sum" or "none".
    """
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"No reduction is called {reduction!r}. Choose mean, sum or none.")
    entries = logits.shape[-1] * dist.get_world_size(group)
    vocabulary = entries if vocabulary is None else vocabulary
    ignored = targets == ignore_index
    check_targets(targets, ignored, vocabulary)
    flat = logits.flatten(0, -2), targets.flatten()
    losses = _Loss.apply(*flat, ignored.flatten(), group, vocabulary, label_smoothing)
    if reduction == "none":
        return losses.view_as(targets)
    total = losses.sum()
    return total / (~ignored).sum() if reduction == "mean" else total


class _Loss(torch.autograd.Function):
    """logits [N, V/tp], targets [N] -> the loss of each row [N], 0 where it is ignored."""

    @staticmethod
    def forward(ctx, logits, targets, ignored, group, vocabulary, smoothing):
        width = logits.shape[1]
        first = dist.get_rank(group) * width
        real = min(max(vocabulary - first, 0), width)  # columns that are not padding
        largest = logits[:, :real].amax(1) if real else logits.new_full((len(logits),), -torch.inf)
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
        shifted = logits.to(torch.promote_types(logits.dtype, torch.float32)) - largest[:, None]
        local = targets - first
        inside = (local >= 0) & (local < width) & ~ignored
        local = local.masked_fill(~inside, 0)
        sums = shifted.new_zeros(3 if smoothing else 2, len(logits))
        sums[1] = shifted.gather(1, local[:, None])[:, 0].masked_fill(~inside, 0)
        if smoothing:
            sums[2] = shifted[:, :real].sum(1)
        exps = shifted.exp_()
        exps[:, real:] = 0
        sums[0] = exps.sum(1)
        dist.all_reduce(sums, group=group)
        log_sum = sums[0].log()
        losses = log_sum - (1 - smoothing) * sums[1]
        if smoothing:
            losses -= smoothing / vocabulary * sums[2]
        ctx.save_for_backward(exps.div_(sums[0][:, None]), local, inside, ignored)
        ctx.dtype, ctx.real, ctx.of_each = logits.dtype, real, smoothing / vocabulary
        ctx.of_target = 1 - smoothing
        return losses.masked_fill_(ignored, 0)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        probabilities, local, inside, ignored = ctx.saved_tensors
        gradient = gradient.masked_fill(ignored, 0)[:, None]
        of_logits = probabilities * gradient
        of_target = (ctx.of_target * gradient).masked_fill(~inside[:, None], 0)
        of_logits.scatter_add_(1, local[:, None], -of_target)
        if ctx.of_each:
            of_logits[:, : ctx.real] -= ctx.of_each * gradient
        return of_logits.to(ctx.dtype), None, None, None, None, None
