"""The board: a table in shared memory where each rank writes what it launches, and reads the rest.

[Note: the board]
Gloo answers a collective whose sizes differ with SIGABRT, and one whose partners never come with
silence. So before a rank launches anything it writes one line on the board (which group, which
number, what, how large, at which line of the reader's code) and then looks at the others' lines of
the same number. Whoever writes second sees the first: a mismatch is a sentence
before it is a crash. The kernel reads the same board to tell a slow rank from one that can never
be answered.
The file lies in the world's private folder, so it needs no room in /dev/shm.
"""

import functools
import hashlib
import mmap
import os
import struct
from typing import NamedTuple

IDLE, RUNNING, WAITING = 0, 1, 2
SLOTS, SLOT = 1024, 416  # launches remembered for each rank, bytes of one
GROUPS, GROUP = 1024, 64  # groups and pairs counted for each rank, bytes of one
HEADER = 64
RANK = HEADER + GROUPS * GROUP + SLOTS * SLOT
TEXT = SLOT - 32 - 128  # room for what is launched; the other 128 bytes hold the line

_HEADER = struct.Struct("<QQQQ")  # state, beats, tag and number waited for
_THERE = struct.Struct("<QQ")  # which start, and when (ns) this rank was there; after the header
_SLOT = struct.Struct("<qqQQ")  # launched, ready (ns), tag, number + 1
_GROUP = struct.Struct("<QQQ40s")  # tag, launches so far, members as bits, name


class Entry(NamedTuple):
    """One line of the board: what a rank launched."""

    text: str
    place: str
    launched: int
    ready: int


class Count(NamedTuple):
    """How often a rank has launched in one group (or towards one other rank)."""

    tag: int
    launches: int
    members: tuple[int, ...]
    name: str


