"""Tiles of a product on ranks, and the steps that move, multiply and add them.

[Note: steps are data] A, B and C are cut into tiles, and a split says which tiles a rank holds. The
same steps are carried out by tests, counted in bytes, and drawn (lib/draw/shards.py). A move copies
a tile to another rank, where a tile of C is added to the part of the sum that lies there.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from math import lcm, prod
from typing import NamedTuple

from lib.predict.arguments import equal_share, whole
from lib.predict.tensor.placement import LETTERS, Mesh, Split

Tile = tuple[str, int, int]  # matrix, row and column among the tiles of that matrix


class TileMove(NamedTuple):
    """A tile that is copied from one rank to another; a tile of C is added there."""

    tile: Tile
    source: int
    destination: int


class ProductStep(NamedTuple):
    """One step that all ranks take together; every move starts from what was held before it."""

    op: str  # a collective, "slice" or "multiply"
    axis: str  # of the mesh, for collectives
    matrix: str  # which one is moved or sliced
    text: str
    moves: tuple[TileMove, ...] = ()
    products: tuple[tuple[int, int, int, int], ...] = ()  # rank, i, k, j: C_ij += A_ik·B_kj
    freed: tuple[tuple[int, Tile], ...] = ()  # by which rank, when the step is over


@dataclass
class Product:
    """Holds a product's mesh, the tiles of M, K and N, the splits of A, B and C, and its steps."""

    mesh: Mesh
    sizes: dict[str, int]  # of M, K and N
    cuts: dict[str, int]  # into how many tiles each of them is cut
    start: dict[str, Split]  # of A and B, before the first step
    splits: dict[str, Split]  # of A, B and C, now; at the end those of the result
    steps: list[ProductStep] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)  # why tiles must move before they fit

    def tiles(self, matrix: str, split: Split, rank: int) -> set[Tile]:
        """Return the tiles of a matrix that a rank holds under a split."""
        rows, columns = (
            self.mesh.share(self.cuts[letter], axes, rank)
            for letter, axes in zip(LETTERS[matrix], split.dims)
        )
        return {(matrix, i, j) for i, j in product(rows, columns)}

    def numel(self, matrix: str) -> int:
        """Return the elements of one tile of a matrix."""
        return prod(self.sizes[letter] // self.cuts[letter] for letter in LETTERS[matrix])

    def sent(self, step: ProductStep) -> int:
        """Return the elements that all ranks together send in a step.

        Each tile that moves is counted, except in an all_reduce: there each rank sends what a ring
        sends, 2(n - 1)/n of the buffer.
        """
        moved = sum(self.numel(move.tile[0]) for move in step.moves)
        return 2 * moved // self.mesh.axes[step.axis] if step.op == "all_reduce" else moved

    def work(self) -> float:
        """Return the largest share of the product's multiplications that a rank carries out."""
        done = [rank for step in self.steps for rank, *_ in step.products]
        return max(map(done.count, self.mesh.ranks)) / prod(self.cuts.values())

    def states(self) -> Iterator[list[dict[Tile, frozenset | int]]]:
        """Give what each rank holds before the first step and after each one.

        A tile of A or B has the rank it came from, a tile of C the pieces of K added up in it.
        """
        held = [
            {tile: rank for name in self.start for tile in self.tiles(name, self.start[name], rank)}
            for rank in self.mesh.ranks
        ]
        yield held
        for step in self.steps:
            before, held = held, [dict(tiles) for tiles in held]
            for tile, source, destination in step.moves:
                value = before[source][tile]
                if tile[0] == "C":
                    value |= held[destination].get(tile, frozenset())
                held[destination][tile] = value
            for rank, i, k, j in step.products:
                held[rank]["C", i, j] = held[rank].get(("C", i, j), frozenset()) | {k}
            for rank, tile in step.freed:
                del held[rank][tile]
            yield held

    def held(self, matrix: str) -> int:
        """Return the elements of a matrix that a rank holds."""
        return self.numel(matrix) * len(self.tiles(matrix, self.splits[matrix], 0))

    def gather(self, matrix: str, dim: int) -> None:
        """Undo the innermost split of a dim: every rank along its axis gets the others' tiles."""
        dims = list(self.splits[matrix].dims)
        axis = dims[dim][-1]
        dims[dim] = dims[dim][:-1]
        before, after = self.splits[matrix], Split(*dims)
        moves = [
            TileMove(tile, next(r for r in self.mesh.group(rank, axis)
                            if tile in self.tiles(matrix, before, r)), rank)
            for rank in self.mesh.ranks
            for tile in sorted(self.tiles(matrix, after, rank) - self.tiles(matrix, before, rank))
        ]  # fmt: skip
        self.splits[matrix] = after
        text = f"all_gather {matrix} over {axis}: now {after.line(matrix)}"
        self.steps.append(ProductStep("all_gather", axis, matrix, text, tuple(moves)))

    def slice(self, matrix: str, after: Split) -> None:
        """Let each rank go on with its own part of what it holds."""
        before, self.splits[matrix] = self.splits[matrix], after
        freed = [
            (rank, tile)
            for rank in self.mesh.ranks
            for tile in sorted(self.tiles(matrix, before, rank) - self.tiles(matrix, after, rank))
        ]
        text = f"slice {matrix}: each rank uses its part, {after.line(matrix)}; nothing is sent"
        self.steps.append(ProductStep("slice", "", matrix, text, freed=tuple(freed)))

    def multiply(self) -> None:
        """Let each rank multiply all it holds of A by all it holds of B."""
        products = [
            (rank, i, k, j)
            for rank in self.mesh.ranks
            for _, i, k in sorted(self.tiles("A", self.splits["A"], rank))
            for _, row, j in sorted(self.tiles("B", self.splits["B"], rank))
            if row == k
        ]
        text = f"multiply: {self.splits['C'].line('C')}"
        self.steps.append(ProductStep("multiply", "", "C", text, products=tuple(products)))

    def reduce(self, op: str, after: Split) -> None:
        """Add up the parts of the sums in C along the axis where they are pending."""
        before, (axis,), mesh = self.splits["C"], self.splits["C"].pending, self.mesh
        self.splits["C"] = after
        moves, freed = [], []
        for rank in mesh.ranks:
            kept = self.tiles("C", after, rank)
            others = [r for r in mesh.group(rank, axis) if r != rank]
            moves += [TileMove(tile, r, rank) for tile in sorted(kept) for r in others]
            freed += [(rank, tile) for tile in sorted(self.tiles("C", before, rank) - kept)]
        text = f"{op} C over {axis}: the parts are added, now {after.line('C')}"
        self.steps.append(ProductStep(op, axis, "C", text, tuple(moves), freed=tuple(freed)))

    def broadcast(self, matrix: str, axis: str, k: int, text: str) -> tuple[TileMove, ...]:
        """Copy the tiles of piece k of K to all ranks along an axis."""
        moves = [
            TileMove(tile, root, rank)
            for root in self.mesh.ranks
            for tile in sorted(self.tiles(matrix, self.splits[matrix], root))
            if tile[1 + LETTERS[matrix].index("K")] == k
            for rank in self.mesh.group(root, axis)
            if rank != root
        ]
        step = ProductStep(
            "broadcast", axis, matrix, f"broadcast over {axis}: {text}", tuple(moves)
        )
        self.steps.append(step)
        return step.moves


def begin(mesh: Mesh, m: int, k: int, n: int, a: Split, b: Split, *more: Split) -> Product:
    """Cut M, K and N into the smallest tiles that each split needs, or refuse."""
    sizes = {"M": whole(m, "m"), "K": whole(k, "k"), "N": whole(n, "n")}
    splits = {"A": a, "B": b} | dict(zip("C", more))
    cuts = dict.fromkeys(sizes, 1)
    for matrix, split in splits.items():
        mesh.check(matrix, split)
        for dim, (letter, axes) in enumerate(zip(LETTERS[matrix], split.dims)):
            parts = mesh.parts(axes)
            sharers = "{} ranks along " + " and ".join(axes)
            what = f"Dim {dim} of {matrix} has {{}} entries"
            equal_share(sizes[letter], parts, what, sharers)
            cuts[letter] = lcm(cuts[letter], parts)
    return Product(mesh, sizes, cuts, {"A": a, "B": b}, {"A": a, "B": b})
