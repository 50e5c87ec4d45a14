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
import itertools
import mmap
import os
import struct
from collections import defaultdict
from typing import NamedTuple

from lib.ranks.shared.notice_slots import BYTES, Kind, Slots, text_of

# What a rank is doing. HELPED: it waits, but another of its threads may still do something.
IDLE, RUNNING, WAITING, HELPED = range(4)
GROUPS = 1024  # groups and pairs counted for each rank
_FEW = 8  # of these are compared at once
WAITS = 8  # threads of one rank that are seen waiting
REFUSED = 8  # launches of one rank that were refused and are remembered

_PAIR = struct.Struct("<QQ")
_STATE = struct.Struct("<QQQ")  # state, beats, threads that wait; (tag, number) of each follow
_GROUP = struct.Struct("<QQQQBb46s")  # tag, launches, members as bits, scope, kind, source, name

# Where a rank's region holds what, in bytes from its start.
_WAITS = _STATE.size
_ARRIVED = _WAITS + WAITS * _PAIR.size  # which start, and when (ns) this rank was there
_LEFT, _FORGETFUL, _STDERR, _REFUSALS = range(_ARRIVED + 16, _ARRIVED + 48, 8)
_REFUSED = _REFUSALS + 8  # (tag, number) of each
_COUNTS = _REFUSED + REFUSED * _PAIR.size
_SLOTS = _COUNTS + GROUPS * _GROUP.size
RANK = _SLOTS + BYTES


class Count(NamedTuple):
    """How often a rank has launched in one group, or towards one other rank.

    Messages of one group under one of the reader's tags have the same `scope`: a receive from any
    source takes one of them. `source` is the rank that sends them, -1 for all other kinds.
    """

    tag: int
    launches: int
    members: tuple[int, ...]
    name: str  # of the group, as the reader knows it
    kind: Kind = Kind.GROUP
    scope: int = 0
    source: int = -1


