"""Where the bars of a timeline lie, and what stands in them."""

from lib.draw import style
from lib.draw.events import Read
from lib.draw.picture import Mark
from lib.draw.stacks import BAND
from lib.draw.ticks import whole
from lib.draw.words import named

LEFT, RIGHT, TOP = 62, 14, 8  # px around a timeline
COMPUTE, GAP = 18, 9  # px of a rank: what it computes, and paper below
COMM = (16, 13, 8, 6)  # px of a line of communication, where a rank needs one, two, ... of them
STACK = 40  # px of what memory holds, under the bars of its rank


class Lines:
    """Where the lines of each rank lie: one to compute, below it those to communicate."""

    def __init__(self, ranks: list[int], shown: list[Read], memory: bool):
        tracks = [int(one.events.track.max(initial=-1)) + 1 for one in shown
                  if (one.events.lane == 1).any()]  # fmt: skip
        self.tracks = max(tracks, default=0)
        self.comm = COMM[max(self.tracks, 1) - 1]
        self.bars = COMPUTE + self.tracks * (self.comm + 1) - (self.tracks > 0)
        self.rank = self.bars + (BAND + STACK if memory else 0) + GAP
        self.left = LEFT + 8 * max(0, len(str(max(ranks))) - 2)
        self.bottom = TOP + len(ranks) * self.rank

    def y(self, place: int, lane: int, track: int) -> int:
        """The upper edge of a line."""
        return TOP + place * self.rank + lane * (COMPUTE + 1 + track * (self.comm + 1))

    def stack(self, place: int) -> int:
        """The upper edge of a rank's stack of memory."""
        return TOP + place * self.rank + self.bars + BAND


def _columns(one: Read, tick: float) -> list[list]:
    """What the loops below need of each event, times in ticks."""
    e = one.events
    times = [whole(c, tick) for c in (e.start, e.end, e.behind, e.behind + e.wait)]
    return [c.tolist() for c in (e.place, e.lane, e.track, e.half, e.op, e.microbatch, *times)]


def bars(
    one: Read, data: dict, line: Lines, pixels: float, ground: bool
) -> tuple[list[Mark], list[Mark]]:
    """Bars, and the words inside them where they fit."""
    columns, made, texts = _columns(one, data["tick"]), [], []
    shades = [style.colour(op) for op in one.ops]
    after = zip(*(c[1:] + [-1] for c in columns[:2] + columns[6:7]))
    for (place, lane, track, half, op, microbatch, start, end, behind, wait), (*on, then) in zip(
        zip(*columns), after
    ):
        y, h = line.y(place, lane, track), line.comm if lane else COMPUTE
        if half:
            h /= 2
            y += h * (half - 1)
        about = f"rank {data['ranks'][place]} {one.ops[op]}"
        x = line.left + (start + behind) * pixels
        if (wait - behind) * pixels > 0.5:
            box = Mark("box", x, y, (wait - behind) * pixels, h, edge=style.FAINT, hatch=True,
                       about=f"{about} waiting")  # fmt: skip
            made.append(box)
            x = line.left + (start + wait) * pixels
        else:
            wait = behind
        w = max((end - start - wait) * pixels, 0.6)
        made.append(Mark("box", x, y, w, h, fill=shades[op], edge=style.PAPER if w > 3 else None,
                         about=f"{about} {'moving' if lane else 'computing'}"))  # fmt: skip
        if on == [place, 0] and then < end:  # another span lies inside this one
            w = line.left + then * pixels - x
        text = _label(one.ops[op], microbatch, w) if h > 12 else ""
        if text:
            if ground:  # outlines pass behind the words
                wide = min(len(text) * style.LETTER + 8, w)
                box = x + (w - wide) / 2, y + h / 2 - 7, wide, 14
                texts.append(Mark("box", *box, fill=shades[op]))
            texts.append(Mark("text", x + w / 2, y + h / 2, fill=style.on(shades[op]), text=text,
                              align="middle"))  # fmt: skip
    return made, texts


def _label(op: str, microbatch: int, width: float) -> str:
    """What fits into a bar: its name and microbatch, the microbatch alone, or nothing."""
    number = f"{microbatch}" if microbatch >= 0 else ""
    full = "" if op == "compute" and not number else named(op, microbatch)
    fits = (text for text in (full, number) if width > len(text) * style.LETTER + 4)
    return next(fits, "")


def outlines(one: Read, data: dict, line: Lines, pixels: float) -> list[Mark]:
    """Dashed boxes where another run's bars lie."""
    marks = []
    for place, lane, track, _, op, _, start, end, _, _ in zip(*_columns(one, data["tick"])):
        if (end - start) * pixels < 2:  # a sliver would hide what it is laid over
            continue
        h = line.comm if lane else COMPUTE
        marks.append(Mark("box", line.left + start * pixels, line.y(place, lane, track),
                          (end - start) * pixels, h, edge=style.INK, dash=True,
                          about=f"rank {data['ranks'][place]} {one.ops[op]}"))  # fmt: skip
    return marks
