"""Schedules beside one another: how long each takes, its three bubbles, what each rank keeps."""

from dataclasses import replace
from typing import NamedTuple

from lib.predict.actions import Schedule
from lib.predict.play import Costs, play

_WHOLE = 5040  # bytes that stand for one microbatch of a whole rank: up to 10 stages share it


class Score(NamedTuple):
    """A schedule that was played; `alive` counts microbatches of a whole rank, at most, by rank."""

    name: str
    makespan: float
    share: float
    overhead: float
    span: float
    alive: tuple[float, ...]


def score(schedule: Schedule, costs: Costs | None = None) -> Score:
    """Play a schedule. `costs` are those of a rank: its stages share F, I and W equally.

    So schedules that give a rank one stage, or two thin ones, do the same work.
    """
    costs, each = costs or Costs(), schedule.stages // schedule.ranks
    parts = ("forward", "backward_input", "backward_weight")
    thin = {part: getattr(costs, part) / each for part in parts}
    run = play(schedule, replace(costs, **thin, activation=_WHOLE // each))
    bubbles = [run.bubble(name) for name in ("share", "overhead", "span")]
    alive = tuple(held / _WHOLE for held in run.peak_bytes)
    return Score(schedule.name, run.makespan, *bubbles, alive)


def table(*schedules: Schedule, costs: Costs | None = None) -> str:
    """The scores of schedules as text, a line each; `costs` as in `score`."""
    lines = [f"{'':<18}{'makespan':>9}{'share':>8}{'overhead':>10}{'span':>8}   alive, by rank"]
    for schedule in schedules:
        name, makespan, share, overhead, span, alive = score(schedule, costs)
        title = f"{name}, m = {schedule.microbatches}"
        kept = " ".join(f"{count:g}" for count in alive)
        lines.append(
            f"{title:<18}{makespan:>9g}{share:>8.1%}{overhead:>10.1%}{span:>8.1%}   {kept}"
        )
    return "\n".join(lines)
