"""Checkers of schedules: rows that a function makes, and text that was copied from a picture."""

from collections.abc import Callable
from dataclasses import dataclass

from lib.course.bubbles import score, table
from lib.course.check import Hints, Verdict
from lib.predict import schedule as rules
from lib.predict.actions import Schedule, ScheduleError
from lib.predict.play import Costs, play


@dataclass
class Rows(Hints):
    """A function that gives each rank's row of a schedule, compared with a model of it on paper."""

    task: str = ""
    sizes: tuple = ((4, 8), (2, 3), (3, 3))  # (stages, microbatches)
    model: Callable = None

    def check(self, attempt: Callable) -> Verdict:
        """Ask for every rank's row, see whether ranks could carry it out, and play it."""
        for stages, many in self.sizes:
            where = f"With {stages} stages and {many} microbatches"
            try:
                rows = [attempt(rank, stages, many) for rank in range(stages)]
            except Exception as error:  # the reader's own code: whatever it raises is told
                return self._not_yet(f"{where} it fails: {type(error).__name__}: {error}")
            if all(row is None or row is ... for row in rows):
                return self._open(f"`{attempt.__name__}` returns nothing", self.task)
            odd = [rank for rank, row in enumerate(rows) if not isinstance(row, list | tuple)]
            if odd:
                told = f"the row of rank {odd[0]} is {rows[odd[0]]!r}, not a list"
                return self._not_yet(f"{where} {told}.")
            try:
                mine = Schedule(rows)
            except ValueError as error:
                return self._not_yet(f"{where}: {error}")
            if (mine.stages, mine.microbatches) != (stages, many):
                told = f"{mine.stages} stages and {mine.microbatches} microbatches"
                return self._not_yet(f"{where} your rows are for {told}.")
            run, par = play(mine), play(self.model(stages, many))
            lost = [s for s in range(stages) if run.peak_microbatches[s] > par.peak_microbatches[s]]
            if run.makespan > par.makespan:
                told = f"{where} it takes {run.makespan:g}, and 1F1B {par.makespan:g}."
                return self._not_yet(f"{told} Your rows:\n{mine}")
            if lost:
                kept, most = run.peak_microbatches[lost[0]], par.peak_microbatches[lost[0]]
                return self._not_yet(f"{where} stage {lost[0]} keeps {kept}, and 1F1B {most}.")
        return Verdict(True, "Solved. As fast as 1F1B, and no stage keeps more than it does.")


@dataclass
class Goal(Hints):
    """A schedule as text, to be as fast as par with no more microbatches alive than the limit."""

    task: str = ""
    stages: int = 4
    microbatches: int = 4
    par: float = 0.0
    limit: int = 0
    costs: Costs = Costs(1, 1, 1)

    def check(self, text: str) -> Verdict:
        """Read the rows back, play them, and say how far they are from both."""
        if not text.strip():
            return self._open("there is no text yet", self.task)
        mine = _read(text)
        if isinstance(mine, str):
            return self._not_yet(mine)
        if (mine.stages, mine.microbatches) != (self.stages, self.microbatches):
            given = f"{mine.stages} stages and {mine.microbatches} microbatches"
            wanted = f"{self.stages} and {self.microbatches}"
            return self._not_yet(f"Your text has {given}; the task has {wanted}.")
        run = play(mine, self.costs)
        most = max(run.peak_microbatches)
        told = (
            f"makespan {run.makespan:g}, par {self.par:g}; most alive {most}, at most {self.limit}"
        )
        if run.makespan <= self.par and most <= self.limit:
            return Verdict(True, f"Solved: {told}.")
        return self._not_yet(f"Legal, and {told}.")


@dataclass
class Invent(Hints):
    """Any legal schedule, scored beside the known ones on the same ranks at the same costs."""

    task: str = ""
    costs: Costs = Costs(2, 2, 1)  # of a rank: its stages share them

    def check(self, text: str, costs: Costs | None = None) -> Verdict:
        """Play the text and compare: what is neither dominated by ZB-H1 nor by ZB-H2 is solved."""
        if not text.strip():
            return self._open("there is no text yet", self.task)
        mine, costs = _read(text), costs or self.costs
        if isinstance(mine, str):
            return self._not_yet(mine)
        ranks, many = mine.ranks, mine.microbatches
        if mine.stages % ranks or len(set(map(mine.placement.count, range(ranks)))) > 1:
            return self._not_yet("Give every rank as many stages as the others.")
        known = [rule(ranks, many) for rule in (rules.one_f_one_b, rules.zb_h1, rules.zb_h2)]
        known.append(rules.zb_v(2 * ranks, many))
        told = table(*known, mine, costs=costs)
        if same := [other.name for other in known if other == mine]:
            return self._not_yet(f"This is {same[0]}, action for action. Change it.\n{told}")
        own = score(mine, costs)
        for other in (score(schedule, costs) for schedule in known[1:3]):
            if own.makespan >= other.makespan and max(own.alive) >= max(other.alive):
                why = f"Legal and yours, but {other.name} takes no longer and keeps no more."
                return self._not_yet(f"{why}\n{told}")
        return Verdict(True, f"Solved: yours, and neither ZB-H1 nor ZB-H2 is as good.\n{told}")


def _read(text: str) -> Schedule | str:
    """The schedule that a text is, or why it is none."""
    try:
        return Schedule.read(text)
    except ScheduleError as error:
        return str(error)
    except ValueError as error:
        return f"This is not the text of a schedule: {error}"
