"""The schedule explorer: a pipeline schedule played on paper, to be turned and edited by hand."""

from dataclasses import replace

import numpy as np

from lib.draw.parts import captions, style
from lib.draw.parts.picture import Picture
from lib.predict.pipeline.actions import Schedule, ScheduleError
from lib.predict.pipeline.play import Costs, Run, play
from lib.predict.pipeline.schedules import (
    gpipe,
    interleaved,
    naive,
    one_f_one_b,
    zb_h1,
    zb_h2,
    zb_v,
)

# What the picture can choose from: how many stages each rank has (0: `chunks`), and the rule.
KINDS = {
    "naive": (1, naive),
    "gpipe": (1, gpipe),
    "1f1b": (1, one_f_one_b),
    "interleaved": (0, interleaved),
    "zb-h1": (1, zb_h1),
    "zb-h2": (1, zb_h2),
    "zb-v": (2, zb_v),
}
MOST_RANKS, MOST_ACTIONS = 32, 8_000  # drawn; play() counts larger ones
_TIMES = ("forward", "backward_input", "backward_weight", "send")


def schedule(
    kind: str | Schedule = "1f1b",
    stages: int = 4,
    microbatches: int = 8,
    chunks: int = 2,
    costs: Costs | None = None,
    *,
    unit: str = "",
    par: float | None = None,
    limit: float | None = None,
    text: str = "",
    caption: str = "",
) -> Picture:
    """Draw a pipeline schedule with its three bubbles and the memory it keeps, alive.

    `kind` is one of KINDS, or a Schedule. `stages` are those of the whole model: "interleaved"
    gives each rank `chunks` of them, "zb-v" two. `unit` is that of the costs, "s", or "" for plain
    numbers. Where messages take time a control says whether they queue (at first as `costs.link`
    has it). A bar can be dragged to another place in its row, and the picture says whether that
    order is legal, and why not. `caption` says where the costs come from.

    `par` is a makespan to reach, `limit` the microbatches that a rank may keep: with either, the
    picture is an exercise. It says whether the goals are met, and offers bars to move, but no other
    schedule and no other times. `text` is the reader's own attempt, which is then shown in place of
    `kind`, as long as it is a legal schedule of the same size; a button leads back to `kind`.
    """
    costs = costs or Costs()
    made = kind if isinstance(kind, Schedule) else _made(kind, stages, microbatches, chunks)
    _can_be_drawn(made)
    _goals(par, limit)
    own, unread = _attempt(text, made)
    start, kind = made, kind if own is None else own
    made = start if own is None else own
    run = play(made, costs)
    made = run.schedule  # pairs in turn are no pairs
    if not run.work.sum():
        raise ValueError("There is nothing to draw: every action takes 0. Give F, I or W a time.")
    data = _data(kind, made, chunks, costs) | {"unit": unit, "par": par, "limit": limit}
    data |= {"more": captions.joined(caption), "isExercise": bool(par or limit), "unread": unread}
    data["start"] = "" if own is None else str(start)
    return Picture(_story(run, unit), ("schedule", data))


def _made(kind, stages, microbatches, chunks) -> Schedule:
    if kind not in KINDS:
        raise ValueError(f"No schedule is called {kind!r}: {', '.join(KINDS)}, or give a Schedule.")
    numbers = {"stages": stages, "microbatches": microbatches, "chunks": chunks}
    for name, number in numbers.items():
        if not isinstance(number, int | np.integer) or number < 1:
            raise ValueError(f"{name} is {number!r}: a schedule has at least 1, a whole number.")
    each, rule = KINDS[kind]
    return rule(stages, microbatches) if each else rule(stages, microbatches, chunks)


def _attempt(text: str, start: Schedule) -> tuple[Schedule | None, str]:
    """The schedule of a reader's text, or a sentence that says why it cannot be drawn."""
    if not text.strip():
        return None, ""
    try:
        own = Schedule.read(text)
    except ScheduleError as wrong:
        return None, f"Your text is not drawn. {wrong.sentence}"
    except ValueError as wrong:
        return None, f"Your text is not drawn, because it is no schedule: {wrong}"
    own = Schedule([list(row) for row in own], "your schedule")
    if (own.stages, own.microbatches, own.ranks) == (start.stages, start.microbatches, start.ranks):
        return (None if own == start else own), ""
    size = f"{own.stages} stages, {own.microbatches} microbatches and {own.ranks} ranks"
    return None, f"Your text is not drawn: it has {size}, unlike the schedule below."


def _can_be_drawn(made: Schedule) -> None:
    actions = len(made.grid.codes)
    if made.ranks > MOST_RANKS or actions > MOST_ACTIONS:
        raise ValueError(
            f"{made.ranks} ranks with {actions:,} actions are too many to draw: at most "
            f"{MOST_RANKS} ranks and {MOST_ACTIONS:,} actions. play() counts larger ones."
        )


