"""The two parts of a transformer layer, each split over a group: attention by heads, MLP by hidden.

    attention  x [B, S, D] · W [D, 3·D/tp] -> q, k, v [B, H/tp, S, K] -> · W [D/tp, D] -> [B, S, D] +tp
    MLP        x [B, S, D] · W [D, F/tp] -> gelu -> [B, S, F/tp] · W [F/tp, D] -> [B, S, D] +tp

Each needs one all_reduce forward and one backward, and computes what the whole module computes: the
forward is that of lib/single/models.py, and only the layers in it are others.

[Note: heads, not numbers]
Attention may be cut only between heads: a softmax belongs to one head. If the heads cannot be
shared equally, its numbers often can; cut there, ranks compute softmaxes over parts of two heads.
All shapes fit, the loss falls, and it ends too high. So the heads are what is asked to divide.

[Note: fewer keys than ranks]
With grouped-query attention there may be fewer keys and values (G) than ranks. Then tp/G ranks share
each of them. All of these have its rows, and each has gradients only from its own heads, so backward
sums these rows over the ranks that share them.
"""  # noqa: E501

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.function import once_differentiable

from lib.parallel.tensor.dropout import SplitCore
from lib.parallel.tensor.linear import ColumnLinear, RowLinear
from lib.parallel.tensor.placements import SplitGroups
from lib.single.models import Attention, FeedForward, causal


class TensorParallelMLP(FeedForward):
    """A FeedForward of which each rank has a part of the hidden layer: [B, S, D] -> [B, S, D]."""

    def __init__(self, full: FeedForward, group=None):
        nn.Module.__init__(self)
        self.up, self.down = ColumnLinear(full.up, group), RowLinear(full.down, group)
        self.dropout = full.dropout


class TensorParallelAttention(Attention):
    """An Attention of which each rank has a part of the heads: [B, S, D] -> [B, S, D].

    `seed` is for dropout (see SplitCore). Raises ValueError where the ranks cannot share the heads
    equally, or with dropout an attention whose `core` is not `causal`.
    """

    def __init__(self, full: Attention, group=None, seed: int | None = None):
        nn.Module.__init__(self)
        self.head_size, self.rotary, self.dropout = full.head_size, full.rotary, full.dropout
        self.qkv = HeadsLinear(full, group)
        self.proj = RowLinear(full.proj, group)
        self.group_size = self.qkv.groups.shard_group_size
        self.core, self.position_ids = full.core, full.position_ids
        if full.dropout.p:
            if full.core is not causal:
                raise ValueError(
                    "Dropout on the probabilities of an attention can be split only inside "
                    "lib.single.models.causal. Put that back as its core, or set dropout to 0."
                )
            self.core = SplitCore(group, seed)


class HeadsLinear(ColumnLinear):
    """The column layer of an attention's q, k and v: x [B, S, D] -> [B, S, (H + 2·G)·K/tp]."""

    def __init__(self, full: Attention, group=None):
        rows = full.qkv.out_features // full.head_size // (full.group_size + 2)
        ranks = dist.get_world_size(group)
        self.groups = SplitGroups(ranks, rows, full.group_size, full.head_size)
        super().__init__(full.qkv, group)
        self.sharing = neighbours(group, self.groups.sharers) if self.groups.sharers > 1 else None

    def placement(self, full: nn.Linear) -> SplitGroups:
        """Return how the heads are split."""
        return self.groups

    def forward(self, x):
        weight, bias = self.weight, self.bias
        if self.sharing is not None:
            first = len(weight) - len(self.groups.shared(weight))
            weight = _SharedRows.apply(weight, first, self.sharing)
            bias = None if bias is None else _SharedRows.apply(bias, first, self.sharing)
        return self.product(x, weight, bias)


class _SharedRows(torch.autograd.Function):
    """Pass a weight on; backward sums the gradients of its last rows over those who have them."""

    @staticmethod
    def forward(ctx, weight, first, group):
        ctx.first, ctx.group = first, group
        return weight.view_as(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        gradient = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(gradient[ctx.first :], group=ctx.group)
        return gradient, None, None


_neighbours: dict = {}


def neighbours(group, count: int):
    """Return the group of `count` neighbouring ranks of `group` to which this rank belongs.

    Made once, and again after a failure has closed it. All ranks of `group` have to call it.
    """
    ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
    first = dist.get_rank(group) // count * count
    members = tuple(ranks[first : first + count])
    made = _neighbours.get(members)
    if made is None or getattr(made, "closed", ""):
        made = dist.new_group(list(members), use_local_synchronization=True, group_desc="kv")
        _neighbours[members] = made
    return made
