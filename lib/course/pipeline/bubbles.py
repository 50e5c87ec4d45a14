"""Tables that compare schedules: time, the three bubbles, and what each rank keeps."""

from dataclasses import replace
from typing import NamedTuple

from lib.ledger import Ledger
from lib.predict.pipeline.actions import Schedule
from lib.predict.pipeline.play import Costs, Run, play
from lib.predict.pipeline.schedules import repeated

STEPS = 16  # consecutive steps that are simulated for the time of a step in a run
_WHOLE = 5040  # bytes that stand for one microbatch of a whole rank: up to 10 stages share it


class Score(NamedTuple):
    """Holds the figures of a simulated schedule.

    `makespan` is the time of one step alone, `in_a_run` the time of each of STEPS consecutive steps
    in which no rank waits for the others' optimizers. `alive` is, for each rank, the most
    microbatches alive at once, in microbatches of a whole rank.
    """

    name: str
    makespan: float
    in_a_run: float
    share: float
    overhead: float
    span: float
    alive: tuple[float, ...]


def score(schedule: Schedule, costs: Costs | None = None) -> Score:
    """Simulate a schedule with `costs` of a rank, which its stages share equally.

    So schedules with one stage on a rank, or with two that are half as long, do the same work.
    """
    costs, each = costs or Costs(), schedule.stages // schedule.ranks
    parts = ("forward", "backward_input", "backward_weight", "backward", "overlap", "accumulate")
    thin = {part: time / each for part in parts if (time := getattr(costs, part)) is not None}
    thin = replace(costs, **thin, activation=_WHOLE // each)
    cleared = replace(thin, cleared=schedule.microbatches)
    run, many = play(schedule, thin), play(repeated(schedule, STEPS), cleared)
    bubbles = [run.bubble(name) for name in ("share", "overhead", "span")]
    alive = tuple(held / _WHOLE for held in run.peak_bytes)
    return Score(schedule.name, run.makespan, many.makespan / STEPS, *bubbles, alive)


def table(*schedules: Schedule, costs: Costs | None = None, in_a_run: bool = True) -> str:
    """Return the scores of schedules as two narrow tables; `costs` are those of `score`.

    The first has the time of one step, of a step in a run (if `in_a_run`), and the bubbles share,
    overhead and span in percent; the second has the microbatches that each rank keeps.
    """
    run = f"{'run':>6}" if in_a_run else ""
    times = [f"{'bubbles in %':<15}{'step':>5}{run}{'share':>6}{'over':>6}{'span':>6}"]
    kept = ["microbatches kept, by rank"]
    for schedule in schedules:
        name, makespan, each, *bubbles, alive = score(schedule, costs)
        title = f"{name.removesuffix(' 1F1B')} m={schedule.microbatches}"
        run = f"{each:>6.1f}" if in_a_run else ""
        percents = "".join(f"{100 * bubble:>6.1f}" for bubble in bubbles)
        times.append(f"{title:<15}{makespan:>5g}{run}{percents}")
        kept.append(f"{title:<15} " + " ".join(f"{count:g}" for count in alive))
    return "\n".join([*times, *kept])


def table_of_runs(*runs: Run) -> str:
    """Return the step (ms), share, span and uneven work of predicted runs, in percent, as text.

    Uneven work is 1 - mean ÷ longest work of a rank: the idle share that no order can avoid.
    """
    width = max([len(run.schedule.name) for run in runs] + [12])
    lines = [f"{'bubbles in %':<{width}}{'step, ms':>9}{'share':>7}{'span':>7}{'uneven':>8}"]
    for run in runs:
        uneven = 1 - run.work.mean() / run.work.max()
        percents = (100 * part for part in (run.bubble(), run.bubble("span"), uneven))
        lines.append("{:<{}}{:>9.2f}{:>7.1f}{:>7.1f}{:>8.1f}".format(
            run.schedule.name, width, 1e3 * run.makespan, *percents))  # fmt: skip
    return "\n".join(lines)


def idle_share(ledger: Ledger) -> float:
    """Return the bubble of a recorded run as a share: 1 - computing ÷ (ranks · makespan).

    `ledger` holds the rows F, B, I and W of one step, each in seconds.
    """
    computing = sum(row.seconds for row in ledger)
    return 1 - computing / (len(ledger.ranks) * ledger.makespan)