def _goals(par, limit) -> None:
    for name, goal in (("par", par), ("limit", limit)):
        if goal is not None and not goal > 0:
            raise ValueError(f"{name} is {goal!r}: give a number above 0, or leave it out.")


def _data(kind, made: Schedule, chunks: int, costs: Costs) -> dict:
    """What the living picture starts from: the controls' values, and the shape of the costs.

    A slider's time is that of all stages of a rank together (lib/draw/js/schedule.js says why).
    """
    stages, ranks = made.stages, made.ranks
    each = {name: costs.each(name, stages - (name == "send")) for name in _TIMES}
    values = {name: float(all_.mean()) if len(all_) else 0.0 for name, all_ in each.items()}
    if not len(each["send"]) and np.ndim(costs.send) == 0:
        values["send"] = float(costs.send)
    for name in _TIMES[:3]:
        values[name] *= stages / ranks
    uneven = {name: list(all_) for name, all_ in each.items() if len(set(all_)) > 1}
    plain = replace(costs, backward=None).table(stages)  # a given time keeps its ratio to this
    ratios = {}
    if costs.backward is not None:
        ratios["backward"] = _ratio(costs.each("backward", stages), plain[1])
    if costs.overlap is not None:
        both = plain[0] + costs.table(stages)[1]
        ratios["overlap"] = _ratio(costs.each("overlap", stages), both)
    if (added := costs.each("accumulate", stages)).any():
        ratios["accumulate"] = _ratio(added, plain[3])
    own = isinstance(kind, Schedule)
    microbatches = made.microbatches
    return {
        "kind": "given" if own else kind, "name": made.name, "rows": str(made) if own else "",
        "ranks": ranks, "microbatches": microbatches, "chunks": chunks,
        "most": {"ranks": max(16, ranks), "microbatches": max(64, microbatches),
                 "chunks": max(4, chunks)},
        "values": values, "scale": _scale(values), "shapes": uneven, "ratios": ratios,
        "block": costs.sends_block, "link": costs.link or "", "ahead": costs.ahead,
        "several": stages > ranks,
    }  # fmt: skip


def _ratio(given, usual) -> list[float]:
    if ((usual == 0) & (given > 0)).any():
        raise ValueError(
            "Costs: a whole backward, an overlapped pair or an addition to a gradient takes time, "
            "but its parts take none: the picture's sliders turn the parts. Give them times too."
        )
    return (given / np.where(usual == 0, 1, usual)).tolist()


def _scale(values: dict) -> dict:
    """How far each slider goes, and in which steps: three times the longest, in tenths of it."""
    longest = max(values.values()) or 1.0
    step = 10.0 ** np.floor(np.log10(longest) - 1 + 1e-9)
    most = max(3 * longest, 4 * 10 * step)
    return {name: {"max": float(f"{most:.6g}"), "step": float(f"{step:.6g}")} for name in values}


def _story(run: Run, unit: str) -> str:
    """The same in words."""
    made, table = run.schedule, run.costs.table(run.schedule.stages)
    times = {"F": table[0], "I": table[2], "W": table[3]}
    if run.costs.backward is not None:
        times["B"] = table[1]
    send = run.costs.each("send", made.stages - 1)
    times["send"] = send if len(send) else [0.0]
    plural = lambda number, noun: f"{number} {noun}{'s' * (number != 1)}"
    parts = ", ".join(f"{word} {_range(all_, unit)}" for word, all_ in times.items())
    if run.costs.link and not run.costs.sends_block:
        parts += f", queued by {run.costs.link}"
    return "\n".join((
        f"{made.name}: {plural(made.stages, 'stage')} on {plural(len(made), 'rank')}, "
        f"{_batches(made.microbatches)}; {parts}",
        f"  makespan {_figure(run.makespan, unit)}; bubble share {_percent(run.bubble('share'))}, "
        f"overhead {_percent(run.bubble('overhead'))}, span {_percent(run.bubble('span'))}",
        "  microbatches alive at most, by stage: " + ", ".join(map(str, run.peak_microbatches)),
    ))  # fmt: skip


def _range(all_, unit: str) -> str:
    low, high = (_figure(value, unit) for value in (min(all_), max(all_)))
    return low if low == high else f"{low} to {high}"


def _figure(value: float, unit: str = "") -> str:
    """A number in four digits, or in three with its unit."""
    if unit:
        return style.amount(value, unit)
    if not value or abs(value) >= 1000:
        return f"{round(value):,}"
    digits = 10.0 ** (3 - np.floor(np.log10(abs(value))))
    return f"{round(value * digits) / digits:.12g}"


def _percent(share: float) -> str:
    """A share in per cent, to one tenth."""
    return f"{round(share * 1000) / 10:.1f} %"


def _batches(number: float) -> str:
    """1 is "1 microbatch", 5.5 is "5.5 microbatches"."""
    return f"{_figure(number)} microbatch{'es' * (number != 1)}"
