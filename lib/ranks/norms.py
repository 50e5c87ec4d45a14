"""The norm of tensors of which each rank has only parts, and gradients scaled by it."""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor


def sum_of_powers(parts: Iterable[Tensor], norm_type: float = 2.0) -> Tensor:
    """Return the sum of |x|^p over this rank's parts, or the largest |x| for p = inf: []."""
    norms = [
        torch.linalg.vector_norm(part, norm_type, dtype=_at_least_float32(part))
        for part in parts
        if part.numel()
    ]
    if not norms:
        return torch.zeros(())
    norms = torch.stack(norms)
    return norms.max() if norm_type == float("inf") else (norms**norm_type).sum()


def norm_of_all(own: Tensor, group, like: Tensor, norm_type: float = 2.0) -> Tensor:
    """Return the norm of all ranks' parts, from each rank's `sum_of_powers`: the same on all, [].

    It is the p-th root of the sum over all ranks, or for p = inf the largest of them: one
    all_reduce of one number, on the device of `like`. Every number must be on exactly one rank. The
    norm of a rank's own parts would be too small, and another on each rank.
    """
    total = own.to(like.device, _at_least_float32(like), copy=True)
    largest = norm_type == float("inf")
    dist.all_reduce(total, dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM, group=group)
    return total if largest else total ** (1 / norm_type)


def scale_gradients(gradients: Iterable[Tensor], norm: Tensor, max_norm: float) -> None:
    """Scale gradients whose norm is `norm` so that it is at most `max_norm`."""
    scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)  # as torch.nn.utils.clip_grad_norm_
    for gradient in gradients:
        gradient.mul_(scale.to(gradient))


def _at_least_float32(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)
