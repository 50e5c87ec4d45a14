"""What each rank launched, in slots of shared memory: the part of the board that is compared.

A launch lies in one of four slots, which its group and its number choose; the oldest of the four
makes room for it. So the last thousand launches of one group are remembered, and groups whose
numbers meet in the same slots do not push each other out.
"""

import enum
import functools
import hashlib
import struct
from typing import NamedTuple

SLOTS, WAYS = 1024, 4  # launches remembered for each rank; each may lie in one of four places
SPLITS = 64  # all_to_all whose splits are remembered for each rank
TEXT, PLACE = 256, 128  # bytes for what is launched, and for the line of code

_HEAD = struct.Struct("<QQ")  # tag, number + 1
_SLOT = struct.Struct("<qqQQ")  # launched, ready (ns), tag, number + 1
_AGES = struct.Struct("<" + "q24x" * WAYS)  # launched, of each slot of a set
_TEXT = struct.Struct(f"{TEXT}s{PLACE}s")
_SPLITS_OF_ONE = _HEAD.size + 64 * 16  # two numbers for each of 64 members

_TEXTS = SLOTS * _SLOT.size
_SPLITS = _TEXTS + SLOTS * _TEXT.size
BYTES = _SPLITS + SPLITS * _SPLITS_OF_ONE  # of one rank


class Kind(enum.IntEnum):
    """What is counted under one tag, and so what a launch under it is."""

    GROUP = 0  # the collectives of a group
    PAIR = 1  # the messages from one rank to another
    ANY = 2  # the receives of one rank from whichever member sends first
    JOIN = 3  # the coming together of a new group
    MAKE = 4  # the calls of new_group, which every rank of the world makes
    ORDER = 5  # the messages of two ranks, both ways, where NCCL moves them one after the other


class Launch(NamedTuple):
    """What one rank is about to launch; for one tag and number all must launch the same.

    Compared are `kind`, `op` and `what`: the size and the dtype, the reduction, the root. `own` is
    shown and not compared, since it may differ between ranks: the splits of an all_to_all.
    """

    kind: Kind
    op: str
    what: str = ""
    own: str = ""

    def __str__(self):
        return " ".join(filter(None, self[1:]))


class Entry(NamedTuple):
    """One line of the board: what a rank launched, at which line of the reader's, and when."""

    launch: Launch
    place: str
    launched: int
    ready: int


@functools.lru_cache(1024)
def compared(kind: Kind, op: str, what: str) -> bytes:
    """Give the bytes of a launch that must be alike; what is too long ends in its digest."""
    raw, room = what.encode(), TEXT - 3 - len(op.encode())
    if len(raw) > room:
        digest = hashlib.blake2b(raw, digest_size=8).hexdigest()
        raw = raw[: room - 22].decode(errors="ignore").encode() + f" … {digest}".encode()
    return b"%c%s\0%s\0" % (kind, op.encode(), raw)


def launch_of(raw: bytes) -> Launch:
    """Read a launch as it stands on the board."""
    op, what, own, *_ = raw[1:].split(b"\0", 3)
    return Launch(Kind(raw[0]), *(words.decode(errors="replace") for words in (op, what, own)))


class Slots:
    """The slots of all ranks; those of rank r begin at `start + r * stride` of the memory."""

    def __init__(self, memory, start: int, stride: int):
        self.memory, self.start, self.stride = memory, start, stride

    def post(self, rank, tag, number, launch: Launch, place: str, launched: int, splits=()) -> None:
        """Write what `rank` is about to launch as `number` under `tag`.

        `splits`, of an all_to_all: what goes to each member, then what comes from each.
        """
        first, memory = self._set(rank, tag, number), self.memory
        ages = _AGES.unpack_from(memory, first)
        at = first + ages.index(min(ages)) * _SLOT.size  # the oldest of its set makes room
        _SLOT.pack_into(memory, at, launched, 0, 0, 0)
        words = compared(*launch[:3])
        if launch.own:
            words += launch.own.encode()[: TEXT - len(words)]
        _TEXT.pack_into(memory, self._text_at(rank, at), words, place.encode()[-PLACE:])
        if splits:
            where = self._splits(rank, tag, number)
            struct.pack_into(f"<QQ{len(splits)}q", memory, where, 0, 0, *splits)
            struct.pack_into("<QQ", memory, where, tag, number + 1)
        _SLOT.pack_into(memory, at, launched, 0, tag, number + 1)  # last: now it counts

    def ready(self, rank, tag, number, when: int) -> None:
        """Write when the lane of `rank` is free for this operation (slow motion)."""
        at = self._find(rank, tag, number)
        if at is not None:
            struct.pack_into("<q", self.memory, at + 8, when)

    def entry(self, rank, tag, number) -> Entry | None:
        """Read what `rank` launched as `number` under `tag`, unless that is long ago."""
        at = self._find(rank, tag, number)
        if at is None:
            return None
        launched, ready, _, _ = _SLOT.unpack_from(self.memory, at)
        text, place = _TEXT.unpack_from(self.memory, self._text_at(rank, at))
        return Entry(launch_of(text), text_of(place), launched, ready)

    def clock(self, rank, tag, number) -> tuple[int, int] | None:
        """Read (launched, ready) in ns of one entry, without its words."""
        at = self._find(rank, tag, number)
        return None if at is None else _SLOT.unpack_from(self.memory, at)[:2]

    def differs(self, ranks, tag, number, launch: Launch) -> bool:
        """True if one of `ranks` launched something else under the same number."""
        line = compared(*launch[:3])
        head, first = _HEAD.pack(tag, number + 1), self._set(0, tag, number)
        for rank in ranks:
            start = first + rank * self.stride
            at = self.memory.find(head, start, start + _AGES.size)
            if at >= 0:
                words = self._text_at(rank, at - _HEAD.size)
                if self.memory[words : words + len(line)] != line:
                    return True
        return False

    def splits(self, rank, tag, number, members: int) -> tuple | None:
        """Read what an all_to_all of `rank` sends to each member and expects from each."""
        at = self._splits(rank, tag, number)
        if _HEAD.unpack_from(self.memory, at) != (tag, number + 1):
            return None
        numbers = struct.unpack_from(f"<{2 * members}q", self.memory, at + _HEAD.size)
        return numbers[:members], numbers[members:]

    def _set(self, rank, tag, number) -> int:
        return self.start + rank * self.stride + (tag + number) % (SLOTS // WAYS) * _AGES.size

    def _find(self, rank, tag, number) -> int | None:
        first = self._set(rank, tag, number)
        head = _HEAD.pack(tag, number + 1)
        at = self.memory.find(head, first, first + _AGES.size)
        return at - _HEAD.size if at >= 0 else None

    def _splits(self, rank, tag, number) -> int:
        first = self.start + rank * self.stride + _SPLITS
        return first + (tag + number) % SPLITS * _SPLITS_OF_ONE

    def _text_at(self, rank, slot: int) -> int:
        first = self.start + rank * self.stride
        return first + _TEXTS + (slot - first) // _SLOT.size * _TEXT.size


def text_of(raw: bytes) -> str:
    """Read words that end at the first zero byte."""
    return raw.split(b"\0", 1)[0].decode(errors="replace")
