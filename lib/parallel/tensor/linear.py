"""Linear layers of which each rank has a part: of the outputs, or of the inputs.

    column:  x [.., D]    · W [D, F/tp] -> y [.., F/tp]       backward: dx +tp, then all_reduce
    row:     x [.., F/tp] · W [F/tp, D] -> y [.., D] +tp      then all_reduce; backward: nothing

With sequence parallelism x begins and y ends as [B, S/tp, D]: see sequence.py.

W is written as in the formula; PyTorch stores it transposed, [F/tp, D] for column and [D, F/tp] for
row. A column layer followed by a row layer needs one all_reduce forward and one backward.
Source: Shoeybi et al. 2019, "Megatron-LM" (arXiv 1909.08053), section 3.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from lib.parallel.tensor.gathered import gathered_product
from lib.parallel.tensor.operators import (
    gather_from_group,
    reduce_from_group,
    scatter_sequence,
    split_to_group,
)
from lib.parallel.tensor.placements import Replicated, Split


class SplitModule(nn.Module):
    """The base of the modules whose parameters are split over a group.

    `placements` says where the numbers of each of its own parameters are, by name. Where
    `splits_sequence` is set, tensors outside it have this rank's tokens only, [B, S/tp, D].
    """

    splits_sequence = False

    def __init__(self, group=None):
        super().__init__()
        self.group = group
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        self.placements = {}

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Begin a split region with a column layer: x [B, S, D] or [B, S/tp, D] -> [B, S, F/tp]."""
        kind = gathered_product if self.splits_sequence else column_product
        device = x.device.type
        if torch.is_autocast_enabled(device):  # here, so that backward sees what forward multiplied
            dtype = torch.get_autocast_dtype(device)
            x, weight, bias = (t if t is None else t.to(dtype) for t in (x, weight, bias))
        return kind(x, weight, bias, self.group)

    def sum(self, y: Tensor) -> Tensor:
        """End a split region: y [B, S, D] +tp -> [B, S, D] or [B, S/tp, D]."""
        if self.splits_sequence:
            return scatter_sequence(y, self.group)
        return reduce_from_group(y, self.group, in_place=True)

    def take(self, name: str, full: Tensor | None, placement) -> None:
        """Keep this rank's part of a parameter of the whole module; None stays None."""
        if full is None:
            self.register_parameter(name, None)
            return
        shard = placement.shard(full.detach(), self.rank).clone(
            memory_format=torch.contiguous_format
        )
        self.register_parameter(name, nn.Parameter(shard, full.requires_grad))
        self.placements[name] = placement


class ColumnLinear(SplitModule):
    """A linear layer of which each rank computes a part of the outputs: x [.., D] -> y [.., F/tp].

    Made from the whole layer. Every rank gives the same x. Its gradient is a sum over the ranks,
    whose all_reduce runs while the weight's gradient is computed. With `gather_output` every rank
    gets all outputs, [.., F]. Raises ValueError where the ranks cannot share the outputs equally.
    """

    def __init__(self, full: nn.Linear, group=None, gather_output: bool = False):
        super().__init__(group)
        self.gather_output = gather_output
        placement = self.placement(full)
        self.take("weight", full.weight, placement)
        self.take("bias", full.bias, placement)

    def placement(self, full: nn.Linear) -> Split:
        """Return how the outputs of the whole layer are split."""
        return Split(self.ranks, 0, full.out_features, what="The output of a layer has {} entries")

    def forward(self, x):
        y = self.product(x, self.weight, self.bias)
        return gather_from_group(y, -1, self.group) if self.gather_output else y

    def extra_repr(self) -> str:
        """Say which part of the whole layer this rank has."""
        return f"{self.weight.shape[1]} -> {self.weight.shape[0]}, a part of {self.ranks}"


class RowLinear(SplitModule):
    """A linear layer of which each rank has a part of the inputs: x [.., F/tp] -> y [.., D].

    Made from the whole layer. The ranks' products are summed by an all_reduce; then every rank adds
    the whole bias, once. With `input_is_split=False` every rank gives the whole x, [.., F], of
    which it takes its part. Raises ValueError where the ranks cannot share the inputs equally.
    """

    def __init__(self, full: nn.Linear, group=None, input_is_split: bool = True):
        super().__init__(group)
        self.input_is_split = input_is_split
        what = "The input of a layer has {} entries"
        self.take("weight", full.weight, Split(self.ranks, 1, full.in_features, what=what))
        self.take("bias", full.bias, Replicated(self.ranks))

    def forward(self, x):
        if not self.input_is_split:
            x = split_to_group(x, -1, self.group)
        y = self.sum(linear(x, self.weight))
        return y if self.bias is None else y.add_(self.bias)

    def extra_repr(self) -> str:
        """Say which part of the whole layer this rank has."""
        return f"{self.weight.shape[1]}, a part of {self.ranks} -> {self.weight.shape[0]}"


def column_product(x: Tensor, weight: Tensor, bias: Tensor | None, group=None) -> Tensor:
    """Return x [.., D] · Wᵀ + b as [.., F/tp]; backward sums the gradient of x over the group."""
    return _Column.apply(x, weight, bias, group)


class _Column(torch.autograd.Function):
    """copy_to_group and a linear layer in one, because their backwards overlap."""

    @staticmethod
    def forward(ctx, x, weight, bias, group):
        ctx.group = group
        needs_x, needs_weight, *_ = ctx.needs_input_grad
        ctx.save_for_backward(x if needs_weight else None, weight if needs_x else None)
        return linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        rows = gradient.flatten(0, -2)  # [B·S, F/tp]
        of_x = of_weight = of_bias = work = None
        if weight is not None:
            of_x = rows.mm(weight)  # [B·S, D] +tp
            work = dist.all_reduce(of_x, group=ctx.group, async_op=True)
            of_x = of_x.view(*gradient.shape[:-1], -1)
        if x is not None:  # while the all_reduce runs
            of_weight = rows.t().mm(x.flatten(0, -2))
        if ctx.needs_input_grad[2]:
            of_bias = rows.sum(0)
        if work is not None:
            work.wait()
        return of_x, of_weight, of_bias, None
