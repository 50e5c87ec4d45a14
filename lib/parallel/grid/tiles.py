"""Tiles: how a tensor of the plain model is cut along the axes of a grid, and joined again.

    W [K, N] -> cut -> [K/row, N/column] -> join -> [K, N]

A dim that several axes split is cut along the first of them, and each piece along the next.
"""

from math import prod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lib.predict.arguments import equal_share
from lib.predict.tensor.grids import KINDS, known
from lib.ranks import collectives
from lib.ranks.mesh import Axis, Mesh


class Tile(NamedTuple):
    """Says how a parameter of the plain model is cut: the axes that split each of its dims.

    With `transposed` the dims are those of the transposed matrix. Dim 0 of the plain parameter has
    `length` entries, which zeros fill up to `padded`.
    """

    dims: tuple[tuple[str, ...], ...]
    length: int
    padded: int
    transposed: bool = False

    def cut(self, full: Tensor, mesh: Mesh) -> Tensor:
        """Return this rank's tile of a tensor that every rank has; it sends nothing.

        Raises ValueError where a dim cannot be cut equally.
        """
        rest = full.new_zeros(self.padded - self.length, *full.shape[1:])
        tile = torch.cat([full.detach(), rest])
        tile = tile.t() if self.transposed else tile
        for dim, axes in enumerate(self.dims):
            for name in axes:
                axis, entries = mesh[name], tile.shape[dim]
                ranks = f"the {{}} ranks along the axis {name}"
                length = equal_share(entries, axis.size, f"Dim {dim} has {{}} entries", ranks)
                tile = tile.narrow(dim, axis.rank * length, length)
        return tile.clone(memory_format=torch.contiguous_format)

    def whole(self, tile: Tensor, mesh: Mesh) -> list[int]:
        """Return the shape of the plain parameter of which `tile` is this rank's part."""
        sizes = [entries * prod(mesh[axis].size for axis in axes)
                 for entries, axes in zip(tile.shape, self.dims)]  # fmt: skip
        sizes = sizes[::-1] if self.transposed else sizes
        return [self.length, *sizes[1:]]

    @torch.no_grad()
    def join(self, tile: Tensor, mesh: Mesh) -> Tensor:
        """Gather the tiles of all ranks: every rank gets the tensor of the plain model."""
        for dim, axes in enumerate(self.dims):
            for name in reversed(axes):
                tile = collectives.join(tile, dim, mesh[name].group)
        tile = tile.t() if self.transposed else tile
        return tile[: self.length].contiguous()


class Tiled(nn.Module):
    """The base of all modules on a grid: `tiles` says how each of its own parameters is cut."""

    def __init__(self, mesh: Mesh, kind: str):
        super().__init__()
        check_axes(mesh, kind)
        self.mesh, self.kind = mesh, kind
        self.tiles: dict[str, Tile] = {}

    def keep(self, name: str, full: Tensor | None, *dims, transposed=False, padded=None) -> None:
        """Keep this rank's tile of `full` as the parameter `name`; None where there is none."""
        if full is None:
            self.register_parameter(name, None)
            return
        length = full.shape[0]
        tile = self.tiles[name] = Tile(dims, length, padded or length, transposed)
        self.register_parameter(name, nn.Parameter(tile.cut(full, self.mesh), full.requires_grad))

    def missing_outputs(self, columns: Axis) -> Tensor | None:
        """Mark those of this rank's outputs that are padding; None where no rank has any."""
        tile, device = self.tiles["weight"], self.weight.device
        if tile.padded == tile.length:
            return None
        outputs = torch.arange(tile.padded, device=device).chunk(columns.size)[columns.rank]
        return outputs >= tile.length


def check_axes(mesh: Mesh, kind: str) -> None:
    """Raise ValueError unless the mesh has the axes of this kind of grid, in their order."""
    names = KINDS[known(kind)]
    if tuple(name for name in mesh.axes if name in names) != names:
        example = ", ".join(f"{name}=2" for name in names)
        raise ValueError(
            f"A {kind} grid needs the axes {', '.join(names)} in this order, and this mesh has "
            f"{', '.join(mesh.axes)}. Make it with mesh({example})."
        )
    sides = {mesh.axes[name] for name in names if name != "depth"}
    if len(sides) > 1:
        raise ValueError(
            f"This mesh is {mesh!r}, but the axes {', '.join(n for n in names if n != 'depth')} of "
            f"a {kind} grid must be equally long. Choose equal sizes for them."
        )


def samples_each(batch: int, axes: tuple[str, ...], mesh: Mesh) -> int:
    """Return how many samples each rank along some axes gets: batch ÷ their ranks.

    Raises ValueError where these do not divide the batch.
    """
    ranks = f"the {{}} ranks along {' and '.join(axes)}"
    advice = f"Choose a batch that {mesh[axes].size} divides."
    return equal_share(
        batch, mesh[axes].size, "The batch has {} samples", ranks, advice=advice
    )  # fmt: skip


def share(full: Tensor, axes: tuple[str, ...], mesh: Mesh) -> Tensor:
    """Return this rank's samples of a batch that every rank has: [B, ...] -> [B/axes, ...]."""
    return full.split(samples_each(full.shape[0], axes, mesh))[mesh[axes].rank]
