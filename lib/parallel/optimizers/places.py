"""Which part of a parameter a rank has, and numbers of the whole from those of the parts.

    Whole   W [N, M] on every rank          Cut(dim)   W [N/g, M] or [N, M/g]
    Flat    elements first to last (excluded) of W, laid end to end

An optimizer such as Adam treats each weight by itself, and may be given any part of a parameter.
One that looks at rows and columns needs their sums, or their maxima, over the whole parameter:

    W [N/g, M]   each row is whole here; each column is +g, so M numbers are combined
    W [N, M/g]   each column is whole here; each row is +g, so N numbers are combined
    flat         a piece begins and ends within a row, which two ranks or more share; so are the
                 columns: N + M numbers are combined

A flat piece is worked on as the rows that it touches, with zeros where other ranks have the
weights: zeros change no sum of squares, and no maximum.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Whole:
    """Every rank has the whole parameter, and the same gradient."""

    shape: tuple[int, ...]

    def pending(self, over: Sequence[int]) -> bool:
        """True if what is summed over these dims here is only a part of the whole's sum."""
        return False

    def matrix(self, piece: Tensor) -> Tensor:
        """Return what this rank has as a tensor with the dims of the whole."""
        return piece

    def piece(self, matrix: Tensor) -> Tensor:
        """Return what `matrix` gave, as it lies on this rank."""
        return matrix

    def spread(self, numbers: Tensor, over: Sequence[int]) -> Tensor:
        """Lay numbers of this rank's rows out among those of all rows, where ranks share some."""
        return numbers

    def own(self, numbers: Tensor, over: Sequence[int]) -> Tensor:
        """Return the numbers of this rank's rows from those of all rows."""
        return numbers


@dataclass(frozen=True)
class Cut(Whole):
    """Each rank has a part of the entries of a dim: all those of a row, or of a column."""

    dim: int = 0

    def pending(self, over: Sequence[int]) -> bool:
        """True if the cut dim is among those that are summed over."""
        return self.dim in over


@dataclass(frozen=True)
class Flat(Whole):
    """Each rank has the elements `first` to `last` (excluded) of the parameter laid end to end.

    Raises ValueError for more than two dims, which nothing here needs.
    """

    first: int = 0
    last: int = 0

    def __post_init__(self):
        if len(self.shape) > 2:
            raise ValueError(
                f"A flat piece of a parameter of the shape {list(self.shape)} has no rows. Shard "
                "this parameter along a dim, or keep it whole."
            )

    @property
    def rows(self) -> tuple[int, int]:
        """Return which rows the piece touches, at least one: (first, behind the last)."""
        n, m = self.shape
        begin = min(self.first // m, n - 1)
        return begin, max(-(-self.last // m), begin + 1)

    def pending(self, over: Sequence[int]) -> bool:
        """True: a row may go on at another rank, and so do the columns."""
        return True

    def matrix(self, piece: Tensor) -> Tensor:
        """Return the rows that the piece touches, with zeros where others have the weights."""
        if len(self.shape) < 2:
            return piece
        (begin, end), m = self.rows, self.shape[1]
        full = piece.new_zeros((end - begin) * m)
        full[self._inside()] = piece
        return full.view(end - begin, m)

    def piece(self, matrix: Tensor) -> Tensor:
        """Return the piece out of the rows that it touches."""
        return matrix.reshape(-1)[self._inside()] if len(self.shape) == 2 else matrix

    def spread(self, numbers: Tensor, over: Sequence[int]) -> Tensor:
        """Lay numbers of these rows, [rows, 1], out among zeros for all rows, [N, 1]."""
        if tuple(over) != (1,):
            return numbers
        full = numbers.new_zeros(self.shape[0], 1)
        full[slice(*self.rows)] = numbers
        return full

    def own(self, numbers: Tensor, over: Sequence[int]) -> Tensor:
        """Return the numbers of these rows from those of all rows."""
        return numbers[slice(*self.rows)] if tuple(over) == (1,) else numbers

    def _inside(self) -> slice:
        start = self.first - self.rows[0] * self.shape[1]
        start = start if self.last > self.first else 0
        return slice(start, start + self.last - self.first)


def combined(
    entries: list[tuple[Whole, Tensor, tuple[int, ...]]], group, op=dist.ReduceOp.SUM
) -> list[Tensor]:
    """Return numbers over whole parameters, from those of this rank's parts: one all_reduce.

    An entry is a parameter's place, its numbers here, and the dims that they were taken over. What
    is complete already is not sent, and where nothing is pending there is no all_reduce. The
    numbers travel in 4 bytes at least.
    """
    sent = [place.spread(numbers, over) for place, numbers, over in entries if place.pending(over)]
    if not sent:
        return [numbers for _, numbers, _ in entries]
    buffer = torch.cat([numbers.reshape(-1) for numbers in sent])
    buffer = buffer.to(torch.promote_types(buffer.dtype, torch.float32))
    dist.all_reduce(buffer, op, group=group)
    parts = iter(buffer.split([numbers.numel() for numbers in sent]))
    shapes = iter([numbers.shape for numbers in sent])
    return [
        place.own(next(parts).view(next(shapes)), over) if place.pending(over) else numbers
        for place, numbers, over in entries
    ]


def trained_somewhere(parameters: list[Tensor], places: Mapping, group) -> list[Tensor]:
    """Return the parameters of which some rank of the group has a gradient, the same on all.

    A rank whose piece is empty, or whose part of a gradient did not arrive, has none, and still
    takes part in what is combined. One all_reduce of a byte for each parameter that is sharded.
    """
    shared = [parameter for parameter in parameters if type(places[parameter]) is not Whole]
    present = {parameter: parameter.grad is not None for parameter in parameters}
    if shared:
        flags = torch.tensor([present[parameter] for parameter in shared], dtype=torch.uint8)
        flags = flags.to(shared[0].device)
        dist.all_reduce(flags, dist.ReduceOp.MAX, group=group)
        present |= zip(shared, map(bool, flags.tolist()))
    return [parameter for parameter in parameters if present[parameter]]


def gradient_of(parameter: Tensor) -> Tensor:
    """Return the gradient of a rank's piece; zeros where none has arrived here."""
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def places_of_fsdp(fsdp) -> dict[Tensor, Whole]:
    """Return the place of each of the parameters of lib.parallel.sharded's FSDP: flat pieces."""
    return {
        parameter: Flat(shape, *flat.layout.piece(n, flat.rank))
        for flat in fsdp.flats()
        for n, (parameter, shape) in enumerate(zip(flat.parameters, flat.layout.shapes))
    }


def places_of_tensor_parallel(model, placements: Mapping) -> dict[Tensor, Whole]:
    """Return the place of each parameter of a tensor-parallel model.

    `placements` is what lib.parallel.tensor's `placements(model)` returns. Raises ValueError where
    some rows of a parameter are on several ranks, which would be counted more than once.
    """
    return {
        parameter: _place_of(name, parameter, placements[name])
        for name, parameter in model.named_parameters()
    }


def _place_of(name: str, parameter: Tensor, placement) -> Whole:
    shape = list(parameter.shape)
    by_heads = hasattr(placement, "groups")
    if not by_heads and not hasattr(placement, "dim"):
        return Whole(tuple(shape))
    if placement.sharers > 1:
        raise ValueError(
            f"{placement.sharers} ranks have the same keys and values of {name}, and sums over all "
            "ranks would count them that often. Use no more ranks than heads of keys."
        )
    dim = getattr(placement, "dim", 0)
    shape[dim] = getattr(placement, "length", shape[dim] * placement.ranks)
    return Cut(tuple(shape), dim)
