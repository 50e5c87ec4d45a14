"""Gradients that are complete only as a sum over ranks: the sum as a hook of the parameter."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn


def sum_gradient(parameter: nn.Parameter, groups: Sequence = (None,), factor: float = 1.0) -> None:
    """Multiply a parameter's gradient by `factor` and sum it over groups, one after the other.

    This happens as soon as backward has the gradient, on every rank of the groups, so that all of
    them must go backward through the parameter in the same order.
    """

    def summed(gradient):
        gradient = gradient.clone(memory_format=torch.contiguous_format)
        if factor != 1:
            gradient.mul_(factor)
        for group in groups:
            dist.all_reduce(gradient, group=group)
        return gradient

    if parameter.requires_grad:
        parameter.register_hook(summed)
