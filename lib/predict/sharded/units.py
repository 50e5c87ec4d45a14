"""Units of FSDP: what is gathered, computed and freed together, and when each of it happens.

    shard [L/n] -> all_gather -> whole [L] -> compute -> free        gradients [L] -> reduce_scatter

L is the number of a unit's parameters, padded to a multiple of n ranks. Unit 0 is the root: it has
what two other units share, and is gathered first and kept to the end. Without such parameters it is
empty and nothing of it moves.

[Note: prefetch]
While a unit computes, the gathers of the `prefetch` units after it are under way, so at most
1 + prefetch units are whole, beside the root. Backward goes through the units the other way round.
After its backward a unit is freed. Its gradients are copied into one buffer, and the reduce_scatter
of that starts when that of the unit before it is over.

Source: Zhao et al. 2023, "PyTorch FSDP" (arXiv 2304.11277), sections 3 and 4.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from lib.predict.arguments import whole
from lib.predict.memory import STATES
from lib.predict.shape import GPTShape, ModelShape, Parameter
from lib.predict.sharded.states import share_of

KINDS = ("gather", "wait", "forward", "free", "backward", "copy", "reduce", "settle")


class Unit(NamedTuple):
    """Holds the parameters of a unit and the numbers of the blocks that it computes."""

    name: str
    parameters: tuple[Parameter, ...]
    blocks: tuple[int, ...] = ()

    @property
    def numel(self) -> int:
        """Return the number of elements, without padding."""
        return sum(parameter.numel for parameter in self.parameters)

    def share(self, ranks: int) -> int:
        """Return the elements in the shard of each rank."""
        return share_of(self.numel, ranks) if self.numel else 0

    def pieces(self, ranks: int, rank: int) -> list[int]:
        """Return the elements of each parameter in the shard of `rank`, without padding."""
        first, found, share = 0, [], self.share(ranks)
        for parameter in self.parameters:
            last = first + parameter.numel
            overlap = min(last, (rank + 1) * share) - max(first, rank * share)
            found.append(max(overlap, 0))
            first = last
        return found

    def length(self, ranks: int) -> int:
        """Return the elements of the whole unit with its padding: what a gather moves."""
        return self.share(ranks) * ranks


class UnitAction(NamedTuple):
    """Says what is done with which unit: "gather 2", "wait 2", "forward 2", "free 2"."""

    kind: str  # one of KINDS
    unit: int

    def __str__(self) -> str:
        return f"{self.kind} {self.unit}"


def units_of(
    shape: ModelShape, blocks: Sequence[int] | None = None, *, ends: bool = True
) -> list[Unit]:
    """Return the root and the units of a model, in order; by default each block is a unit.

    `blocks` lists how many consecutive blocks each unit has. With `ends` False the first and the
    last block belong to the root, so that only the layers between them are units. Raises ValueError
    where the units do not hold all blocks that are left.
    """
    last = shape.blocks - 1
    outside = () if ends or last < 2 else (0, last)
    left = shape.blocks - len(outside)
    sizes = [1] * left if blocks is None else [whole(n, "A unit") for n in blocks]
    if sum(sizes) != left:
        raise ValueError(f"Units of {list(sizes)} blocks do not hold {left} blocks of the model.")
    tied = isinstance(shape, GPTShape) and shape.tied and len(sizes) > 1
    shared = {"blocks.0.tokens.weight"} if tied else set()
    in_root = lambda p: p.block in outside or p.name in shared
    found = [Unit("root", tuple(filter(in_root, shape.parameters)), outside)]
    first = len(outside) // 2
    for size in sizes:
        inside = tuple(range(first, first + size))
        own = (p for p in shape.parameters if p.block in inside and not in_root(p))
        name = f"block {first}" if size == 1 else f"blocks {first} to {inside[-1]}"
        found.append(Unit(name, tuple(own), inside))
        first += size
    return found


def optimizer_states(
    units: Sequence[Unit], ranks: int, rank: int, optimizer: str = "adamw", itemsize: int = 4
) -> int:
    """Return the bytes of an optimizer's states on one rank, which differ by the padding.

    Padding has no state. Adam counts its steps in 4 bytes for each piece of a parameter that the
    rank has.
    """
    pieces = [n for unit in units for n in unit.pieces(ranks, rank) if n]
    counters = 4 * len(pieces) if optimizer.startswith("adam") else 0
    return STATES[optimizer] * itemsize * sum(pieces) + counters


def actions(
    units: int, prefetch: int = 1, *, resharded: bool = True, ends: bool = False
) -> Iterator[UnitAction]:
    """Yield what every rank does in a step with the root and `units` units after it.

    The root computes at both ends of forward, and of backward. With `resharded` False, units stay
    whole after forward, and backward gathers nothing. With `ends` the first unit computes on the
    samples themselves. These need no gradient, so nothing tells that backward has left the unit,
    and it is freed at the end of backward.
    """
    units, ahead = whole(units, "The number of units"), whole(prefetch, "prefetch", 0)
    forward = range(1, units + 1)
    yield from (UnitAction("gather", 0), UnitAction("wait", 0))
    yield from (UnitAction("gather", unit) for unit in forward[:ahead])
    yield UnitAction("forward", 0)
    for place, unit in enumerate(forward):
        yield from _ready(forward, place, ahead)
        yield UnitAction("forward", unit)
        if resharded:
            yield UnitAction("free", unit)
    yield UnitAction("forward", 0)
    backward, reduced = forward[::-1], None
    if resharded:
        yield from (UnitAction("gather", unit) for unit in backward[:ahead])
    yield UnitAction("backward", 0)
    for place, unit in enumerate(backward):
        if resharded:
            yield from _ready(backward, place, ahead)
        yield UnitAction("backward", unit)
        if not (ends and unit == 1):
            yield UnitAction("free", unit)
        if reduced is not None:
            yield UnitAction("settle", reduced)
        yield from (UnitAction("copy", unit), UnitAction("reduce", unit))
        reduced = unit
    yield UnitAction("backward", 0)
    if ends:
        yield UnitAction("free", 1)
    yield from (UnitAction("free", 0), UnitAction("settle", reduced))
    yield from (UnitAction("copy", 0), UnitAction("reduce", 0), UnitAction("settle", 0))


def _ready(order: range, place: int, ahead: int) -> Iterator[UnitAction]:
    """Make the unit at a place whole, and launch the gather that its computation can hide."""
    if not ahead:
        yield UnitAction("gather", order[place])
    yield UnitAction("wait", order[place])
    if ahead and place + ahead < len(order):
        yield UnitAction("gather", order[place + ahead])


class Alive(NamedTuple):
    """Holds the bytes of whole units, and of whole gradients, that a rank has after an action."""

    action: UnitAction
    whole: int
    gradients: int

    @property
    def total(self) -> int:
        """Return both together."""
        return self.whole + self.gradients


def alive(
    units: Sequence[Unit], ranks: int, *, prefetch: int = 1, resharded: bool = True,
    param_bytes: int = 4, reduce_bytes: int = 4,
) -> Iterator[Alive]:  # fmt: skip
    """Yield what a rank holds beside its shards after each action of a step.

    A whole unit is held from the launch of its gather until it is freed. A whole gradient is held
    from the backward of its block until its unit is reduced, and the buffer into which it is copied
    from then on until the reduce_scatter is over; so during the copy there are both.
    """
    lengths = [unit.length(ranks) for unit in units]
    held, sent, separate = set(), set(), [0] * len(units)
    turns = [units[0].blocks[1:], units[0].blocks[:1]]  # of the root: its last block, its first
    ends = not units[0].blocks
    for action in actions(len(units) - 1, prefetch, resharded=resharded, ends=ends):
        kind, unit = action
        if kind == "gather":
            held.add(unit)
        elif kind == "free":
            held.discard(unit)
        elif kind == "backward":
            blocks = units[unit].blocks if unit else turns.pop(0)
            for n, owner in enumerate(units):
                separate[n] += sum(p.numel for p in owner.parameters if p.block in blocks)
        elif kind == "copy":
            sent.add(unit)
        elif kind == "reduce":
            separate[unit] = 0
        elif kind == "settle":
            sent.discard(unit)
        whole_units, buffers = (sum(lengths[n] for n in numbers) for numbers in (held, sent))
        gradients = sum(separate) * param_bytes + buffers * reduce_bytes
        yield Alive(action, whole_units * param_bytes, gradients)
