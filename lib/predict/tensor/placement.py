"""Meshes of ranks, and splits of matrices along their axes: what a sharding line says."""

from dataclasses import dataclass
from math import isqrt, prod

from lib.predict.arguments import whole

LETTERS = {"A": "MK", "B": "KN", "C": "MN"}  # the dims of each matrix
_CUBE = 3


class Split:
    """Says along which axes the two dims of a matrix are split, and where a sum is pending."""

    def __init__(self, rows=(), columns=(), pending=()):
        self.dims, self.pending = (_axes(rows), _axes(columns)), _axes(pending)

    def __eq__(self, other) -> bool:
        return (self.dims, self.pending) == (other.dims, other.pending)

    def done(self) -> "Split":
        """Return the same without the pending sum."""
        return Split(*self.dims)

    def line(self, matrix: str) -> str:
        """Return the sharding line of a matrix: "C [M, N/tp]"."""
        entries = [_entry(letter, axes) for letter, axes in zip(LETTERS[matrix], self.dims)]
        pending = "".join(f" +{axis}" for axis in self.pending)
        return f"{matrix} [{', '.join(entries)}]{pending}"


def _axes(given) -> tuple[str, ...]:
    """Return axes as a tuple, from None, a text with blanks between them, or a tuple."""
    return tuple(given.split()) if isinstance(given, str) else tuple(given or ())


def _entry(letter: str, axes: tuple[str, ...]) -> str:
    if not axes:
        return letter
    return f"{letter}/{axes[0]}" if len(axes) == 1 else f"{letter}/({'·'.join(axes)})"


@dataclass(frozen=True)
class Mesh:
    """Names the ranks along each axis; the last axis counts fastest, as in a DeviceMesh."""

    axes: dict[str, int]

    @classmethod
    def of_kind(cls, kind: str, ranks: int) -> "Mesh":
        """Return the mesh of a kind of product: a line, a square, stacked squares or a cube."""
        ranks, q = whole(ranks, "The number of ranks"), isqrt(ranks)
        edge = round(ranks ** (1 / _CUBE))
        depth = next((d for d in range(2, ranks) if isqrt(ranks // d) ** 2 * d == ranks), 0)
        side = isqrt(ranks // depth) if depth else 0
        meshes = {
            "column": {"tp": ranks},
            "row": {"tp": ranks},
            "2d": {"row": q, "column": q},
            "2.5d": {"depth": depth, "row": side, "column": side},
            "3d": {"x": edge, "y": edge, "z": edge},
        }
        if kind not in meshes:
            raise ValueError(
                f"No product is called {kind!r}. Choose one of {', '.join(map(repr, meshes))}."
            )
        mesh = cls(meshes[kind])
        if len(mesh.ranks) != ranks:
            shapes = {"2d": "q·q", "2.5d": "d·q·q with d of at least 2", "3d": "q·q·q"}
            raise ValueError(
                f"{ranks} ranks are no grid for {kind}: it needs {shapes[kind]} ranks, such as "
                f"{4 if kind == '2d' else 8}."
            )
        return mesh

    @property
    def ranks(self) -> range:
        """Return all ranks."""
        return range(prod(self.axes.values()))

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return the place of a rank along each axis."""
        places = {}
        for axis, size in reversed(self.axes.items()):
            rank, places[axis] = divmod(rank, size)
        return {axis: places[axis] for axis in self.axes}

    def group(self, rank: int, axis: str) -> list[int]:
        """Return the ranks that differ from this one along an axis only, with itself."""
        here = self.coordinates(rank)
        same = {name: place for name, place in here.items() if name != axis}
        return [r for r in self.ranks if same.items() <= self.coordinates(r).items()]

    def parts(self, axes: tuple[str, ...]) -> int:
        """Return into how many parts these axes split a dim."""
        return prod(self.axes[axis] for axis in axes)

    def share(self, count: int, axes: tuple[str, ...], rank: int) -> range:
        """Return which of `count` tiles of a dim a rank holds where these axes split it."""
        part, here = 0, self.coordinates(rank)
        for axis in axes:
            part = part * self.axes[axis] + here[axis]
        each = count // self.parts(axes)
        return range(part * each, (part + 1) * each)

    def check(self, matrix: str, split: Split) -> None:
        """Raise ValueError where a split names an axis twice, or one that the mesh has not."""
        used = [axis for axes in split.dims for axis in axes]
        for axis in used:
            if axis not in self.axes:
                raise ValueError(
                    f"{matrix} is to be split along {axis!r}, and the mesh has only the axes "
                    f"{', '.join(self.axes)}."
                )
            if used.count(axis) > 1:
                raise ValueError(
                    f"Axis {axis} cannot split both dims of {matrix}: its ranks would hold the "
                    "tiles on the diagonal, and the tiles beside it would be nowhere. Split one "
                    "dim, or the other one along another axis."
                )
