"""8-bit Adam of parameters of which each rank has a part: the same step as on one device.

    m, v in codes [N/g], this rank's       maxima of cut blocks: all_reduce (MAX) over g

Adam treats each number by itself, but in 8 bits the numbers of a block share a maximum. A part that
begins in the middle of a block has other blocks than the whole: other maxima, other codes, and from
the next step on other weights. Where parts are whole blocks nothing is shared, and the plain
Adam8bit on parts is the same step. Here a block that lies on two ranks or more is still one block:
they find its maximum together, which takes 8 bytes for each cut, however large the model is.

[Note: columns]
Of W [N, M/g] each rank has a piece of every row. If M/g is a multiple of the block, these pieces
are whole blocks. Otherwise every row would have cut blocks, and the parameter is refused.

Source: Dettmers et al. 2021 (arXiv 2110.02861) for the method; that ranks share maxima is ours.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod

import torch
import torch.distributed as dist
from torch import Tensor

from lib.parallel.optimizers.adafactor import known, lists_of_all
from lib.parallel.optimizers.places import Cut, Flat, Whole, gradient_of
from lib.parallel.optimizers.spans import flat_spans
from lib.predict.optimizers.adam_8bit import cut_blocks
from lib.predict.optimizers.muon import equal_sizes
from lib.single.optimizers import Adam8bit
from lib.single.optimizers.adam_8bit import MOMENTS, adam_, first_state, update_flat
from lib.single.optimizers.code_maps import code_map
from lib.single.optimizers.listwise import counted


@dataclass(frozen=True)
class Blocks:
    """Describes the blocks of this rank's part: `numel` numbers of a whole, from `first` on.

    `cut` are the blocks of the whole parameter that lie on more than one rank, in order.
    """

    whole: int
    first: int
    numel: int
    block: int
    cut: Sequence[int] = ()

    def edges(self) -> list[tuple[int, slice, slice]]:
        """Return for each cut block that this rank touches its place in `cut`, numbers and block.

        The numbers are a slice of this rank's, and the block one of the blocks that it touches.
        """
        edges = []
        for place, number in enumerate(self.cut):
            begin, end = number * self.block - self.first, (number + 1) * self.block - self.first
            begin, end = max(begin, 0), min(end, self.numel)
            if begin < end:
                own = number - self.first // self.block
                edges.append((place, slice(begin, end), slice(own, own + 1)))
        return edges

    def inner(self) -> tuple[slice, slice]:
        """Return the numbers that are not in cut blocks, and their blocks."""
        begin, end = 0, self.numel
        first, last = 0, self.touched
        for _, numbers, _ in self.edges():
            if numbers.start == 0:
                begin, first = numbers.stop, 1
            else:
                end, last = numbers.start, last - 1
        return slice(begin, end), slice(first, last)

    @property
    def touched(self) -> int:
        """The number of blocks of which this rank has numbers."""
        if not self.numel:
            return 0
        return (self.first + self.numel - 1) // self.block - self.first // self.block + 1


class ShardedAdam8bit(Adam8bit):
    """Adam8bit whose parameters are this rank's parts of larger ones; equal to the plain step.

    `places` has for each parameter its Whole, Cut or Flat (places.py); the options and the state
    are those of Adam8bit, where a cut block has its maximum on every rank that has a part of it.
    All ranks of the group make it and step together. Raises ValueError for a parameter without a
    place, or whose columns are no whole blocks, and RuntimeError in a step for a sparse gradient.
    """

    def __init__(self, params, places: Mapping[Tensor, Whole], group=None, **options):
        super().__init__(params, **options)
        self.places, self.process_group = known(self, places), group
        own = [parameter for one in self.param_groups for parameter in one["params"]]
        spans = flat_spans(own, self.places, group)
        self.blocks = {
            parameter: blocks_of(self.places[parameter], spans.get(parameter), one, group)
            for one in self.param_groups
            for parameter in one["params"]
        }

    def lists(self, parameters: list[Tensor]) -> Iterator[list[Tensor]]:
        """Yield all parameters of one device and dtype of which some rank has a gradient."""
        yield from lists_of_all(self, parameters)

    def update(self, group: dict, parameters: list[Tensor]) -> None:
        """Update this rank's parts; maxima of cut blocks travel while the others are updated."""
        blocks = [self.blocks[parameter] for parameter in parameters]
        states = [self._state(p, b, group) for p, b in zip(parameters, blocks)]
        weights = [parameter.contiguous().view(-1) for parameter in parameters]
        gradients = [gradient_of(parameter).reshape(-1) for parameter in parameters]
        work = list(zip(weights, gradients, states, blocks, counted(states)))
        cut = [_Edges(*one, group) for one in work if one[3].cut]
        shared = _largest([edges.maxima for edges in cut], self.process_group)
        for weight, gradient, state, block, step in work:
            numbers, own = block.inner()
            if numbers.stop > numbers.start:
                views = {name: value[own if name.endswith("maxima") else numbers]
                         for name, value in state.items() if name != "step"}  # fmt: skip
                options = group | {"block": block.block}
                update_flat(weight[numbers], gradient[numbers], views, options, step)
        for edges, maxima in zip(cut, shared()):
            edges.encode(maxima)
        for parameter, weight in zip(parameters, weights):
            if weight.data_ptr() != parameter.data_ptr():
                parameter.copy_(weight.view_as(parameter))

    def _state(self, parameter: Tensor, blocks: Blocks, group: dict) -> dict:
        """Return the state of a part, which its first step makes."""
        state = self.state[parameter]
        if not state:
            state.update(first_state(blocks.numel, parameter.device, group, blocks.whole))
            for name in MOMENTS:
                if f"{name}_maxima" in state:
                    state[f"{name}_maxima"] = parameter.new_zeros(
                        blocks.touched, dtype=torch.float32
                    )
        return state


