"""The life of each storage, read from the memory rows of a ledger: born when, how large, died when.

[Note: births and deaths]
A memory row says how many bytes of one kind are alive after a change, and `number` says whose
change it was. Bytes that leave one kind and come back at once as another are a change of kind;
bytes that leave otherwise are a death. A storage that is emptied and filled again (so FSDP frees
the weights of a unit) lives several times, because an allocator gives it memory each time anew.
Time is counted in births and deaths: event 0 is the first, so it is the same on every machine.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from lib.ledger.ledger import Row


@dataclass
class Life:
    """One stay of a storage in memory, from event `born` until event `died` (None: to the end)."""

    number: int  # of the storage in its recording
    nbytes: int  # as requested; an allocator rounds it up
    kind: str  # the kind that it was for the longest time
    born: int
    died: int | None = None
    made_by: str = ""  # "addmm in forward"; empty where the row does not say
    held: dict[str, int] = field(default_factory=dict, repr=False)  # kind -> events


def lives(rows: Iterable[Row], rank: int = 0) -> list[Life]:
    """Return the lives of all storages of a rank, in the order of their births.

    `rows` is a ledger, or the `rows` of a `lib.ranks.memory.Memory`. Raises ValueError where there
    are no memory rows of that rank, or where they do not say which storage changed.
    """
    rows = [row for row in rows if row.lane == "memory" and row.rank == rank]
    if not rows:
        raise ValueError(
            f"Rank {rank} has no rows of memory. Count in the step, with Memory(model, optimizer)."
        )
    if any(row.number < 0 for row in rows):
        raise ValueError(
            f"The memory rows of rank {rank} do not say which storage changed: a played schedule "
            "has bytes and no storages. Record a step in which Memory(model, optimizer) counts."
        )
    reader = _Reader()
    for row, after in zip(rows, [*rows[1:], None]):
        reader.read(row, after)
    return reader.finished()


class _Reader:
    """Reads memory rows in their order."""

    def __init__(self):
        self.lives: list[Life] = []
        self.open: dict[int, Life] = {}  # the lives that have not ended, by storage
        self.since: dict[int, tuple[str, int]] = {}  # the kind of each of them, and since when
        self.alive: dict[str, int] = {}  # bytes of each kind, as the last row said
        self.moving: set[int] = set()  # storages between two kinds
        self.events = 0

    def read(self, row: Row, after: Row | None) -> None:
        change = row.bytes - self.alive.get(row.op, 0)
        self.alive[row.op] = row.bytes
        number, life = row.number, self.open.get(row.number)
        if number in self.moving:
            self.moving.discard(number)
            self.since[number] = row.op, self.events
            return
        if life is not None:
            kind, since = self.since.pop(number)
            life.held[kind] = life.held.get(kind, 0) + self.events - since
            if change < 0 and after is not None and after.number == number and after.op != kind:
                self.moving.add(number)
                return
            life.died = self.events
            self.events += 1
            del self.open[number]
            change += life.nbytes  # what is left of a storage that was made smaller, or larger
        if change > 0:
            life = Life(number, change, row.op, self.events, made_by=row.note)
            self.open[number], self.since[number] = life, (row.op, self.events)
            self.lives.append(life)
            self.events += 1

    def finished(self) -> list[Life]:
        for number, (kind, since) in self.since.items():
            held = self.open[number].held
            held[kind] = held.get(kind, 0) + self.events - since
        for life in self.lives:
            life.kind = max(reversed(life.held), key=life.held.get)
        return self.lives
