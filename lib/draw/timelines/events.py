"""What a timeline is drawn from: the rows of a ledger in order, in whole ticks, few enough."""

from dataclasses import dataclass, fields

import numpy as np

from lib.draw.parts.words import in_words
from lib.draw.timelines.programs import Program
from lib.draw.timelines.thinning import thinned
from lib.ledger import Ledger
from lib.ledger.columns import keys, take

MOST = 8_000  # events that a picture keeps; more are thinned
RANKS = 64  # that fit on a page
LANES = ("compute", "comm")
_ENDS = ("send", "recv")


@dataclass
class Events:
    """Columns, a row for each event, in order of place, lane and start; seconds from the start.

    `place` is the line of the rank, `lane` 0 for compute and 1 for comm, `track` which of several
    comm lines, `behind` what it spent behind an earlier operation of its own group, `wait` what it
    then waited for the last rank, `count` how many rows were thinned into one.
    """

    place: np.ndarray
    lane: np.ndarray
    op: np.ndarray  # a code: ops[code]
    start: np.ndarray
    end: np.ndarray
    behind: np.ndarray
    wait: np.ndarray
    bytes: np.ndarray
    stage: np.ndarray
    microbatch: np.ndarray
    number: np.ndarray
    peer: np.ndarray
    group: np.ndarray  # a code: groups[code]
    note: np.ndarray  # a code: notes[code]
    track: np.ndarray
    count: np.ndarray
    half: np.ndarray  # 1 and 2: two spans of the same times share the line (overlapped F and B)

    def __len__(self) -> int:
        return len(self.start)

    def at(self, index) -> "Events":
        """Only the events at these positions."""
        return Events(**{f.name: getattr(self, f.name)[index] for f in fields(self)})


@dataclass
class Read:
    """The events of a ledger with the words their codes stand for, and what was thinned."""

    events: Events
    ops: list[str]
    groups: list[str]
    notes: list[str]
    source: str
    rows: np.ndarray  # the ledger's row of each event, before thinning
    slot: float = 0.0  # events shorter than this (s) were put together; 0.0: none


def read(ledger: Ledger, ranks, zero: float, most: int = MOST, names=None) -> Read:
    """Read what `ranks` computed and communicated, on a clock that starts at `zero`.

    `names` are what ranks are called, where they are not "rank 0". Raises ValueError where a rank
    would compute two things at once that do not nest.
    """
    inside = ledger.columns["lane"].mask(LANES.__contains__)
    at = np.flatnonzero(inside & np.isin(ledger.columns["rank"], ranks))
    shown = ledger[at]
    columns = shown.columns
    place = np.searchsorted(ranks, columns["rank"])
    lane = columns["lane"].mask(lambda name: name == "comm").astype(np.int64)
    start, end = columns["start"] - zero, columns["end"] - zero
    order = np.lexsort((-end, start, lane, place))
    ordered = {name: take(column, order) for name, column in columns.items()}
    place, lane, start, end = (column[order] for column in (place, lane, start, end))
    _refuse_crossing(
        place,
        lane,
        start,
        end,
        ordered,
        [(names or {}).get(rank, f"rank {rank}") for rank in ranks],
    )
    behind = _behind(ordered, place, lane, start, end)
    waiting = take(shown.column("waiting"), order)
    words = {name: ordered[name] for name in ("op", "group", "note")}
    events = Events(
        place, lane, words["op"].codes.astype(np.int64), start, end, behind,
        np.maximum(waiting - behind, 0.0), ordered["bytes"], ordered["stage"],
        ordered["microbatch"], ordered["number"], ordered["peer"],
        words["group"].codes.astype(np.int64), words["note"].codes.astype(np.int64),
        np.zeros(len(place), np.int64), np.ones(len(place), np.int64),
        _halves(place, lane, start, end),
    )  # fmt: skip
    found = Read(events, *(list(words[name].words) for name in ("op", "group", "note")),
                 ledger.source, at[order])  # fmt: skip
    if len(events) > most:
        found.events, found.slot = thinned(events, most)
    found.events.track = _tracks(found.events)
    return found


