"""The exercises of chapter 4: write a schedule, beat one, split a backward, repair, explain."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from lib.course.check import Exercise, Hints, Verdict
from lib.course.compare import difference
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
            rows = [attempt(rank, stages, many) for rank in range(stages)]
            if any(row is None or row is ... for row in rows):
                return self._open(f"`{attempt.__name__}` returns nothing", self.task)
            where = f"With {stages} stages and {many} microbatches"
            try:
                mine = Schedule(rows)
            except ValueError as error:
                return self._not_yet(f"{where}: {error}")
            run, par = play(mine), play(self.model(stages, many))
            lost = [s for s in range(stages) if run.peak_microbatches[s] > par.peak_microbatches[s]]
            if run.makespan > par.makespan:
                told = f"{where} it takes {run.makespan:g}, and 1F1B {par.makespan:g}."
                return self._not_yet(f"{told} Your rows:\n{mine}")
            if lost:
                kept, most = run.peak_microbatches[lost[0]], par.peak_microbatches[lost[0]]
                return self._not_yet(f"{where} stage {lost[0]} keeps {kept}, and 1F1B {most}.")
        return Verdict(True, "Solved. As fast as 1F1B, and no stage keeps more than it does.")


write = Rows(
    name="write",
    task="Fill in the body of `my_row`: a list of text such as '2F0'.",
    model=rules.one_f_one_b,
    hints=(
        "The last rank does F0 B0 F1 B1 ... at once. The one before it needs one forward more "
        "before its first backward can have come back.",
        "Rank r starts with stages - 1 - r forwards. Then one forward and one backward in turn.",
        "When no forward is left, the backwards that are left follow. With few microbatches there "
        "may be fewer forwards than the warm-up asks for.",
    ),
)


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
        try:
            mine = Schedule.read(text)
        except ScheduleError as error:
            return self._not_yet(str(error))
        except ValueError as error:
            return self._not_yet(f"This is not the text of a schedule: {error}")
        if (mine.stages, mine.microbatches) != (self.stages, self.microbatches):
            given = f"{mine.stages} stages and {mine.microbatches} microbatches"
            wanted = f"{self.stages} and {self.microbatches}"
            return self._not_yet(f"Your text has {given}; the task has {wanted}.")
        run = play(mine, self.costs)
        most = max(run.peak_microbatches)
        score = (
            f"makespan {run.makespan:g}, par {self.par:g}; most alive {most}, at most {self.limit}"
        )
        if run.makespan <= self.par and most <= self.limit:
            return Verdict(True, f"Solved: {score}.")
        return self._not_yet(f"Legal, and {score}.")


shrink = Goal(
    name="shrink",
    task="Copy the picture's text when both goals are met, and paste it between the quotes.",
    par=play(rules.zb_h1(4, 4), Costs(1, 1, 1)).makespan,
    limit=4,
    hints=(
        "Nobody waits for a W. Whatever stands behind a W in a row would start earlier if that W "
        "stood later.",
        "Look at the last rank: I0 can start at once after F0. Push its Ws to the end.",
        "Rank r can put off r Ws: then its last actions are Ws while the ranks before it finish.",
    ),
)


class _Halves(Hints):
    """The two halves of a linear layer's backward, tried against autograd."""

    task = "Fill in both functions: y = x W, and g is the gradient of y."

    def check(self, for_input: Callable, for_weights: Callable) -> Verdict:
        """Compare both with autograd on three shapes, a batch of sequences among them."""
        generator = torch.Generator().manual_seed(0)
        for shape in ((3, 4), (1, 4), (2, 5, 4)):
            x = torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
            w = torch.randn(4, 6, generator=generator, dtype=torch.float64, requires_grad=True)
            y = x @ w
            g = torch.randn(y.shape, generator=generator, dtype=torch.float64)
            wanted = torch.autograd.grad(y, (x, w), g)
            for attempt, given, right in (
                (for_input, (g, w.detach()), wanted[0]),
                (for_weights, (g, x.detach()), wanted[1]),
            ):
                try:
                    said = attempt(*given)
                except (RuntimeError, TypeError, ValueError) as error:
                    return self._not_yet(f"`{attempt.__name__}` fails for x {list(shape)}: {error}")
                if said is None or said is ...:
                    return self._open(f"`{attempt.__name__}` returns nothing", self.task)
                wrong = difference(said, right, f"`{attempt.__name__}` for x {list(shape)}:")
                if wrong:
                    return self._not_yet(f"{wrong}.")
        return Verdict(True, "Solved. I needs g and W, W needs g and x: neither needs the other.")


halves = _Halves(
    name="halves",
    hints=(
        "Look at the shapes: g [.., F], W [D, F], and the answer of I is [.., D].",
        "For W every row of x meets its row of g: flatten all dims but the last, then xᵀ g.",
    ),
)


def _ready(ranks: int, size: int):
    """Rank r has an activation of entries 100 r, 100 r + 1, ... for the rank after it."""
    return [(100.0 * rank + torch.arange(float(size)),) for rank in range(ranks)]


def _passed(given):
    """What came from the left, and the gradient (here: minus x) that came from the right."""
    zeros, ranks = torch.zeros_like(given[0][0]), len(given)
    came = [given[r - 1][0] if r else zeros for r in range(ranks)]
    back = [-given[r + 1][0] if r < ranks - 1 else zeros for r in range(ranks)]
    return [torch.stack(pair) for pair in zip(came, back)]


repair = Exercise(
    name="repair",
    task="Make `their_steady_state` end.",
    inputs=_ready,
    reference=_passed,
    sizes=(2, 1000),
    hints=(
        "Read the message: who stands in which send, and who should have received it?",
        "Rank r sends its activation to the right while rank r + 1 sends a gradient to the left. "
        "Both wait for the other to receive.",
        "Do all at once: batch_isend_irecv with both sends and both receives, which is what "
        "`exchange` of lib.ranks.algorithms does: exchange({to: x}, {source: empty}).",
    ),
)


class _Explain(Hints):
    """Which of the three definitions gives each published number, found by computing all three."""

    task = 'Put "share", "overhead" or "span" in place of each None.'
    right = {"huang": "share", "narayanan": "overhead", "qi": "span"}

    def check(self, **said) -> Verdict:
        """Compare the reader's words with the definitions that the papers write down."""
        if all(said.get(name) is None for name in self.right):
            return self._open("nothing is there", self.task)
        lines = []
        for name, right in self.right.items():
            word = said.get(name)
            verdict = "right" if word == right else "not yet" if word is None else "not that one"
            lines.append(f"  {name}: {verdict}")
        told = "\n".join(lines)
        if all(said.get(name) == right for name, right in self.right.items()):
            return Verdict(True, f"Solved.\n{told}")
        return self._not_yet(f"Your words:\n{told}")


explain = _Explain(
    name="explain",
    hints=(
        "Compute all three for each line's schedule, stages, microbatches and times.",
        "Two of the three agree for one of the lines. Then only the text tells: what does it "
        "divide by?",
    ),
)