@functools.lru_cache(4096)
def tag_of(*names) -> int:
    """Give a group, or a (group, source, destination) pair, the same number on every rank."""
    digest = hashlib.blake2b(repr(names).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") | 1


class NoticeBoard(Slots):
    """The table of one world, mapped by the kernel and by every rank."""

    def __init__(self, path: str, size: int, *, create: bool = False):
        self.path = path
        if create:
            with open(path, "wb") as file:
                os.posix_fallocate(file.fileno(), 0, size * RANK)  # a full disk shows here
        with open(path, "r+b") as file:
            super().__init__(mmap.mmap(file.fileno(), size * RANK), _SLOTS, RANK)
        self.size = size
        self._beats = 0  # one more with each state that is written
        self._places = defaultdict(dict)  # rank -> tag -> where its count is
        self._seen: dict[tuple[int, int], int] = {}  # where the counts of others were

    # What a rank writes. One writer a region, so no lock is needed.

    def count(self, rank, tag, launches: int, members=(), name="", kind=Kind.GROUP,
              scope=0, source=-1) -> None:  # fmt: skip
        """Write how often `rank` has launched under `tag`; see Count for the others."""
        places = self._places[rank]
        if tag in places:
            struct.pack_into("<Q", self.memory, places[tag] + 8, launches)
            return
        if len(places) == GROUPS:
            self._make_room(rank)
        if len(places) == GROUPS:
            if kind in (Kind.PAIR, Kind.ORDER):
                return  # more messages under way than there is room to follow
            raise RuntimeError(
                f"Rank {rank} uses more than {GROUPS} groups and pairs of ranks at once: end those "
                "you no longer need with dist.destroy_process_group(group)."
            )
        at = rank * RANK + _COUNTS + len(places) * _GROUP.size
        bits = sum(1 << member for member in members)
        words = name.encode()[:46]
        _GROUP.pack_into(self.memory, at, tag, launches, bits, scope, kind, source, words)
        places[tag] = at

    def _make_room(self, rank) -> None:
        """Drop pairs that both sides have done with, and groups that all have joined."""
        counts = [self.counts(other) for other in range(self.size)]
        self._flag(rank, _FORGETFUL, 1)
        for tag, own in counts[rank].items():
            same = (counts[m].get(tag, own).launches == own.launches for m in own.members)
            if own.kind in (Kind.PAIR, Kind.JOIN, Kind.ORDER) and all(same):
                self.free(rank, tag)

    def free(self, rank, tag) -> None:
        """Forget a group that `rank` has left; the last one takes its place, so none is missed."""
        at = self._places[rank].pop(tag, None)
        if at is None:
            return
        tags = {place: tag for tag, place in self._places[rank].items()}
        last = max(tags, default=at)
        if last > at:
            self.memory[at : at + _GROUP.size] = self.memory[last : last + _GROUP.size]
            self._places[rank][tags[last]] = at
        else:
            last = at
        self.memory[last : last + _GROUP.size] = bytes(_GROUP.size)

    def state(self, rank, state: int, *waits: tuple[int, int]) -> None:
        """Write what `rank` is doing, and (tag, number) for each of its threads that waits."""
        at, self._beats = rank * RANK, self._beats + 1
        if waits:
            for index, wait in enumerate(waits[:WAITS]):
                _PAIR.pack_into(self.memory, at + _WAITS + _PAIR.size * index, *wait)
        _STATE.pack_into(self.memory, at, state, self._beats, len(waits))

    def refuse(self, rank, tag, number) -> None:
        """Write that `rank` posted this launch and then did not make it."""
        so_far = self._read(rank, _REFUSALS)
        at = rank * RANK + _REFUSED + so_far % REFUSED * _PAIR.size
        _PAIR.pack_into(self.memory, at, tag, number)
        self._flag(rank, _REFUSALS, so_far + 1)

    def arrive(self, rank, start: int, when: int) -> None:
        """Write that `rank` is there for a start that all make together."""
        self._flag(rank, _ARRIVED + 8, when)
        self._flag(rank, _ARRIVED, start)  # last: now it counts

    def leave(self, rank) -> None:
        """Write that `rank` has left the group of its whole world: it needs a new one."""
        self._flag(rank, _LEFT, 1)

    def pass_on_stderr(self, rank, size: int) -> None:
        """Write how many bytes of its stderr `rank` has handed on."""
        self._flag(rank, _STDERR, size)

    def clear(self, rank) -> None:
        """Forget all that `rank` launched: its groups are new."""
        start, passed_on = rank * RANK, self.stderr_passed_on(rank)
        self.memory[start : start + RANK] = bytes(RANK)
        self.pass_on_stderr(rank, passed_on)
        self._places.pop(rank, None)

    # What anyone reads.

    def arrived(self, rank, start: int) -> int | None:
        """Read when `rank` was there for this start, if it is."""
        theirs, when = _PAIR.unpack_from(self.memory, rank * RANK + _ARRIVED)
        return when if theirs == start else None

    def has_left(self, rank) -> bool:
        """Read whether `rank` has left the group of its whole world."""
        return bool(self._read(rank, _LEFT))

    def forgetful(self, rank) -> bool:
        """Read whether `rank` has dropped pairs that both sides had done with."""
        return bool(self._read(rank, _FORGETFUL))

    def stderr_passed_on(self, rank) -> int:
        """Read how many bytes of its stderr `rank` has handed on."""
        return self._read(rank, _STDERR)

    def refused(self, rank) -> set[tuple[int, int]]:
        """Read the (tag, number) of what `rank` posted last and did not launch."""
        places = range(min(self._read(rank, _REFUSALS), REFUSED))
        start = rank * RANK + _REFUSED
        return {_PAIR.unpack_from(self.memory, start + _PAIR.size * i) for i in places}

    def counts(self, rank) -> dict[int, Count]:
        """Read how often `rank` launched in each of its groups."""
        counts, start = {}, rank * RANK + _COUNTS
        for at in range(start, start + GROUPS * _GROUP.size, _GROUP.size):
            tag, launches, bits, scope, kind, source, name = _GROUP.unpack_from(self.memory, at)
            if not tag:
                break
            members = tuple(r for r in range(self.size) if bits >> r & 1)
            known = tag, launches, members, text_of(name), Kind(kind), scope, source
            counts[tag] = Count(*known)
        return counts

    def all_equal(self, ranks) -> bool:
        """True if these ranks have few groups, the same, and launched as often in each."""
        first, *others = (rank * RANK + _COUNTS for rank in ranks)
        last, size = (_FEW - 1) * _GROUP.size, _FEW * _GROUP.size
        known = self.memory[first : first + size]
        few = known[last : last + 8] == bytes(8)  # the last of these places is not in use
        return few and all(self.memory[at : at + size] == known for at in others)

    def launches(self, rank, tag) -> int:
        """Read how often `rank` launched in one of its groups, 0 if it has not."""
        at = self._seen.get((rank, tag))
        if at is None or _PAIR.unpack_from(self.memory, at)[0] != tag:
            start = rank * RANK + _COUNTS
            places = range(start, start + GROUPS * _GROUP.size, _GROUP.size)
            tags = ((at, _PAIR.unpack_from(self.memory, at)[0]) for at in places)
            tags = itertools.takewhile(lambda found: found[1], tags)
            at = next((at for at, found in tags if found == tag), None)
            if at is None:
                return 0
            self._seen[rank, tag] = at
        return _PAIR.unpack_from(self.memory, at)[1]

    def look(self, rank) -> tuple[int, int]:
        """Read (state, beats) of `rank`; the beats tell whether it moved since the last look."""
        return _STATE.unpack_from(self.memory, rank * RANK)[:2]

    def waits(self, rank) -> list[tuple[int, int]]:
        """Read (tag, number) of each thread of `rank` that waits."""
        state, _, threads = _STATE.unpack_from(self.memory, rank * RANK)
        start = rank * RANK + _WAITS
        places = (start + _PAIR.size * index for index in range(min(threads, WAITS)))
        return [_PAIR.unpack_from(self.memory, at) for at in places if state in (WAITING, HELPED)]

    def _flag(self, rank, field: int, value: int) -> None:
        struct.pack_into("<Q", self.memory, rank * RANK + field, value)

    def _read(self, rank, field: int) -> int:
        return struct.unpack_from("<Q", self.memory, rank * RANK + field)[0]
