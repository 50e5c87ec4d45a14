"""Exercises on schedules: rows that a function makes, and text that was copied from a picture."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from lib.course.checks.arguments import name_of
from lib.course.checks.verdict import Hints, Verdict
from lib.predict.pipeline.actions import Action, Schedule, ScheduleError
from lib.predict.pipeline.play import Costs, play


@dataclass
class Rows(Hints):
    """Simulates the schedule whose rows a function returns, and compares it with a model.

    Rank r holds stage r alone.
    """

    task: str = ""
    sizes: tuple = ((4, 8), (2, 3), (4, 2))  # (stages, microbatches): the last are fewer
    model: Callable = None

    def check(self, attempt: Callable) -> Verdict:
        """Call `attempt` for every rank, check that the rows are legal, and simulate them."""
        for stages, many in self.sizes:
            where = f"With {stages} stages and {many} microbatches"
            try:
                rows = [attempt(rank, stages, many) for rank in range(stages)]
            except Exception as error:  # the reader's code may raise anything
                return self._not_yet(f"{where} it fails: {type(error).__name__}: {error}")
            if all(row is None or row is ... for row in rows):
                return self._open(f"`{name_of(attempt)}` returns nothing", self.task)
            for rank, row in enumerate(rows):
                if not isinstance(row, list | tuple):
                    return self._not_yet(f"{where} the row of rank {rank} is {row!r}, not a list.")
            for rank, row in enumerate(rows):
                for action in row:
                    with suppress(ValueError):  # what is no action is told by Schedule, below
                        if Action.read(str(action)).stage != rank:
                            return self._not_yet(
                                f"{where}: row {rank} contains {action}, but in this exercise rank "
                                f"{rank} holds only stage {rank}."
                            )
            try:
                schedule = Schedule(rows)
            except ValueError as error:
                return self._not_yet(f"{where}: {error}")
            if (schedule.stages, schedule.microbatches) != (stages, many):
                size = f"{schedule.stages} stages and {schedule.microbatches} microbatches"
                return self._not_yet(f"{where} your rows are for {size}.")
            run, par = play(schedule), play(self.model(stages, many))
            if run.makespan > par.makespan:
                times = f"it takes {run.makespan:g}, and 1F1B {par.makespan:g}."
                return self._not_yet(f"{where} {times} Your rows:\n{_listed(schedule)}")
            for stage, (kept, most) in enumerate(zip(run.peak_microbatches, par.peak_microbatches)):
                if kept > most:
                    return self._not_yet(f"{where} stage {stage} keeps {kept}, and 1F1B {most}.")
        return Verdict(True, "Solved. As fast as 1F1B, and no stage keeps more than it does.")


@dataclass
class Goal(Hints):
    """Asks for a schedule that takes no longer than `par` with at most `limit` microbatches alive.

    `start` is the schedule that the reader changes.
    """

    task: str = ""
    start: Schedule | None = None
    stages: int = 4
    microbatches: int = 4
    par: float = 0.0
    limit: int = 0
    costs: Costs = Costs(1, 1, 1)

    def check(self, text: str) -> Verdict:
        """Read the rows, simulate them, and compare them with both goals."""
        if not text.strip():
            return self._open("there is no text yet", self.task)
        schedule = read(text)
        if isinstance(schedule, str):
            return self._not_yet(schedule)
        if (schedule.stages, schedule.microbatches) != (self.stages, self.microbatches):
            size = f"{schedule.stages} stages and {schedule.microbatches} microbatches"
            expected = f"{self.stages} and {self.microbatches}"
            return self._not_yet(f"Your text has {size}; the task has {expected}.")
        run = play(schedule, self.costs)
        most = max(run.peak_microbatches)
        score = (
            f"  makespan {run.makespan:g}; the goal is {self.par:g}\n"
            f"  microbatches alive: {most}; the goal is at most {self.limit}"
        )
        if run.makespan <= self.par and most <= self.limit:
            return Verdict(True, f"Solved.\n{score}")
        return self._not_yet(f"Your schedule is legal, but it does not meet both goals.\n{score}")


def _listed(schedule: Schedule) -> str:
    """Return the rows of a schedule as items, with spaces at which a long one can be folded."""
    return "\n".join(f"  {row.replace(',', ' ')}" for row in str(schedule).splitlines())


def read(text: str) -> Schedule | str:
    """Return the schedule that a text describes, or a sentence that says why it is not one."""
    try:
        return Schedule.read(text)
    except ScheduleError as error:
        return str(error)
    except ValueError as error:
        return f"This is not the text of a schedule: {error}"
