"""Replays the lives of storages through the allocator: which block each one got, and what was free.

    Memory(model, optimizer) -> rows -> lives(rows) -> replay(lives, ...) -> blocks over time

[Note: an arena]
Tensors that live long (weights, gradients, what forward keeps for backward) and tensors that live
for one operation come in turns. When the short-lived ones are gone, they leave holes between the
others, and a large tensor fits into none of them. ZeRO-R sets memory aside for the long-lived ones
before the step and puts them there, one beside the other (Rajbhandari et al. 2020, section 6.3).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from lib.ledger.lives import Life
from lib.predict.allocator.caching import CachingAllocator, OutOfMemory, Segment

LONG_LIVED = ("parameters", "gradients", "optimizer", "activations")


class Placed(NamedTuple):
    """Says where a storage lay: `size` bytes from `address` on, from event `born` to `died`."""

    life: Life
    address: int
    size: int
    died: int


class HeldSegment(NamedTuple):
    """Holds a segment's place, and the events between which it was reserved."""

    address: int
    size: int
    pool: str
    since: int
    until: int


class State(NamedTuple):
    """Says in bytes what the allocator held after one event; free bytes without an arena's.

    `inactive_split` are the free bytes that no one can give back, because tensors use the rest of
    their segments.
    """

    requested: int
    allocated: int
    reserved: int
    free: int
    largest_free: int
    inactive_split: int


@dataclass
class Replay:
    """What happened to a device's memory: every block, every segment, and the state at each event.

    `failure` is the error message where the device had too little memory; the replay ends there.
    """

    fit: str
    placed: list[Placed]
    segments: list[HeldSegment]
    states: list[State]
    arena: int = 0  # bytes set aside
    capacity: int | None = None
    failure: str = ""
    lives: Sequence[Life] = field(default=(), repr=False)

    @property
    def peak_reserved(self) -> int:
        """Return the most bytes that were reserved: what nvidia-smi shows of them."""
        return max(state.reserved for state in self.states)

    @property
    def peak_allocated(self) -> int:
        """Return the most bytes that tensors held, rounded up."""
        return max(state.allocated for state in self.states)

    @property
    def at_peak(self) -> int:
        """Return the first event after which the most bytes were allocated."""
        return max(range(len(self.states)), key=lambda n: (self.states[n].allocated, -n))

    def most_scattered(self) -> int:
        """Return the first event with the most free bytes outside the largest free block."""
        apart = [state.free - state.largest_free for state in self.states]
        return apart.index(max(apart))

    def __str__(self):
        worst = self.states[self.most_scattered()]
        lines = [
            f"{'requested at most':28}{max(s.requested for s in self.states):>16,}",
            f"{'allocated at most':28}{self.peak_allocated:>16,}",
            f"{'reserved at most':28}{self.peak_reserved:>16,}",
            f"{'free when most scattered':28}{worst.free:>16,}",
            f"{'  between tensors':28}{worst.inactive_split:>16,}",
            f"{'  largest free block':28}{worst.largest_free:>16,}",
        ]
        return "\n".join([*lines, self.failure] if self.failure else lines)


def scaled(lives: Iterable[Life], times: float) -> list[Life]:
    """Return the same lives with sizes that are `times` as large, as of a model that is wider.

    All sizes grow by one factor, so those of a real wider model differ from these; a model on the
    device "meta" has real sizes and needs no memory.
    """
    return [
        Life(one.number, round(one.nbytes * times), one.kind, one.born, one.died, one.made_by)
        for one in lives
    ]


def replay(
    lives: Sequence[Life],
    fit: str = "best",
    capacity: int | None = None,
    arena: Iterable[str] = (),
) -> Replay:
    """Allocate and free what `lives` say, in their order, on a device with `capacity` bytes.

    Storages of the kinds in `arena` go to a segment that is set aside first and is just large
    enough for them (see the note above). Raises ValueError for an arena that no storage would use.
    """
    lives, arena = list(lives), frozenset(arena)
    chosen = [life for life in lives if life.kind in arena]
    if arena and not chosen:
        raise ValueError(f"No storage here is one of {', '.join(sorted(arena))}.")
    allocator = CachingAllocator(capacity, fit)
    run = _Run(allocator, arena)
    nbytes = arena_bytes(chosen, fit) if chosen else 0
    try:
        if nbytes:
            allocator.reserve(nbytes)
        for event, dies, life in events_of(lives):
            run.die(life) if dies else run.be_born(life)
            run.note(event)
    except OutOfMemory as error:
        run.failure = f"{life.made_by or life.kind}: {error}" if run.states else str(error)
    return run.finished(lives, nbytes)


def events_of(lives: Iterable[Life]) -> list[tuple[int, bool, Life]]:
    """Return births and deaths in their order, as (event, whether it is a death, life)."""
    births = [(life.born, False, life) for life in lives]
    deaths = [(life.died, True, life) for life in lives if life.died is not None]
    return sorted(births + deaths, key=lambda one: one[:2])


def arena_bytes(lives: Sequence[Life], fit: str = "best") -> int:
    """Return the bytes from the first to the last address that `lives` need in one segment."""
    allocator, blocks, end = CachingAllocator(fit=fit), {}, 0
    allocator.reserve(sum(life.nbytes + 512 for life in lives))
    for _, dies, life in events_of(lives):
        if dies:
            allocator.free(blocks.pop(life.born))
        else:
            block = blocks[life.born] = allocator.allocate(life.nbytes, "arena")
            end = max(end, block.address + block.size)
    return end


class _Run:
    """Keeps, during a replay, what the pictures and the tables need afterwards."""

    def __init__(self, allocator: CachingAllocator, arena: frozenset[str]):
        self.allocator, self.arena, self.failure = allocator, arena, ""
        self.blocks, self.begun = {}, {}  # of the storages and the segments that are there now
        self.placed: list[Placed] = []
        self.segments: list[HeldSegment] = []
        self.states: list[State] = []

    def be_born(self, life: Life) -> None:
        pool = "arena" if life.kind in self.arena else ""
        self.blocks[life.born] = life, self.allocator.allocate(life.nbytes, pool)

    def die(self, life: Life) -> None:
        _, block = self.blocks.pop(life.born)
        self.placed.append(Placed(life, block.address, block.size, life.died))
        self.allocator.free(block)

    def note(self, event: int) -> None:
        """Keep the state after an event, and which segments have come and gone with it."""
        now: dict[int, Segment] = {id(segment): segment for segment in self.allocator.segments}
        for key in [key for key in self.begun if key not in now]:
            self._gone(key, event)
        for key, segment in now.items():
            self.begun.setdefault(key, (segment, event))
        a = self.allocator
        free = a.free_bytes, a.largest_free, a.inactive_split
        self.states.append(State(a.requested, a.allocated, a.reserved, *free))

    def _gone(self, key: int, event: int) -> None:
        segment, since = self.begun.pop(key)
        self.segments.append(HeldSegment(segment.address, segment.size, segment.pool, since, event))

    def finished(self, lives: Sequence[Life], arena: int) -> Replay:
        end = len(self.states)
        for life, block in self.blocks.values():
            self.placed.append(Placed(life, block.address, block.size, end))
        for key in list(self.begun):
            self._gone(key, end)
        self.placed.sort(key=lambda one: one.life.born)
        self.segments.sort(key=lambda one: (one.since, one.address))
        a = self.allocator
        return Replay(
            a.fit, self.placed, self.segments, self.states, arena, a.capacity, self.failure, lives
        )
