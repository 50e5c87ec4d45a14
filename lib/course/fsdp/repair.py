"""Chapter 3's exercise "repair": a reader chooses one of six bugs, and each has a check."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field

from lib.course.checks.arguments import name_of
from lib.course.checks.on_ranks import Exercise
from lib.course.checks.verdict import Hints, Verdict
from lib.course.fsdp import bugs


class Running:
    """Calls `run(program, ...)` with the inputs of a rank; it has the name of the program."""

    def __init__(self, run: Callable, program: Callable):
        self.run, self.program, self.__name__ = run, program, name_of(program)

    def __call__(self, *inputs):
        return self.run(self.program, *inputs)


@dataclass
class Bug(Exercise):
    """A broken program; `run(program, ...)` runs it, or its repair, on a rank."""

    program: Callable = None
    run: Callable | None = None

    def check(self, attempt: Callable, world) -> Verdict:
        """Run a repaired program on every rank."""
        return super().check(Running(self.run, attempt) if self.run else attempt, world)


def _bug(program: Callable, inputs, reference, hints, run=None, **more) -> Bug:
    """Return the check of a repaired `program`."""
    task = f"Repair `{program.__name__}`."
    more = {"sizes": (2, 4)} | more
    return Bug("repair", hints, task, inputs, reference, program=program, run=run, **more)


BUGS = {
    "clip": _bug(
        bugs.my_clip,
        bugs.gradients,
        bugs.clipped,
        (
            "Look at `norm`: of which numbers is it the norm, and is it the same on every rank?",
            "The squares of all ranks have to be added up before the root is taken. Which "
            "collective gives every rank the sum of one number from each?",
            "`total = torch.stack([g.square().sum() for g in shards]).sum()`, then "
            "`dist.all_reduce(total)`, then `norm = total.sqrt()`.",
        ),
        sizes=(1, 4, 100),
        words="a first shard of length {} on each rank",
    ),
    "gather": _bug(
        bugs.my_gradient,
        bugs.rows,
        bugs.summed_rows,
        (
            "Where does the chain from y back to the shard break?",
            "Autograd records nothing under torch.no_grad(). `gather` has a backward of its own, "
            "which adds up the ranks' gradients: let autograd see it.",
        ),
        bugs.with_gather,
        words="{} inputs",
        names=("the gradient of the shard",),
    ),
    "change": _bug(
        bugs.my_halving,
        bugs.layers,
        bugs.halved,
        (
            "What does a rank keep when the unit is freed, and has the program changed it?",
            "The next gather fills `weights` from `unit.shard` of all ranks. Change the shard; "
            "nothing has to be gathered for that.",
        ),
        bugs.in_a_unit,
        words="{} outputs",
        names=("the weight", "the bias"),
    ),
    "early": _bug(
        bugs.my_training,
        bugs.samples,
        bugs.one_step,
        (
            "Which parameters does the optimizer have, and which ones get a gradient?",
            "`fully_shard` replaces the parameters of a model by new ones. Make the optimizer "
            "from those.",
        ),
        bugs.trained,
        words="{} samples on each rank",
    ),
    "units": _bug(
        bugs.my_units,
        bugs.batches,
        bugs.quarter,
        (
            "A unit is whole while it computes. Which parts of the model compute one after the "
            "other?",
            "`model.blocks` is a dict of the eight layers: return a list of them.",
        ),
        bugs.share_whole,
        words="{} samples on each rank",
        names=("the share of the weights that is whole at once",),
    ),
    "skip": _bug(
        bugs.my_forward,
        bugs.skipping,
        bugs.on_one_device,
        (
            "A unit is gathered from all ranks. What do the others wait for when one rank does "
            "not run it?",
            "Let every rank run every layer, and multiply what it does not need by zero: "
            "`layer(x) * (n != skipped)`.",
        ),
        bugs.in_units,
        words="{} samples on each rank",
    ),
}


def _cell(program: Callable, bug: str) -> str:
    """Return a cell that can replace another one: without the import it would lose its buttons."""
    text = inspect.getsource(program).rstrip()
    check = f'repair.check({program.__name__}, world, bug="{bug}")'
    return f"from lib.course.fsdp.exercises import repair\n\n\n{text}\n\n\n{check}"


@dataclass
class Repair(Hints):
    """Asks for the repair of one of `BUGS`, which the reader chooses by its name."""

    task: str = "Repair one of the programs."
    chosen: str = field(default="clip", init=False)

    def check(self, attempt: Callable, world, bug: str = "clip") -> Verdict:
        """Run a repaired program on every rank of `world`."""
        if why := self._refused(bug):
            return self._not_yet(why)
        return BUGS[bug].check(attempt, world)

    def show(self, bug: str = "clip") -> None:
        """Print a whole cell with a broken program and its check, for you to copy and repair."""
        print(self._refused(bug) or _cell(BUGS[bug].program, bug))

    def _refused(self, bug) -> str:
        """Turn to a bug, whose hints come from now on; return why it cannot be one."""
        if not isinstance(bug, str) or bug not in BUGS:
            names = ", ".join(f'"{name}"' for name in BUGS)
            return f"No bug here is called {bug!r}. Choose one of {names}."
        if bug != self.chosen:
            self.chosen, self.hints, self.shown = bug, BUGS[bug].hints, 0
        return ""
