"""Muon of matrices of which each rank has a part: whole for Newton-Schulz, in parts for all else.

    U [m/g, n], [m, n/g] or flat     momentum and update of the weights, number by number
    gather        all_gather -> U [m, n] on each rank -> NS -> this rank's part
    distributed   all_to_all -> U [m, n] at its owner -> NS -> all_to_all -> this rank's part

Newton-Schulz of a part is not a part of Newton-Schulz of the whole: each part would get singular
values near 1 by itself, and the whole then has √g and more. So the whole matrix must come together
somewhere. Its momentum need not: that stays in parts, as the weights do.

[Note: what travels]
Newton-Schulz begins by rounding to `ns_dtype`, bf16, and ends in it. So the parts travel rounded,
in 2 bytes a number, and nothing is lost that the plain Muon would keep.

[Note: owners]
With round robin over the four matrices of a layer on four ranks, the same rank always gets `up` or
`down`, which cost more than `proj`. "balanced" gives the costliest matrix to whom has least; with
few matrices for each rank some still wait. lib/predict/optimizers/muon.py has the formulas.

Source: Liu et al. 2025, "Muon is Scalable for LLM Training" (arXiv 2502.16982), section 2.3, for
the gather among ranks that share optimizer states.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from lib.parallel.optimizers.adafactor import known, lists_of_all
from lib.parallel.optimizers.places import Cut, Flat, Whole, gradient_of
from lib.parallel.optimizers.spans import flat_spans
from lib.predict.optimizers.muon import METHODS, equal_sizes, owners
from lib.single.optimizers import Muon
from lib.single.optimizers.muon import advance, descend, orthogonalized


@dataclass(frozen=True)
class Parts:
    """Holds the shape of a matrix, how many numbers each rank has of it, and the dim that is cut.

    Without a dim the parts are flat pieces, one behind the other.
    """

    shape: tuple[int, int]
    sizes: tuple[int, ...]
    dim: int | None = None

    def join(self, pieces: Sequence[Tensor]) -> Tensor:
        """Return the whole matrix from the numbers of all ranks, each flat."""
        if self.dim is None:
            return torch.cat(list(pieces)).view(self.shape)
        share = list(self.shape)
        share[self.dim] //= len(self.sizes)
        return torch.cat([piece.view(share) for piece in pieces], self.dim)

    def cut(self, matrix: Tensor) -> list[Tensor]:
        """Return the numbers of each rank out of the whole matrix, each flat."""
        if self.dim is None:
            return list(matrix.reshape(-1).split(self.sizes))
        return [part.reshape(-1) for part in matrix.chunk(len(self.sizes), self.dim)]


class ShardedMuon(Muon):
    """Muon whose parameters are this rank's parts of matrices; equal to the plain step.

    `places` has for each parameter its Whole, Cut or Flat (places.py). `method` is "distributed" or
    "gather", and `rule`, of the first, "balanced" or "round robin"; the options are those of Muon.
    All ranks of the group make it and step together. Raises ValueError for a parameter without a
    place, or whose whole is no matrix, and RuntimeError in a step for a sparse gradient.
    """

    def __init__(
        self, params, places: Mapping[Tensor, Whole], group=None, *,
        method: str = "distributed", rule: str = "balanced", **options,
    ):  # fmt: skip
        if method not in METHODS:
            raise ValueError(f"No method is called {method!r}. Choose {' or '.join(METHODS)}.")
        owners([], 1, rule)  # refuses other rules
        self.places, self.process_group = dict(places), group
        self.method, self.rule = method, rule
        super().__init__(params, **options)
        known(self, places)
        own = [parameter for one in self.param_groups for parameter in one["params"]]
        self.parts = _parts(own, self.places, group)

    def whole_shape(self, parameter: Tensor) -> Sequence[int]:
        """Return the shape of a whole parameter."""
        place = self.places.get(parameter)
        return parameter.shape if place is None else place.shape

    def lists(self, parameters: list[Tensor]) -> Iterator[list[Tensor]]:
        """Yield all parameters of one device and dtype of which some rank has a gradient."""
        yield from lists_of_all(self, parameters)

    def update(self, group: dict, parameters: list[Tensor]) -> None:
        """Update this rank's parts of these matrices."""
        updates = {p: advance(self.state[p], gradient_of(p), group) for p in parameters}
        split = [parameter for parameter in parameters if parameter in self.parts]
        dtype = group["ns_dtype"]
        pieces = [updates[p].reshape(-1).to(dtype or p.dtype) for p in split]
        exchange = self._gathered if self.method == "gather" else self._distributed
        directions = dict(zip(split, exchange([self.parts[p] for p in split], pieces, group)))
        for parameter in parameters:
            direction = directions.get(parameter)
            if direction is None:  # every rank has the whole matrix
                direction = orthogonalized(updates[parameter], group)
            direction = direction.view(parameter.shape)
            descend(parameter, direction, self.whole_shape(parameter), group)

    def _gathered(self, parts: list[Parts], pieces: list[Tensor], group: dict) -> Iterator[Tensor]:
        """Yield this rank's numbers of each result; the next matrix is gathered meanwhile."""
        rank = dist.get_rank(self.process_group)
        launch = lambda n: _gather(parts[n], pieces[n], self.process_group)
        arriving = launch(0) if parts else None
        for n, part in enumerate(parts):
            matrix = arriving()
            if n + 1 < len(parts):
                arriving = launch(n + 1)
            yield part.cut(orthogonalized(matrix, group))[rank]

    def _distributed(
        self, parts: list[Parts], pieces: list[Tensor], group: dict
    ) -> Iterator[Tensor]:
        """Yield this rank's numbers of each result, which the owner of the matrix has computed."""
        if not parts:
            return
        rank, ranks = dist.get_rank(self.process_group), dist.get_world_size(self.process_group)
        owner = owners([part.shape for part in parts], ranks, self.rule)
        owned = [[n for n, one in enumerate(owner) if one == r] for r in range(ranks)]
        mine = [parts[n] for n in owned[rank]]
        arrived = _swap(
            [[pieces[n] for n in numbers] for numbers in owned],
            [[part.sizes[source] for part in mine] for source in range(ranks)],
            self.process_group, pieces[0],
        )  # fmt: skip
        results = [
            part.cut(orthogonalized(part.join(of_part), group))
            for part, of_part in zip(mine, zip(*arrived))
        ]
        back = _swap(
            [[result[target] for result in results] for target in range(ranks)],
            [[parts[n].sizes[rank] for n in numbers] for numbers in owned],
            self.process_group, pieces[0],
        )  # fmt: skip
        by_number = {n: x for numbers, xs in zip(owned, back) for n, x in zip(numbers, xs)}
        yield from (by_number[n] for n in range(len(parts)))


