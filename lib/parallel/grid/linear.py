"""Linear layers on a square of ranks, and on several squares that share a batch: 2D and 2.5D.

    Linear2D    x [M/row, I/column]         · W [I/row, O/column] -> y [M/row, O/column]
    Linear25D   x [M/(depth·row), I/column] · W [I/row, O/column] -> y [M/(depth·row), O/column]
    gradients   dx as x; dW as W; in 2.5D dW +depth -> all_reduce over depth
    bias        [O/column], equal along row; its gradient is summed over all axes that split rows

W is nn.Linear's weight, transposed. Each product is SUMMA's (summa.py): forward x·W, backward
dW = xᵀ·dy and dx = dy·Wᵀ. A 2.5D grid is `depth` squares, each with all of W and a part of the
rows, so that only the gradients of W pass between the squares.

Sources: Xu et al. 2021, "Optimus" (arXiv 2104.05343); Wang et al. 2021, "Tesseract" (arXiv
2105.14500). Optimus keeps biases in one row of ranks and broadcasts them; here each row has them.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lib.parallel.grid import summa
from lib.parallel.grid.tiles import Tiled
from lib.predict.tensor.grids import STREAM
from lib.ranks.algorithms import exchange
from lib.ranks.mesh import Mesh


class Linear2D(Tiled):
    """A linear layer whose weight, inputs and outputs lie in tiles on a square of ranks.

    It is made from the whole layer, which must be equal on all ranks. x is this rank's tile, of any
    number of dims; the last one is split along `column`, the first along `row`. With `padded`
    outputs the layer has so many, and those that the whole layer lacks are -inf. Raises ValueError
    where a dim does not divide.
    """

    kind = "2d"

    def __init__(
        self, full: nn.Linear, mesh: Mesh, overlap: bool = True, padded: int | None = None
    ):
        super().__init__(mesh, self.kind)
        self.overlap, self.tied = overlap, False
        self.row, self.column = mesh["row"], mesh["column"]
        self.rows, self.depth = mesh[STREAM[self.kind].rows], None
        tall, wide = ("row",), ("column",)
        self.keep("weight", full.weight, tall, wide, transposed=True, padded=padded)
        self.keep("bias", full.bias, wide, padded=padded)
        self.missing = self.missing_outputs(self.column)

    def tile(self) -> Tensor:
        """Return this rank's tile of W, [I/row, O/column]."""
        return _Swapped.apply(self.weight, self.mesh).t() if self.tied else self.weight

    def tie(self, table: Tiled) -> None:
        """Use the embedding's table as the weight: the same parameter, in other tiles.

        The table lies as [V/row, D/column], and the layer needs [D/row, V/column]. So ranks (i, j)
        and (j, i) swap their tiles, forward and backward, and those with i = j send nothing.
        """
        self.weight, self.tiles["weight"], self.tied = table.weight, table.tiles["weight"], True

    def forward(self, x: Tensor) -> Tensor:
        y = _Product.apply(x.flatten(0, -2), self.tile(), self.bias, self)
        y = y.unflatten(0, x.shape[:-1])
        return y if self.missing is None else y.masked_fill(self.missing, float("-inf"))


class Linear25D(Linear2D):
    """A linear layer on several squares of ranks, each of which has a part of the rows."""

    kind = "2.5d"

    def __init__(
        self, full: nn.Linear, mesh: Mesh, overlap: bool = True, padded: int | None = None
    ):
        super().__init__(full, mesh, overlap, padded)
        self.depth = mesh["depth"]


class _Product(torch.autograd.Function):
    """y = x·W + bias on tiles, with both gradients."""

    @staticmethod
    def forward(ctx, x, w, bias, layer):
        x, w = x.contiguous(), w.contiguous()
        ctx.save_for_backward(x, w)
        ctx.layer = layer
        y = summa.product(x, w, layer.row, layer.column, layer.overlap)
        return y if bias is None else y.add_(bias)

    @staticmethod
    def backward(ctx, dy):
        (x, w), layer, dy = ctx.saved_tensors, ctx.layer, dy.contiguous()
        dx = dw = dbias = None
        places, sums = (layer.row, layer.column, layer.overlap), []
        if ctx.needs_input_grad[2]:
            dbias = dy.sum(0)
            sums.append(dist.all_reduce(dbias, group=layer.rows.group, async_op=True))
        if ctx.needs_input_grad[1]:
            dw = summa.product_atb(x, dy, *places)
            if layer.depth is not None:  # while dx is computed
                sums.append(dist.all_reduce(dw, group=layer.depth.group, async_op=True))
        if ctx.needs_input_grad[0]:
            dx = summa.product_abt(dy, w, *places)
        for work in sums:
            work.wait()
        return dx, dw, dbias, None


class _Swapped(torch.autograd.Function):
    """Swaps tiles over the diagonal of the square; the gradients are swapped back."""

    @staticmethod
    def forward(ctx, tile, mesh):
        ctx.mesh = mesh
        return _swap(tile, mesh)

    @staticmethod
    def backward(ctx, gradient):
        return _swap(gradient, ctx.mesh), None


def _swap(tile: Tensor, mesh: Mesh) -> Tensor:
    square = mesh["row", "column"]
    row, column = mesh["row"].rank, mesh["column"].rank
    if row == column:
        return tile.clone()
    partner = column * mesh["column"].size + row
    arrived = torch.empty_like(tile, memory_format=torch.contiguous_format)
    exchange({partner: tile.contiguous()}, {partner: arrived}, square.group, "swap tiles")
    return arrived
