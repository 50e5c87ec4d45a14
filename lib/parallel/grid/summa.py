"""SUMMA: three products of matrices that lie in tiles on a square of ranks.

    product      C = A·B    A [M/row, K/column] · B [K/row, N/column] -> C [M/row, N/column]
    product_abt  C = A·Bᵀ   A [M/row, N/column] · B [K/row, N/column] -> C [M/row, K/column]
    product_atb  C = Aᵀ·B   A [M/row, K/column] · B [M/row, N/column] -> C [K/row, N/column]

Each takes q steps. In step l of A·B, the ranks of column l broadcast their tiles of A along their
rows, and the ranks of row l their tiles of B along their columns; each rank multiplies what it got
and adds it to its tile of C. In the other two one factor stays where it is, and the tiles of C are
summed at the rank that keeps them: a pending sum `+column` or `+row` becomes a reduce. The three
are each other's gradients: if C = A·B, then dA = dC·Bᵀ and dB = Aᵀ·dC.

[Note: double buffering]
With `overlap` the tiles of step l + 1 travel while step l is multiplied, and the sums of step l
while step l + 1 is. A rank then holds tiles of two steps and two sums; without it, one of each.

`row` and `column` are this rank's Axis of the mesh: `row` holds the ranks that differ along the
axis row. Source: van de Geijn and Watts 1997, Concurrency: Practice and Experience 9(4), 255-274.
"""

from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from lib.ranks.mesh import Axis


@torch.no_grad()
def product(a: Tensor, b: Tensor, row: Axis, column: Axis, overlap: bool = True) -> Tensor:
    """Return this rank's tile of A·B: 2q broadcasts, and no other communication."""
    total = None
    for a_panel, b_panel in _panels([(a, column), (b, row)], overlap):
        if total is None:
            total = a_panel @ b_panel
        else:
            total.addmm_(a_panel, b_panel)
    return total


@torch.no_grad()
def product_abt(a: Tensor, b: Tensor, row: Axis, column: Axis, overlap: bool = True) -> Tensor:
    """Return this rank's tile of A·Bᵀ: q broadcasts of B, and q reduces of C along the columns."""
    sums = _Sums(column, overlap)
    for (b_panel,) in _panels([(b, row)], overlap):
        sums.add(a @ b_panel.t())
    return sums.result()


@torch.no_grad()
def product_atb(a: Tensor, b: Tensor, row: Axis, column: Axis, overlap: bool = True) -> Tensor:
    """Return this rank's tile of Aᵀ·B: q broadcasts of A, and q reduces of C along the rows."""
    sums = _Sums(row, overlap)
    for (a_panel,) in _panels([(a, column)], overlap):
        sums.add(a_panel.t() @ b)
    return sums.result()


def _panels(sources: Sequence[tuple[Tensor, Axis]], overlap: bool) -> Iterator[list[Tensor]]:
    """Yield for each step the tiles that are broadcast in it, from rank `step` of each axis."""
    steps = sources[0][1].size
    tiles, works = _broadcast(sources, 0)
    for step in range(1, steps + 1):
        for work in works:
            work.wait()
        arrived, works = tiles, []
        if overlap and step < steps:
            tiles, works = _broadcast(sources, step)
        yield arrived
        if not overlap and step < steps:
            tiles, works = _broadcast(sources, step)


def _broadcast(sources, step: int) -> tuple[list[Tensor], list]:
    """Start the broadcasts of a step; the rank that sends uses its own tile."""
    tiles, works = [], []
    for own, axis in sources:
        tile = own if axis.rank == step else torch.empty_like(own)
        tiles.append(tile)
        works.append(dist.broadcast(tile, group_src=step, group=axis.group, async_op=True))
    return tiles, works


class _Sums:
    """Sums the partial results of step l at rank l of an axis, each while the next is computed."""

    def __init__(self, axis: Axis, overlap: bool):
        self.axis, self.overlap = axis, overlap
        self.step, self.work, self.tile = 0, None, None

    def add(self, partial: Tensor) -> None:
        """Start to sum the partial results of the next step."""
        self.wait()
        if self.step == self.axis.rank:
            self.tile = partial
        self.sent = partial  # kept until it has been sent
        self.work = dist.reduce(partial, group_dst=self.step, group=self.axis.group, async_op=True)
        self.step += 1
        if not self.overlap:
            self.wait()

    def wait(self) -> None:
        """Wait for the sum that is under way, if any."""
        if self.work is not None:
            self.work.wait()
        self.work = self.sent = None

    def result(self) -> Tensor:
        """Return the sum that this rank keeps, when all are over."""
        self.wait()
        return self.tile
