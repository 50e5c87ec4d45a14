"""What a living timeline knows beyond its bars: columns of whole numbers, and sentences of times.

Sentences with times travel as data and never in the summary, which is compared strictly.
"""

from collections import Counter

import numpy as np

from lib.draw.parts import style
from lib.draw.parts.packing import coded, column, pairs, whole
from lib.draw.parts.words import named
from lib.draw.timelines.compare import Difference
from lib.draw.timelines.critical_path import bubble, critical_path
from lib.draw.timelines.events import Read
from lib.draw.timelines.programs import Program
from lib.ledger import Ledger

STEPS = 2_000  # of a critical path that are kept
SMALL = 0.01  # of an operation's time: a smaller difference is not named


def data_of(
    programs: list[Program], over: Ledger | None, shown: list[Read], tick: float,
    found: Difference | None,
) -> dict:  # fmt: skip
    """Everything that js/timeline.js draws and says, but for the places of ranks."""
    paths = [critical_path(one.ledger) for one in programs]
    said = {
        "bubble": "\n".join(map(_bubble, programs)),
        "path": "\n".join(map(_path, programs, paths)),
    }
    first = programs[0]
    ledger = first.ledger
    if over is not None:
        said["names"] = _names(ledger, over)
    if any(one.slot for one in shown):
        said["thin"] = _thinned(shown)
    data = {"tick": tick, "runs": [_columns(one, tick) for one in shown], "said": said}
    if over is not None:
        data["heading"] = _difference(ledger, over, found)
    if over is not None and not any(one.slot for one in shown):
        data["pairs"] = _pairs(shown, found.pairs)
    if sum(map(len, paths)) <= STEPS:
        steps = [_steps(path, tick, one.first) for path, one in zip(paths, programs)]
        data |= {"paths": steps} if first.name else {"path": steps[0]}
    if first.name or first.rows:
        data["names"] = [name for one in programs for name in one.names().values()]
    if first.name:
        data["groups"] = [[one.name, one.labels] for one in programs]
    return data


def _steps(path: list, tick: float, first: int) -> dict:
    """The steps of a critical path: each begins where the one before it ends."""
    ops, lanes = sorted({step.op for step in path}), ("compute", "comm", "idle")
    end = whole(np.array([step.end for step in path]), tick)
    begin = round(path[0].start / tick)
    return {
        "n": len(path), "ops": ops, "begin": begin, "length": column(np.diff(end, prepend=begin)),
        "op": column(np.array([ops.index(step.op) for step in path])),
        "rank": column(np.array([first + step.rank for step in path])),
        "lane": column(np.array([lanes.index(step.lane) for step in path])),
    }  # fmt: skip


def _columns(one: Read, tick: float) -> dict:
    """The events of a ledger as columns of whole numbers, as js/events.js reads them."""
    e = one.events
    start, end = whole(e.start, tick), whole(e.end, tick)
    behind, wait = whole(e.behind, tick), whole(e.behind + e.wait, tick)
    line = e.place * 2 + e.lane
    first = np.diff(line, prepend=-1) != 0
    gap = start - np.where(first, 0, np.roll(end, 1))
    notes = one.notes if sum(map(len, one.notes)) < 2_000 else []
    return {
        "source": one.source, "n": len(e), "ops": one.ops, "groups": one.groups, "notes": notes,
        "line": pairs(line), "gap": column(gap), "length": column(end - start),
        "behind": column(behind), "wait": column(wait - behind), "op": column(e.op),
        "bytes": coded(e.bytes), "stage": column(e.stage), "microbatch": column(e.microbatch),
        "number": column(e.number), "peer": column(e.peer), "group": column(e.group),
        "note": column(e.note) if notes else 0, "track": column(e.track),
        "count": column(e.count), "half": column(e.half),
    }  # fmt: skip


def _pairs(shown: list[Read], same: np.ndarray):
    """For each event of the run laid over, the event under it, told from the one before; or -1."""
    place = np.full(int(shown[0].rows.max(initial=0)) + 2, -1)
    place[shown[0].rows] = np.arange(len(shown[0].rows))
    return column(place[same[shown[1].rows]] - np.arange(len(shown[1].rows)))


