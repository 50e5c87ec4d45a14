"""A layer norm whose features are split: ranks of an axis exchange two numbers for each token.

    x [M/rows, D/columns] · weight, bias [D/columns] -> y [M/rows, D/columns]
    mean and squared deviations of D/columns entries -> all_gather over columns -> those of D
    backward: two sums for each token +columns -> all_reduce over columns
    gradients of weight and bias [D/columns] +rows -> all_reduce over rows

`rows` and `columns` are the axes of the stream (lib/predict/tensor/grids.py). Weight and bias are
equal on all ranks that have the same columns; these ranks see other rows, so their gradients have
to be summed, or the copies drift apart without an error.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lib.parallel.grid.tiles import Tiled
from lib.predict.tensor.grids import STREAM
from lib.ranks.mesh import Mesh


class GridLayerNorm(Tiled):
    """A layer norm on tiles of the stream, made from the whole layer, equal on all ranks.

    Statistics are computed in float32 at least. The bias may be None. Raises ValueError where D
    does not divide.
    """

    def __init__(self, full: nn.LayerNorm, mesh: Mesh, kind: str):
        super().__init__(mesh, kind)
        side = STREAM[kind]
        self.rows, self.columns, self.eps = mesh[side.rows], mesh[side.columns], full.eps
        self.keep("weight", full.weight, (side.columns,))
        self.keep("bias", full.bias, (side.columns,))

    def forward(self, x: Tensor) -> Tensor:
        return _Norm.apply(x.flatten(0, -2), self.weight, self.bias, self).view_as(x)


class _Norm(torch.autograd.Function):
    """y = (x - mean) ÷ deviation · weight + bias, with statistics over all ranks of an axis."""

    @staticmethod
    def forward(ctx, x, weight, bias, layer):
        mean, inverse = _statistics(x, layer)
        ctx.layer, ctx.has_bias = layer, bias is not None
        ctx.save_for_backward(x, weight, mean, inverse)
        y = (x - mean) * inverse * weight
        return (y if bias is None else y + bias).to(x.dtype)

    @staticmethod
    def backward(ctx, dy):
        (x, weight, mean, inverse), layer = ctx.saved_tensors, ctx.layer
        dy = dy.to(mean.dtype)
        normal, entries = (x - mean) * inverse, x.shape[1] * layer.columns.size
        sloped = dy * weight
        sums = torch.stack([sloped.sum(1), (sloped * normal).sum(1)])  # of each token +columns
        over_columns = dist.all_reduce(sums, group=layer.columns.group, async_op=True)
        both = torch.stack([(dy * normal).sum(0), dy.sum(0)])  # of weight and bias +rows
        over_rows = dist.all_reduce(both, group=layer.rows.group, async_op=True)
        over_columns.wait()
        first, second = sums.unsqueeze(-1) / entries
        dx = inverse * (sloped - first - normal * second)
        over_rows.wait()
        of_weight, of_bias = both.to(weight.dtype)
        return dx.to(x.dtype), of_weight, of_bias if ctx.has_bias else None, None


def _statistics(x: Tensor, layer: GridLayerNorm) -> tuple[Tensor, Tensor]:
    """Return each token's mean and 1 ÷ deviation over all columns, from those of each rank's."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    mean = wide.mean(1)
    own = torch.stack([mean, (wide - mean.unsqueeze(1)).square().sum(1)])
    all_ranks = own.new_empty(layer.columns.size, *own.shape)
    dist.all_gather_single(all_ranks.view(-1), own.view(-1), group=layer.columns.group)
    means, squares = all_ranks.unbind(1)
    mean = means.mean(0)
    # Squares about a rank's own mean grow by entries · (own mean - mean)² about the common one.
    squares = squares.sum(0) + x.shape[1] * (means - mean).square().sum(0)
    variance = squares / (x.shape[1] * layer.columns.size)
    return mean.unsqueeze(1), (variance + layer.eps).rsqrt().unsqueeze(1)