@functools.cache
def tag_of(*names) -> int:
    """Give a group, or a (group, source, destination) pair, the same number on every rank."""
    digest = hashlib.blake2b(repr(names).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") | 1


class Board:
    """The table of one world, mapped by the kernel and by every rank."""

    def __init__(self, path: str, size: int, *, create: bool = False):
        self.path = path
        if create:
            with open(path, "wb") as file:
                os.posix_fallocate(file.fileno(), 0, size * RANK)  # a full disk shows here
        with open(path, "r+b") as file:
            self.memory = mmap.mmap(file.fileno(), size * RANK)
        self.size = size
        self._places: dict[tuple[int, int], int] = {}

    # What a rank writes. One writer a region, so no lock is needed.

    def post(self, rank, tag, number, text: str, place: str, launched: int) -> None:
        """Write that `rank` is about to launch `text` as `number` of the group `tag`."""
        at = self._slot(rank, tag, number)
        body = struct.pack(f"<{TEXT}s128s", text.encode()[:TEXT], place.encode()[-128:])
        memory = self.memory
        _SLOT.pack_into(memory, at, launched, 0, 0, 0)
        memory[at + 32 : at + SLOT] = body
        _SLOT.pack_into(memory, at, launched, 0, tag, number + 1)  # last: now it counts

    def ready(self, rank, tag, number, when: int) -> None:
        """Write when the lane of `rank` is free for this operation (slow motion)."""
        struct.pack_into("<q", self.memory, self._slot(rank, tag, number) + 8, when)

    def count(self, rank, tag, launches: int, members=(), name: str = "") -> None:
        """Write how often `rank` has launched in the group `tag`."""
        at = self._places.get((rank, tag))
        if at is not None:
            struct.pack_into("<Q", self.memory, at + 8, launches)
            return
        index = sum(1 for owner, _ in self._places if owner == rank)
        if index == GROUPS:
            raise RuntimeError(
                f"rank {rank} uses more than {GROUPS} groups and pairs of ranks at once: end those "
                "you no longer need with dist.destroy_process_group(group)"
            )
        at = rank * RANK + HEADER + index * GROUP
        bits = sum(1 << member for member in members)
        _GROUP.pack_into(self.memory, at, tag, launches, bits, name.encode()[:40])
        self._places[rank, tag] = at

    def free(self, rank, tag) -> None:
        """Forget a group that `rank` has left; the last one takes its place, so none is missed."""
        at = self._places.pop((rank, tag), None)
        if at is None:
            return
        mine = {where: key for key, where in self._places.items() if key[0] == rank}
        last = max(mine, default=at)
        if last > at:
            self.memory[at : at + GROUP] = self.memory[last : last + GROUP]
            self._places[mine[last]] = at
        else:
            last = at
        self.memory[last : last + GROUP] = bytes(GROUP)

    def state(self, rank, state: int, tag: int = 0, number: int = 0) -> None:
        """Write whether `rank` is idle, runs, or waits for (tag, number)."""
        beats = _HEADER.unpack_from(self.memory, rank * RANK)[1]
        _HEADER.pack_into(self.memory, rank * RANK, state, beats + 1, tag, number)

    def arrive(self, rank, start: int, when: int) -> None:
        """Write that `rank` is there for a start that all make together."""
        at = rank * RANK + _HEADER.size
        struct.pack_into("<Q", self.memory, at + 8, when)
        struct.pack_into("<Q", self.memory, at, start)  # last: now it counts

    def clear(self, rank) -> None:
        """Forget all that `rank` launched: its groups are new."""
        start = rank * RANK
        self.memory[start : start + RANK] = bytes(RANK)
        self._places = {key: at for key, at in self._places.items() if key[0] != rank}

    # What anyone reads.

    def arrived(self, rank, start: int) -> int | None:
        """Read when `rank` was there for this start, if it is."""
        theirs, when = _THERE.unpack_from(self.memory, rank * RANK + _HEADER.size)
        return when if theirs == start else None

    def entry(self, rank, tag, number) -> Entry | None:
        """Read what `rank` launched as `number` of the group `tag`, if it has."""
        at = self._slot(rank, tag, number)
        launched, ready, theirs, count = _SLOT.unpack_from(self.memory, at)
        if theirs != tag or count != number + 1:
            return None
        text, place = struct.unpack_from(f"<{TEXT}s128s", self.memory, at + 32)
        return Entry(_text(text), _text(place), launched, ready)

    def clock(self, rank, tag, number) -> tuple[int, int] | None:
        """Read (launched, ready) in ns of one entry, without its words."""
        launched, ready, theirs, count = _SLOT.unpack_from(
            self.memory, self._slot(rank, tag, number)
        )
        return (launched, ready) if theirs == tag and count == number + 1 else None

    def differs(self, rank, tag, number, text: bytes) -> bool:
        """True if `rank` launched something else than `text` (padded) under the same number."""
        at = self._slot(rank, tag, number)
        _, _, theirs, count = _SLOT.unpack_from(self.memory, at)
        return (
            theirs == tag
            and count == number + 1
            and self.memory[at + 32 : at + 32 + len(text)] != text
        )

    def counts(self, rank) -> dict[int, Count]:
        """Read how often `rank` launched in each of its groups."""
        found, start = {}, rank * RANK + HEADER
        for at in range(start, start + GROUPS * GROUP, GROUP):
            tag, launches, bits, name = _GROUP.unpack_from(self.memory, at)
            if not tag:
                break
            members = tuple(r for r in range(64) if bits >> r & 1)
            found[tag] = Count(tag, launches, members, _text(name))
        return found

    def look(self, rank) -> tuple[int, int, int, int]:
        """Read (state, beats, tag, number) of `rank`."""
        return _HEADER.unpack_from(self.memory, rank * RANK)

    def _slot(self, rank, tag, number) -> int:
        index = (tag + number) % SLOTS
        return rank * RANK + HEADER + GROUPS * GROUP + index * SLOT


def _text(raw: bytes) -> str:
    return raw.rstrip(b"\0").decode(errors="replace")
