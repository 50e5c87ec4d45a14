"""Linear layers on a cube of ranks, each of which multiplies one of q³ blocks of the product.

    x [M/(x·y), I/z]  -> all_gather over y -> [M/x, I/z]
    W [I/z, O/(y·x)]  -> all_gather over x -> [I/z, O/y]
    product [M/x, O/y] +z -> reduce_scatter over z -> y [M/(x·z), O/y]
    gradients   dy [M/(x·z), O/y] -> all_gather over z -> [M/x, O/y]
                dx [M/x, I/z] +y -> reduce_scatter over y; dW [I/z, O/y] +x -> reduce_scatter over x
    bias        [O/y], equal along x and z; its gradient is summed over them

Rows that two axes split are cut along x first. With features="y" the axes y and z change places, so
two layers in a row give back the layout that the first one took.

[Note: gathered twice]
Backward needs x and W gathered. Kept from forward, they take 1/q² of the whole and not 1/q³, and a
step has six collectives. Gathered again, they need two more, and the memory is that of the tiles.

Source: Bian et al. 2021 (arXiv 2105.14450), after Agarwal et al. 1995, IBM J. Res. Dev. 39(5). The
code of Colossal-AI keeps what was gathered (hpcaitech/ColossalAI@02c4da3,
colossalai/nn/layer/parallel_3d/_operation.py).
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lib.parallel.grid.tiles import Tiled
from lib.ranks.mesh import Axis, Mesh


class Linear3D(Tiled):
    """A linear layer whose weight, inputs and outputs are shared by all ranks of a cube.

    It is made from the whole layer, which must be equal on all ranks. x is this rank's tile, of any
    number of dims; its last one is split along the axis `features`, "z" or "y". With
    `keep_gathered` backward does not gather x and W again (see the note above). With `padded`
    outputs the layer has so many, and those that the whole layer lacks are -inf. Raises ValueError
    where a dim does not divide.
    """

    def __init__(
        self, full: nn.Linear, mesh: Mesh, features: str = "z", keep_gathered: bool = False,
        padded: int | None = None,
    ):  # fmt: skip
        super().__init__(mesh, "3d")
        if features not in ("y", "z"):
            raise ValueError(f"The features of x are split along 'y' or 'z', not {features!r}.")
        outputs = "y" if features == "z" else "z"
        self.keep_gathered = keep_gathered
        self.features, self.outputs, self.copies = mesh[features], mesh[outputs], mesh["x"]
        self.rows = mesh["x", features]  # the ranks that have other rows of the same outputs
        self.keep("weight", full.weight, (outputs, "x"), (features,), padded=padded)
        self.keep("bias", full.bias, (outputs,), padded=padded)
        self.missing = self.missing_outputs(self.outputs)

    def tie(self, table: Tiled) -> None:
        """Use the embedding's table as the weight; its tiles lie as the layer needs them."""
        self.weight, self.tiles["weight"] = table.weight, table.tiles["weight"]

    def forward(self, x: Tensor) -> Tensor:
        y = _Product.apply(x.flatten(0, -2), self.weight, self.bias, self)
        y = y.unflatten(0, x.shape[:-1])  # as many rows come along one axis as go along the other
        return y if self.missing is None else y.masked_fill(self.missing, float("-inf"))


class _Product(torch.autograd.Function):
    """y = x·Wᵀ + bias on tiles, with both gradients; the weight is nn.Linear's, [O, I]."""

    @staticmethod
    def forward(ctx, x, w, bias, layer):
        ctx.layer, ctx.shapes = layer, (x.shape, w.shape)
        full_x, full_w = _gathered(layer, x, w)
        kept = (full_x, full_w) if layer.keep_gathered else (x, w)
        ctx.save_for_backward(*kept)
        y = _ReduceScatter(full_x @ full_w.t(), layer.features).wait()
        return y if bias is None else y.add_(bias)

    @staticmethod
    def backward(ctx, dy):
        layer, saved = ctx.layer, ctx.saved_tensors
        dx = dw = dbias = work = None
        gather = _AllGather(dy, layer.features)
        if ctx.needs_input_grad[2]:
            dbias = dy.sum(0)
            work = dist.all_reduce(dbias, group=layer.rows.group, async_op=True)
        x, w = saved if layer.keep_gathered else _gathered(layer, *saved)
        full_dy = gather.wait()
        if ctx.needs_input_grad[1]:
            dw = _ReduceScatter(full_dy.t() @ x, layer.copies)  # while dx is computed
        if ctx.needs_input_grad[0]:
            dx = _ReduceScatter(full_dy @ w, layer.outputs).wait()
        dw = dw and dw.wait()
        if work is not None:
            work.wait()
        return dx, dw, dbias, None


def _gathered(layer: Linear3D, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Gather x over the axis of the outputs and W over x, both at once."""
    gathers = _AllGather(x, layer.outputs), _AllGather(w, layer.copies)
    return gathers[0].wait(), gathers[1].wait()


class _AllGather:
    """Joins the tiles of an axis along dim 0, on every rank; `wait` gives the result."""

    def __init__(self, tile: Tensor, axis: Axis):
        self.tile = tile.contiguous()
        self.full = tile.new_empty(axis.size * tile.shape[0], *tile.shape[1:])
        self.work = dist.all_gather_single(
            self.full, self.tile, group=axis.group, async_op=True
        )  # fmt: skip

    def wait(self) -> Tensor:
        """Wait, and return the joined tensor."""
        self.work.wait()
        return self.full


class _ReduceScatter:
    """Sums partial results over an axis; each rank keeps its part of dim 0, which `wait` gives."""

    def __init__(self, partial: Tensor, axis: Axis):
        self.partial = partial.contiguous()
        self.tile = partial.new_empty(partial.shape[0] // axis.size, *partial.shape[1:])
        self.work = dist.reduce_scatter_single(
            self.tile, self.partial, group=axis.group, async_op=True
        )  # fmt: skip

    def wait(self) -> Tensor:
        """Wait, and return this rank's part."""
        self.work.wait()
        return self.tile
