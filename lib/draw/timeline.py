"""When each rank did what."""

from collections.abc import Mapping

import numpy as np

from lib.draw.memory import has_memory
from lib.draw.parts import captions, style
from lib.draw.parts.packing import tick_of
from lib.draw.parts.picture import Picture
from lib.draw.parts.words import has_rows
from lib.draw.timelines.compare import compare
from lib.draw.timelines.events import MOST, Read, chosen_ranks, read
from lib.draw.timelines.programs import in_words, programs_of, together
from lib.draw.timelines.stacks import in_words as peaks
from lib.draw.timelines.stacks import kinds_of, packed, stacks
from lib.draw.timelines.timeline_data import data_of
from lib.ledger import Ledger
from lib.predict.arguments import real

STATES = 1_500  # of memory that are kept under a timeline


def timeline(ledger: Ledger | Mapping[str, Ledger], over: Ledger | None = None, *,
             memory: bool = False, caption: str = "", rows=(), until: float = 0.0
             ) -> Picture:  # fmt: skip
    """Draw when each rank computed and communicated: rank 0 on top, time to the right.

    Waiting for the last rank of a group is hatched, moving is filled, idle is paper; the rows of
    `over` (a prediction, another run) lie over it as outlines, dashed if predicted, from the same
    zero, and a heading says how far the two differ. `memory` adds the bytes alive on each rank
    under its bars, zoomed and played with them. `caption` is a sentence after the one that the
    ledgers give. `rows` are names for the rows, from the top, where these are no ranks. The axis
    reaches to `until` (s) at least, so that two pictures can have the same one.

    Several programs, {"GPipe": one, "1F1B": other}, are groups of rows under one another, each
    under its name and from its own start, with idle time and a critical path of its own.
    """
    programs = programs_of(ledger, rows)
    ledger = together(programs)
    if over is not None:
        has_rows(over, "timeline")
        if programs[0].name:
            raise ValueError("No run lies over several programs: draw each of them alone with it.")
    if memory:
        has_memory(ledger)
    # 1. the ranks, and the scale: both ledgers from their first start
    ranks, odd = chosen_ranks(ledger, over, programs)
    span = max(ledger.makespan, over.makespan if over else 0.0, real(until, "until")) or 1e-9
    names = {rank: name for one in programs for rank, name in one.names().items()}
    # 2. what happened, few enough and in whole ticks
    many = [len(one.where(lane=["compute", "comm"])) for one in (ledger, over) if one is not None]
    room = MOST // 2 if memory else MOST
    most = [min(n, max(room * n // max(sum(many), 1), 1)) for n in many]
    shown = [read(one, ranks, float(one.column("start").min()), m, names)
             for one, m in zip((ledger, over), most)]  # fmt: skip
    tick = tick_of(span, sum(len(one.events) for one in shown))
    difference = compare(ledger, over) if over is not None else None
    data = data_of(programs, over, shown, tick, difference)
    data |= {"ranks": ranks, "span": max(1, round(span / tick)), "tracks": _tracks(shown)}
    each = captions.of_each({one.name: one.ledger for one in programs})
    data["caption"] = (captions.joined(*each, caption) if over is None
                       else captions.of_two(ledger, over, caption))  # fmt: skip
    if difference and difference.missing:
        odd.append(f"{over.source} only: {', '.join(difference.missing)}")
    thin = [f"{MOST:,} bars; short neighbours of one operation are one"] * any(
        one.slot for one in shown
    )
    held = stacks(ledger, ranks, float(ledger.column("start").min()), STATES) if memory else []
    if held:
        data["memory"] = packed(held, kinds_of(ledger), tick)
        odd += [f"{in_words(programs, who)}: {text}" for who, text in peaks(held)]
        if sum(len(stack.time) for stack in held) < len(ledger.where(lane="memory")):
            thin.append(f"{STATES:,} moments of memory; every peak is kept")
    odd += [f"thinned: at most {what}" for what in thin]
    return Picture(_story(programs, ledger, over, odd), ("timeline", data))


def _tracks(shown: list[Read]) -> int:
    """How many lines a rank needs for what it communicates."""
    tracks = [int(one.events.track.max(initial=-1)) + 1 for one in shown
              if (one.events.lane == 1).any()]  # fmt: skip
    return max(tracks, default=0)


def _story(programs, ledger: Ledger, over: Ledger | None, odd: list[str]) -> str:
    """The picture in words; `odd` are lines on what is not as one would expect."""
    sources = ", ".join(dict.fromkeys(one.ledger.source for one in programs))
    lines = [f"{in_words(programs, who)}: {text}" for text, who in _stories(ledger).items()] + odd
    if over is not None:
        lines.append(f"{captions.outline(over)}: {over.source}")
    first = f"timeline, {sources}: a row a rank, time to the right"
    return "\n".join([first, *(f"  {line}" for line in lines)])


def _stories(ledger: Ledger) -> dict[str, list[int]]:
    """What is done, in words without times, which differ from run to run; and by which ranks."""
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
    return stories


def _different(ledger: Ledger) -> list[tuple[int, str]]:
    """Every (rank, op) that occurs."""
    ops = ledger.columns["op"]
    found = np.unique(ledger.columns["rank"] * max(len(ops.words), 1) + ops.codes)
    return [(int(key) // len(ops.words), ops.words[int(key) % len(ops.words)]) for key in found]
