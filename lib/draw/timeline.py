"""When each rank did what."""

import numpy as np

from lib.draw import style
from lib.draw.bars import COMPUTE, RIGHT, STACK, Lines, bars, outlines
from lib.draw.compare import compare
from lib.draw.events import MOST, Read, chosen_ranks, read
from lib.draw.memory import has_memory
from lib.draw.picture import Mark, Picture
from lib.draw.scales import axis, legend
from lib.draw.stacks import Stack, kinds_of, packed, panel, stacks
from lib.draw.stacks import in_words as peaks
from lib.draw.ticks import tick_of, whole
from lib.draw.told import data_of
from lib.draw.words import has_rows, in_words
from lib.ledger import Ledger

STATES = 1_500  # of memory that are kept under a timeline


def timeline(ledger: Ledger, over: Ledger | None = None, *, memory: bool = False) -> Picture:
    """Draw when each rank computed and communicated: rank 0 on top, time to the right.

    Waiting for the last rank of a group is hatched, moving is filled, idle is paper; the rows of
    `over` (a prediction, another run) lie over it as dashed outlines, from the same zero.
    `memory` adds the bytes alive on each rank under its bars, zoomed and played with them.
    """
    has_rows(ledger, "timeline")
    if over is not None:
        has_rows(over, "timeline")
    if memory:
        has_memory(ledger)
    # 1. the ranks, and the scale: both ledgers from their first start
    ranks, odd = chosen_ranks(ledger, over)
    span = max(ledger.makespan, over.makespan if over else 0.0) or 1e-9
    # 2. what happened, few enough and in whole ticks
    rows = [len(one.where(lane=["compute", "comm"])) for one in (ledger, over) if one is not None]
    room = MOST // 2 if memory else MOST
    most = [min(n, max(room * n // max(sum(rows), 1), 1)) for n in rows]
    shown = [read(one, ranks, float(one.column("start").min()), m)
             for one, m in zip((ledger, over), most)]  # fmt: skip
    tick = tick_of(span, sum(len(one.events) for one in shown))
    line = Lines(ranks, shown, memory)
    difference = compare(ledger, over) if over is not None else None
    data = data_of(ledger, over, shown, tick, difference)
    data |= {"ranks": ranks, "span": max(1, round(span / tick)), "tracks": line.tracks}
    if difference and difference.missing:
        odd.append(f"{over.source} only: {', '.join(difference.missing)}")
    thin = [f"{MOST:,} bars; short neighbours of one operation are one"] * any(
        one.slot for one in shown
    )
    held = stacks(ledger, ranks, float(ledger.column("start").min()), STATES) if memory else []
    if held:
        data["memory"] = packed(held, kinds_of(ledger), tick)
        odd += [f"{in_words(who)}: {text}" for who, text in peaks(held)]
        if sum(len(stack.time) for stack in held) < len(ledger.where(lane="memory")):
            thin.append(f"{STATES:,} moments of memory; every peak is kept")
    story = _story(ledger, over, odd + [f"thinned: at most {what}" for what in thin])
    # 3. the still
    marks, height = _marks(data, line, shown, held)
    return Picture(marks, height, story, live=("timeline", data))


def _marks(
    data: dict, line: Lines, shown: list[Read], held: list[Stack]
) -> tuple[list[Mark], float]:
    """The still: what js/timeline.js lays out at 640 px."""
    right = style.WIDTH - RIGHT
    pixels = (right - line.left) / data["span"]
    marks = [
        Mark("text", line.left - 8, line.y(place, 0, 0) + COMPUTE / 2, fill=style.INK,
             text=f"rank {rank}", align="right")
        for place, rank in enumerate(data["ranks"])
    ]  # fmt: skip
    drawn, texts = bars(shown[0], data, line, pixels, ground=len(shown) > 1)
    marks += drawn
    for one in shown[1:]:
        marks += outlines(one, data, line, pixels)
    for stack in held:
        x = lambda seconds: line.left + seconds / data["tick"] * pixels
        y = line.stack(data["ranks"].index(stack.rank))
        marks += panel(stack, data["memory"]["kinds"], x, right, y, STACK, data["memory"]["top"])
    marks += texts + axis(line.left, right, line.bottom, data["span"] * data["tick"])
    names = {style.family(shown[0].ops[op]) for op in np.unique(shown[0].events.op)}
    keys = [(name, style.colour(name), False)
            for name in style.COMPUTE | style.COMM if name in names]  # fmt: skip
    waits = whole(shown[0].events.behind + shown[0].events.wait, data["tick"])
    if (waits * pixels > 0.5).any():
        keys.append(("waiting for the last rank", None, True))
    keys += [(one.source, None, False) for one in shown[1:]]
    if held:
        keys += [(kind, style.memory(kind), False) for kind in data["memory"]["kinds"]]
    more, height = legend(keys, line.left, line.bottom + 2 * style.LINE + 10)
    return marks + more, height


def _story(ledger: Ledger, over: Ledger | None, odd: list[str]) -> str:
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
    return "\n".join(lines + ([f"  dashed: {over.source}"] if over else []))


def _different(ledger: Ledger) -> list[tuple[int, str]]:
    """Every (rank, op) that occurs."""
    ops = ledger._columns["op"]
    found = np.unique(ledger._columns["rank"] * max(len(ops.words), 1) + ops.codes)
    return [(int(key) // len(ops.words), ops.words[int(key) % len(ops.words)]) for key in found]
