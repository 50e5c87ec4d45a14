"""One thing that a rank did, as a recording keeps it until it becomes a row of the Ledger."""

from dataclasses import dataclass


@dataclass(slots=True)
class Event:
    """What happened on a rank, from when to when, and how large it was; see `lib.ledger.Row`.

    Times are ns of the processor's clock; on a GPU they are marks in its stream until the recording
    ends. `end` is 0 while the operation is under way.
    """

    lane: str
    op: str
    start: int
    end: int = 0
    group: str = ""
    members: tuple[int, ...] = ()
    number: int = -1
    bytes: int = 0
    peer: int = -1
    stage: int = -1
    microbatch: int = -1
    parts: tuple[int, ...] = ()
    note: str = ""  # the reader's own words
    flop: int | None = None  # arithmetic that slow motion counted; None for a span of the reader's
    late: float = 0  # ns by which the real work was later than slow motion allowed for


# The columns of an Event that become columns of the Ledger.
COLUMNS = tuple(name for name in Event.__slots__ if name not in ("flop", "late"))
