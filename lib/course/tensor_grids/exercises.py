"""The exercises of chapter 5: predict, repair and write."""

from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist

from lib.course.checks.arguments import name_of
from lib.course.checks.numbers import Numbers
from lib.course.checks.on_ranks import Exercise
from lib.course.checks.verdict import Verdict
from lib.predict.tensor.grid_traffic import linear_moves
from lib.predict.tensor.grids import RankGrid
from lib.ranks.mesh import mesh

ROWS, INPUTS, OUTPUTS = 8_192, 12_288, 49_152  # tokens, width and hidden layer


def _forward(grid: RankGrid) -> float:
    """Return the MB that a rank sends in forward of the layer, with 2 bytes a number."""
    moves = linear_moves(grid, ROWS, INPUTS, OUTPUTS, bias=False, itemsize=2)
    return sum(move.mean_sent for move in moves.forward) / 1e6


predict = Numbers(
    name="predict",
    task="Put a number in place of each None.",
    answers={
        "square": round(_forward(RankGrid("2d", 4)), 1),
        "cube": round(_forward(RankGrid("3d", 4)), 1),
    },
    kinds={"square": "sent MB", "cube": "sent MB"},
    hints=(
        "On 4×4 ranks a tile of x has 8,192/4 · 12,288/4 numbers, and one of W 12,288/4 · "
        "49,152/4. How many broadcasts of each does a rank take part in?",
        "There are four of each, one from each rank. In a ring all ranks but the last pass the "
        "tile on, and each rank is the last once.",
        "On the cube each rank keeps 1/64 of x, of W and of y. It gathers x from 4 ranks and sends "
        "three times its 1/64; the same holds for W, and for y in the reduce_scatter.",
    ),
)


# --- write


def _cut(full, ranks: int) -> list:
    """Return the tiles of a matrix on a square, by rank."""
    side = round(ranks**0.5)
    rows = [part.chunk(side, 1) for part in full.chunk(side)]
    return [rows[rank // side][rank % side].contiguous() for rank in range(ranks)]


def _joined(tiles: list):
    side = round(len(tiles) ** 0.5)
    return torch.cat([torch.cat(tiles[n : n + side], 1) for n in range(0, len(tiles), side)])


def _tiles(ranks: int, first: tuple[int, int], second: tuple[int, int]) -> list[tuple]:
    """Return each rank's tiles of two matrices, whose tiles have these shapes."""
    draw, side = torch.Generator("cpu").manual_seed(first[1]), round(ranks**0.5)
    make = lambda rows, columns: torch.randn(
        rows * side, columns * side, generator=draw, device="cpu", dtype=torch.float64
    )
    return list(zip(_cut(make(*first), ranks), _cut(make(*second), ranks)))


def _product_inputs(ranks: int, size: int):
    """Return each rank's tiles of dy and of W."""
    return _tiles(ranks, (2 * size, 3 * size), (size, 3 * size))


def _product_reference(inputs):
    dy, w = (_joined(list(tiles)) for tiles in zip(*inputs))
    return _cut(dy @ w.T, len(inputs))


def _on_a_square(attempt, *tiles):
    """Call the attempt with this rank's tiles and its two axes."""
    side = round(dist.get_world_size() ** 0.5)
    here = mesh(row=side, column=side)
    return attempt(*tiles, here["row"], here["column"])


class _Product(Exercise):
    """Also counts the collectives."""

    def check(self, attempt: Callable, world) -> Verdict:
        """Run `attempt` on a square of all ranks of `world`, and return the verdict."""
        run = partial(_on_a_square, attempt)
        run.__name__ = name_of(attempt)
        return super().check(run, world)

    def _scored(self, ledger, world, inputs) -> Verdict:
        rows = [row.op for row in ledger.where(rank=0, lane="comm")]
        side = round(world.size**0.5)
        wanted = ["broadcast", "reduce"] * side
        if sorted(rows) == sorted(wanted):
            return Verdict(True, f"Solved with {side} broadcasts and {side} reduces.")
        return self._not_yet(
            f"The tiles are right, but rank 0 launched {', '.join(rows)}. In each of {side} steps "
            "one broadcast of W and one reduce of dx are enough."
        )


write = _Product(
    name="write",
    task="Fill in the body of `my_product`: return this rank's tile of dx.",
    inputs=_product_inputs,
    reference=_product_reference,
    sizes=(1, 5),
    words="K = {} on each rank",
    hints=(
        "Column l of dx needs row l of W's tiles. In step l, who has these tiles, and along which "
        "axis must they travel so that every rank has one?",
        "In step l the ranks of row l broadcast their tiles of W along their columns: the group is "
        "row.group, and group_src=l. Then dy @ panel.T is a part of a tile of dx: over which axis "
        "lie the other parts?",
        "The parts differ along the columns of dy, so they are added over column.group. Only the "
        "rank of column l keeps the sum: dist.reduce(part, group=column.group, group_dst=l).",
    ),
)


# --- repair


def _weight_inputs(ranks: int, size: int):
    """Return each rank's tiles of x and of dy."""
    return _tiles(ranks, (2 * size, size), (2 * size, 3 * size))


def _weight_reference(inputs):
    x, dy = (_joined(list(tiles)) for tiles in zip(*inputs))
    return _cut(x.T @ dy, len(inputs))


class _Repair(_Product):
    """Any collectives will do."""

    def _scored(self, ledger, world, inputs) -> Verdict:
        return Verdict(True, f"Solved on {world.size} ranks, for {len(self.sizes)} sizes.")


repair = _Repair(
    name="repair",
    task="Repair `weight_gradient`: return this rank's tile of dW.",
    inputs=_weight_inputs,
    reference=_weight_reference,
    sizes=(1, 4),
    words="K = {} on each rank",
    hints=(
        "Each rank has other rows of dy than the ranks of other rows, and other columns than its "
        "neighbours in the same row. Over which of the two is dW = xᵀ·dy a sum?",
        "dW is a sum over the tokens M. Its tile (l, j) is Σ over i of x's tile (i, l)ᵀ · dy's "
        "tile (i, j). Which ranks have made these parts in step l?",
        "The parts of tile (l, j) lie on the ranks of column j, which differ in their row. They "
        "are added over row.group, on the rank whose place along the axis row is `step`.",
    ),
)