def _bubble(program: Program) -> str:
    idle, of = bubble(program.ledger), f" of {program.name}" * bool(program.name)
    parts = zip(program.labels, idle.by_rank.values())
    ranks = ", ".join(f"{label} {part:.1%}" for label, part in parts)
    return (
        f"Bubble{of}: {idle.share:.1%} of all ranks' time is idle, which means not computing "
        f"({ranks})."
    )


def _path(program: Program, path: list) -> str:
    spent, ranks, of = Counter(), Counter(), f" of {program.name}" * bool(program.name)
    for step in path:
        what = {"compute": step.op, "comm": f"{step.op} moving", "idle": "not explained"}[step.lane]
        spent[what] += step.end - step.start
        ranks[step.rank] += step.end - step.start
    parts = ", ".join(f"{what} {style.amount(s, 's')}" for what, s in spent.most_common())
    rank, most = ranks.most_common(1)[0]
    share = most / (sum(ranks.values()) or 1.0)
    label = program.labels[program.ledger.ranks.index(rank)]
    return (
        f"Critical path{of}, the chain of steps that the end had to wait for: {parts}; "
        f"{share:.0%} of it on {label}."
    )


def _names(ledger: Ledger, over: Ledger) -> tuple[str, str]:
    """What the two runs are called."""
    if ledger.source == over.source:
        return "this run", "the one in outlines"
    return ledger.source, over.source


def _difference(ledger: Ledger, over: Ledger, found: Difference) -> str:
    here, there = ledger.makespan, over.makespan
    one, other = _names(ledger, over)
    text = f"{one.capitalize()} {style.amount(here, 's')}, {other} {style.amount(there, 's')}: "
    if abs(found.makespan) < 5e-4 * here:
        text += "equally long."
    else:
        share = f" ({_share(abs(found.makespan) / there)})" if there else ""
        text += f"{style.amount(abs(found.makespan), 's')}{share} {_way(found.makespan)}."
    left_out = _not_compared(found, one, other)
    text += left_out
    if found.worst is None:
        return f"{text} No operation is in both{' as often' if found.uneven else ''}."
    if abs(found.seconds) < 1e-6 * here:
        same = "The other operations do not differ." if left_out else "No operation differs."
        return f"{text} {same}"
    if abs(found.seconds) < SMALL * found.length:
        return f"{text} The operation that differs most differs by less than {SMALL:.0%}."
    rank, op, microbatch = found.worst
    text += f" Largest difference: rank {rank}, {named(op, microbatch)} takes "
    text += f"{style.amount(abs(found.seconds), 's')} {_way(found.seconds)} than {other}"
    if found.waiting * found.seconds > 0 and abs(found.waiting) > 0.05 * abs(found.seconds):
        text += f", {style.amount(abs(found.waiting), 's')} of it waiting"
    return f"{text}."


def _share(part: float) -> str:
    return f"{part:.0%}" if part >= 0.005 else "under 1%"


def _not_compared(found: Difference, one: str, other: str) -> str:
    """Say what has no like in the other run; the rest of what ranks did is compared."""
    parts = [f"{u.op} on rank {u.rank} ({one} {u.here} ×, {other} {u.there} ×)"
             for u in found.uneven]  # fmt: skip
    for run, ops in ((one, found.added), (other, found.missing)):
        ops = [op for op in ops if op != "compute"]  # what lies between all others
        parts += [f"only {run} has {', '.join(ops)}"] if ops else []
    return f" Not compared: {'; '.join(parts)}." if parts else ""


def _way(seconds: float) -> str:
    return "longer" if seconds > 0 else "shorter"


def _thinned(shown: list[Read]) -> str:
    rows, kept = sum(len(one.rows) for one in shown), sum(len(one.events) for one in shown)
    slot = style.amount(max(one.slot for one in shown), "s")
    return (
        f"Thinned: {rows:,} rows are {kept:,} bars. What is shorter than {slot} is put together "
        "with its neighbours of the same operation, and moved by less than that."
    )
