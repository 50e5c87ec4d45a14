"""The norm of all gradients of a model of which each rank has only shards."""

import contextlib

import torch

from lib.ranks.norms import norm_of_all, scale_gradients, sum_of_powers


def clip_grad_norm_(
    gradients: list, group, like: torch.Tensor, max_norm: float, norm_type: float = 2.0,
    working=contextlib.nullcontext,
) -> torch.Tensor:  # fmt: skip
    """Scale these gradients so that the norm of all ranks' is at most `max_norm`; return it.

    The norms of the ranks' own shards would differ, and so would their scales. What this rank
    computes runs inside `working()`.
    """
    with working():
        own = sum_of_powers(gradients, norm_type)
    norm = norm_of_all(own, group, like, norm_type)
    with working():
        scale_gradients(gradients, norm, max_norm)
    return norm