def _parts(parameters: list[Tensor], places: Mapping[Tensor, Whole], group) -> dict:
    """Return the Parts of each parameter of which a rank has not all."""
    ranks = dist.get_world_size(group)
    spans = flat_spans(parameters, places, group)
    parts = {}
    for parameter in parameters:
        place = places[parameter]
        if isinstance(place, Flat):
            sizes = tuple(last - first for first, last in spans[parameter])
            parts[parameter] = Parts(place.shape, sizes)
        elif isinstance(place, Cut):
            sizes = tuple(equal_sizes(place.shape, ranks, place.dim))
            parts[parameter] = Parts(place.shape, sizes, place.dim)
    return parts


def _gather(part: Parts, piece: Tensor, group):
    """Launch the gather of a matrix; return a function that waits and gives it."""
    longest = max(part.sizes)
    filled = torch.cat([piece, piece.new_zeros(longest - piece.numel())])
    shards = piece.new_empty(len(part.sizes), longest)
    work = dist.all_gather_single(shards.view(-1), filled, group=group, async_op=True)

    def finish() -> Tensor:
        work.wait()
        return part.join([shard[:size] for shard, size in zip(shards, part.sizes)])

    return finish


def _swap(
    to_each: list[list[Tensor]], sizes: list[list[int]], group, like: Tensor
) -> list[list[Tensor]]:
    """Send lists of flat tensors to each rank; return those from each, whose sizes are known."""
    sent = torch.cat([like[:0], *(piece for pieces in to_each for piece in pieces)])
    counts = [sum(piece.numel() for piece in pieces) for pieces in to_each]
    expected = [sum(of_rank) for of_rank in sizes]
    arrived = like.new_empty(sum(expected))
    dist.all_to_all_single(arrived, sent, expected, counts, group=group)
    return [list(one.split(of_rank)) for one, of_rank in zip(arrived.split(expected), sizes)]