def _refuse_crossing(place, lane, start, end, columns, names) -> None:
    """A rank does one thing at a time; a span may lie inside another, but not across its end."""
    at = np.flatnonzero(lane == 0)
    if len(at) < 2:
        return
    place, start, end = place[at], start[at], end[at]
    slack = 1e-6 * float(end.max() - start.min())  # clocks of hosts are not that exact
    if not ((place[1:] == place[:-1]) & (start[1:] < end[:-1] - slack)).any():
        return  # one after the other, as the recorder writes them
    open_: list[int] = []
    for i in range(len(at)):
        while open_ and (place[open_[-1]] != place[i] or end[open_[-1]] <= start[i] + slack):
            open_.pop()
        if open_ and end[i] > end[open_[-1]] + slack:
            one, other = (int(at[j]) for j in (open_[-1], i))
            ops = [take(columns["op"], [j]).tolist()[0] for j in (one, other)]
            who = names[place[i]]
            raise ValueError(
                f"{who[0].upper()}{who[1:]} computes two things at once: {ops[0]} until "
                f"{end[open_[-1]]:.9g} s, and {ops[1]} from {start[i]:.9g} s to {end[i]:.9g} s. "
                "Spans follow one another or lie inside one another: correct these rows."
            )
        open_.append(i)


def _halves(place, lane, start, end) -> np.ndarray:
    """1 and 2 for two compute events of the same times, one above the other; else 0."""
    same = (place[1:] == place[:-1]) & (lane[1:] == 0) & (start[1:] == start[:-1])
    same &= (end[1:] == end[:-1]) & (end[1:] > start[1:])
    half = np.zeros(len(place), np.int64)
    half[1:][same], half[:-1][same] = 2, 1
    return half


def _behind(columns, place, lane, start, end) -> np.ndarray:
    """Seconds that each comm event spent behind the one before it in its group's lane."""
    behind = np.zeros(len(place))
    at = np.flatnonzero(lane == 1)
    if not len(at):
        return behind
    message = columns["op"].mask(_ENDS.__contains__).astype(np.int64)[at]
    group, members = (take(columns[name], at) for name in ("group", "members"))
    key = keys([place[at], group, members, message])
    order = np.lexsort((end[at], start[at], key))  # of one moment: what ends first is in front
    same = np.diff(key[order], prepend=key[order[0]] - 1) == 0
    before = np.where(same, np.roll(end[at][order], 1), -np.inf)
    late = np.clip(before - start[at][order], 0.0, (end - start)[at][order])
    behind[at[order]] = late
    return behind


def _tracks(events: Events) -> np.ndarray:
    """The line of each comm event: the first that is free, so that no bar hides another."""
    track = np.zeros(len(events), np.int64)
    at = np.flatnonzero(events.lane == 1)
    if len(at) < 2:
        return track
    at = at[np.lexsort((events.start[at] + events.behind[at], events.place[at]))]
    start, end = (events.start + events.behind)[at], events.end[at]
    slack = 0.002 * float(events.end.max())  # about a pixel
    if not ((np.diff(events.place[at]) == 0) & (start[1:] < end[:-1] - slack)).any():
        return track
    busy, now = [], -1
    for i, place, begins, ends in zip(
        at.tolist(), events.place[at].tolist(), start.tolist(), end.tolist()
    ):
        if place != now:
            busy, now = [], place
        line = next((n for n, until in enumerate(busy) if until <= begins + slack), len(busy))
        if line == len(busy):
            busy.append(ends)
        busy[line] = max(busy[line], ends)
        track[i] = line
    return np.minimum(track, 3)


def chosen_ranks(
    ledger: Ledger, over: Ledger | None, programs: list[Program]
) -> tuple[list[int], list[str]]:
    """Return the ranks to draw, and in words those that one of the two lacks or that no one has."""
    ranks = list(ledger.ranks)
    if len(ranks) > RANKS:
        raise ValueError(
            f"A timeline of {len(ranks)} ranks fits no page: choose up to {RANKS} of them, "
            f"as in timeline(ledger.where(rank=range({RANKS})))."
        )
    said = []
    if over is not None:
        only = sorted(set(over.ranks) - set(ranks))
        none = sorted(set(ranks) - set(over.ranks))
        if only:
            said.append(f"{in_words(only)}: {over.source} rows only, not drawn")
        if none:
            said.append(f"{in_words(none)}: no {over.source} rows")
    for one in programs:
        members = {rank for row in one.ledger.columns["members"].words for rank in row}
        missing = sorted(members - set(one.ledger.ranks))
        if missing:
            whose = f"{one.name}, " * bool(one.name)
            said.append(f"{whose}{in_words(missing)}: named by a group, and without a row")
    return ranks, said
