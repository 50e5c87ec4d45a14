"""When each rank did what."""

import numpy as np

from lib.draw import style
from lib.draw.compare import compare
from lib.draw.events import MOST, Read, chosen_ranks, read
from lib.draw.picture import Mark, Picture
from lib.draw.scales import axis, legend
from lib.draw.ticks import tick_of, whole
from lib.draw.told import data_of
from lib.draw.words import has_rows, in_words
from lib.ledger import Ledger

_LEFT, _RIGHT, _TOP = 62, 14, 8  # px around a timeline
_COMPUTE, _GAP = 18, 9  # px of a rank: what it computes, and paper below
_COMM = (16, 13, 8, 6)  # px of a line of communication, where a rank needs one, two, ... of them


def timeline(ledger: Ledger, over: Ledger | None = None) -> Picture:
    """Draw when each rank computed and communicated: rank 0 on top, time to the right.

    Waiting for the last rank of a group is hatched, moving is filled, idle is paper; the rows of
    `over` (a prediction, another run) lie over it as dashed outlines, from the same zero.
    """
    has_rows(ledger, "timeline")
    if over is not None:
        has_rows(over, "timeline")
    # 1. the ranks, and the scale: both ledgers from their first start
    ranks, odd = chosen_ranks(ledger, over)
    span = max(ledger.makespan, over.makespan if over else 0.0) or 1e-9
    # 2. what happened, few enough and in whole ticks
    rows = [len(one.where(lane=["compute", "comm"])) for one in (ledger, over) if one is not None]
    most = [min(n, max(MOST * n // max(sum(rows), 1), 1)) for n in rows]
    shown = [read(one, ranks, float(one.column("start").min()), m)
             for one, m in zip((ledger, over), most)]  # fmt: skip
    tick = tick_of(span, sum(len(one.events) for one in shown))
    line = _Lines(ranks, shown)
    difference = compare(ledger, over) if over is not None else None
    data = data_of(ledger, over, shown, tick, difference)
    data |= {"ranks": ranks, "span": max(1, round(span / tick)), "tracks": line.tracks}
    if difference and difference.missing:
        odd.append(f"{over.source} only: {', '.join(difference.missing)}")
    story = _story(ledger, over, odd, any(one.slot for one in shown))
    # 3. the still
    marks, height = _marks(data, line, shown)
    return Picture(marks, height, story, live=("timeline", data))


class _Lines:
    """Where the lines of each rank lie: one to compute, below it those to communicate."""

    def __init__(self, ranks: list[int], shown: list[Read]):
        tracks = [int(one.events.track.max(initial=-1)) + 1 for one in shown
                  if (one.events.lane == 1).any()]  # fmt: skip
        self.tracks = max(tracks, default=0)
        self.comm = _COMM[max(self.tracks, 1) - 1]
        self.rank = _COMPUTE + self.tracks * (self.comm + 1) - (self.tracks > 0) + _GAP
        self.left = _LEFT + 8 * max(0, len(str(max(ranks))) - 2)
        self.bottom = _TOP + len(ranks) * self.rank

    def y(self, place: int, lane: int, track: int) -> int:
        """The upper edge of a line."""
        return _TOP + place * self.rank + lane * (_COMPUTE + 1 + track * (self.comm + 1))


def _marks(data: dict, line: _Lines, shown: list[Read]) -> tuple[list[Mark], float]:
    """The still: what js/timeline.js lays out at 640 px."""
    right = style.WIDTH - _RIGHT
    pixels = (right - line.left) / data["span"]
    marks = [
        Mark("text", line.left - 8, line.y(place, 0, 0) + _COMPUTE / 2, fill=style.INK,
             text=f"rank {rank}", align="right")
        for place, rank in enumerate(data["ranks"])
    ]  # fmt: skip
    bars, texts = _bars(shown[0], data, line, pixels, ground=len(shown) > 1)
    marks += bars
    for one in shown[1:]:
        marks += _outlines(one, data, line, pixels)
    marks += texts + axis(line.left, right, line.bottom, data["span"] * data["tick"])
    names = {style.family(shown[0].ops[op]) for op in np.unique(shown[0].events.op)}
    keys = [(name, style.colour(name), False)
            for name in style.COMPUTE | style.COMM if name in names]  # fmt: skip
    waits = whole(shown[0].events.behind + shown[0].events.wait, data["tick"])
    if (waits * pixels > 0.5).any():
        keys.append(("waiting for the last rank", None, True))
    keys += [(one.source, None, False) for one in shown[1:]]
    more, height = legend(keys, line.left, line.bottom + 2 * style.LINE + 10)
    return marks + more, height


def _columns(one: Read, tick: float) -> list[list]:
    """What the loops below need of each event, times in ticks."""
    e = one.events
    times = [whole(c, tick) for c in (e.start, e.end, e.behind, e.behind + e.wait)]
    return [c.tolist() for c in (e.place, e.lane, e.track, e.op, e.microbatch, *times)]


def _bars(
    one: Read, data: dict, line: _Lines, pixels: float, ground: bool
) -> tuple[list[Mark], list[Mark]]:
    """Bars, and the words inside them where they fit."""
    columns, bars, texts = _columns(one, data["tick"]), [], []
    shades = [style.colour(op) for op in one.ops]
    after = zip(*(c[1:] + [-1] for c in columns[:2] + columns[5:6]))
    for (place, lane, track, op, microbatch, start, end, behind, wait), (*on, then) in zip(
        zip(*columns), after
    ):
        y, h = line.y(place, lane, track), line.comm if lane else _COMPUTE
        about = f"rank {data['ranks'][place]} {one.ops[op]}"
        x = line.left + (start + behind) * pixels
        if (wait - behind) * pixels > 0.5:
            box = Mark("box", x, y, (wait - behind) * pixels, h, edge=style.FAINT, hatch=True,
                       about=f"{about} waiting")  # fmt: skip
            bars.append(box)
            x = line.left + (start + wait) * pixels
        else:
            wait = behind
        w = max((end - start - wait) * pixels, 0.6)
        bars.append(Mark("box", x, y, w, h, fill=shades[op], edge=style.PAPER if w > 3 else None,
                         about=f"{about} {'moving' if lane else 'computing'}"))  # fmt: skip
        if on == [place, 0] and then < end:  # another span lies inside this one
            w = line.left + then * pixels - x
        text = _label(one.ops[op], microbatch, w) if h > 12 else ""
        if text:
            if ground:  # outlines pass behind the words
                wide = len(text) * style.LETTER
                box = x + (w - wide) / 2, y + h / 2 - 7, wide, 14
                texts.append(Mark("box", *box, fill=shades[op]))
            texts.append(Mark("text", x + w / 2, y + h / 2, fill=style.on(shades[op]), text=text,
                              align="middle"))  # fmt: skip
    return bars, texts


def _label(op: str, microbatch: int, width: float) -> str:
    """What fits into a bar: its name and microbatch, the microbatch alone, or nothing."""
    number = f"{microbatch}" if microbatch >= 0 else ""
    whole = op + (" " if len(op) > 1 and number else "") + number
    named = "" if op == "compute" and not number else whole
    fits = (text for text in (named, number) if width > len(text) * style.LETTER + 4)
    return next(fits, "")


def _outlines(one: Read, data: dict, line: _Lines, pixels: float) -> list[Mark]:
    marks = []
    for place, lane, track, op, _, start, end, _, _ in zip(*_columns(one, data["tick"])):
        if (end - start) * pixels < 2:  # a sliver would hide what it is laid over
            continue
        h = line.comm if lane else _COMPUTE
        marks.append(Mark("box", line.left + start * pixels, line.y(place, lane, track),
                          (end - start) * pixels, h, edge=style.INK, dash=True,
                          about=f"rank {data['ranks'][place]} {one.ops[op]}"))  # fmt: skip
    return marks


def _story(ledger: Ledger, over: Ledger | None, odd: list[str], thin: bool) -> str:
    """The same in words, without times: they differ from run to run."""
    of_rank: dict[int, list[str]] = {rank: [] for rank in ledger.ranks}
    spans = ledger.where(lane="compute")
    for rank, op in _different(spans):
        if op in style.COMPUTE and op != "compute":
            of_rank[rank].append(op)
    of_rank = {rank: sorted(words) for rank, words in of_rank.items()}
    for total in ledger.where(lane="comm").totals(("rank", "op")):
        of_rank[total.of["rank"]].append(f"{total.of['op']} × {total.count}: {total.bytes:,} bytes")
    stories: dict[str, list[int]] = {}
    for rank, words in of_rank.items():
        stories.setdefault(", ".join(words) or "computing", []).append(rank)
    lines = [f"timeline, {ledger.source}: a row a rank, time to the right"]
    lines += [f"  {in_words(ranks)}: {words}" for words, ranks in stories.items()]
    lines += [f"  {line}" for line in odd]
    if thin:
        lines.append(f"  thinned: at most {MOST:,} bars; short neighbours of one operation are one")
    return "\n".join(lines + ([f"  dashed: {over.source}"] if over else []))


def _different(ledger: Ledger) -> list[tuple[int, str]]:
    """Every (rank, op) that occurs."""
    ops = ledger._columns["op"]
    found = np.unique(ledger._columns["rank"] * max(len(ops.words), 1) + ops.codes)
    return [(int(key) // len(ops.words), ops.words[int(key) % len(ops.words)]) for key in found]