def blocks_of(place: Whole, spans: list[tuple[int, int]] | None, options: dict, group) -> Blocks:
    """Return the blocks of this rank's part; `spans` are those of all ranks, of a flat place.

    Raises ValueError where columns are split and a rank's part of a row is no whole blocks.
    """
    numel, rank = prod(place.shape), dist.get_rank(group)
    block = options["block"] or max(numel, 1)
    if isinstance(place, Flat):
        sizes = [last - first for first, last in spans]
    elif isinstance(place, Cut):
        sizes = equal_sizes(place.shape, dist.get_world_size(group), place.dim)
        run = prod(place.shape[place.dim :]) // len(sizes)
        if numel >= options["smallest"] and prod(place.shape[: place.dim]) > 1 and run % block:
            raise ValueError(
                f"Dim {place.dim} of a parameter of the shape {list(place.shape)} is split, and "
                f"each rank has {run} numbers in a row of it, which are no whole blocks of {block}."
                f" Choose a block that divides {run}."
            )
    else:
        return Blocks(numel, 0, numel, block)
    cut = cut_blocks(sizes, block) if numel >= options["smallest"] else []
    return Blocks(numel, [0, *accumulate(sizes)][rank], sizes[rank], block, cut)


class _Edges:
    """Updates this rank's numbers in cut blocks, and encodes them once the maxima are known."""

    def __init__(self, weights, gradient, state: dict, blocks: Blocks, step: float, group: dict):
        self.maps = [code_map(group["kind"], s).to(weights.device) for s in MOMENTS.values()]
        self.edges, self.state, self.moments = blocks.edges(), state, []
        self.maxima = torch.zeros(len(MOMENTS), len(blocks.cut), device=weights.device)
        for place, numbers, block in self.edges:
            moments = [
                one.decode(state[f"{name}_codes"][numbers], state[f"{name}_maxima"][block],
                           blocks.block)
                for name, one in zip(MOMENTS, self.maps)
            ]  # fmt: skip
            adam_(weights[numbers], gradient[numbers].float(), *moments, group, step)
            for row, moment in enumerate(moments):
                self.maxima[row, place] = moment.abs().max()
            self.moments.append(moments)

    def encode(self, maxima: Tensor) -> None:
        """Write codes and maxima, [2, cut blocks], which are those of all ranks."""
        for (place, numbers, block), moments in zip(self.edges, self.moments):
            for row, (name, one) in enumerate(zip(MOMENTS, self.maps)):
                top, codes = maxima[row, place : place + 1], self.state[f"{name}_codes"][numbers]
                one.encode_rows(moments[row][None], top, codes[None])
                self.state[f"{name}_maxima"][block] = top


def _largest(maxima: list[Tensor], group):
    """Launch one all_reduce of all maxima; return a function that waits and gives those of all."""
    if not maxima:
        return list
    flat = torch.cat([one.reshape(-1) for one in maxima])
    work = dist.all_reduce(flat, dist.ReduceOp.MAX, group=group, async_op=True)

    def finish() -> list[Tensor]:
        work.wait()
        parts = flat.split([one.numel() for one in maxima])
        return [part.view_as(one) for part, one in zip(parts, maxima)]

    return finish
