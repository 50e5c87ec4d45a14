"""The exercises of chapter 6: predict, write, repair, shrink, halves and invent."""

import re
from collections.abc import Callable
from dataclasses import dataclass

import torch

from lib.course.checks.arguments import name_of
from lib.course.checks.difference import difference
from lib.course.checks.numbers import Numbers
from lib.course.checks.on_ranks import Exercise
from lib.course.checks.schedules import Goal, Rows, read
from lib.course.checks.verdict import Hints, Verdict
from lib.course.pipeline.bubbles import score, table
from lib.predict.pipeline import schedules
from lib.predict.pipeline.actions import Schedule
from lib.predict.pipeline.play import Costs, play

_EIGHT = Costs(1, 1, 1)  # the pipeline of `predict`: 8 ranks, 24 microbatches, times in ms


def _share(m: int) -> float:
    """Return the bubble of 1F1B on the ranks of `predict`, as a share, with m microbatches."""
    return play(schedules.one_f_one_b(8, m), _EIGHT).bubble()


def _overhead() -> float:
    """Return the bubble of 1F1B on the ranks of `predict`, as an overhead in percent."""
    return round(100 * play(schedules.one_f_one_b(8, 24), _EIGHT).bubble("overhead"), 1)


predict = Numbers(
    name="predict",
    task="Put a number in place of each None.",
    answers={
        "makespan": lambda: play(schedules.one_f_one_b(8, 24), _EIGHT).makespan,
        "overhead": _overhead,
        "kept": lambda: play(schedules.one_f_one_b(8, 24), _EIGHT).peak_microbatches[2],
        "enough": lambda: next(m for m in range(8, 999) if _share(m) < 0.1 - 1e-9),
        "interleaved": lambda: score(schedules.interleaved(16, 24, 2), _EIGHT).makespan,
        "zb_h1": lambda: play(schedules.zb_h1(8, 24), _EIGHT).makespan,
    },
    kinds={"makespan": "ms", "overhead": "%", "interleaved": "ms", "zb_h1": "ms"},
    ranks=8,
    hints=(
        "A rank works for m (T_F + T_B). The makespan is that work and the rank's idle time, "
        "(p - 1)(T_F + T_B). Share and overhead divide the idle time by different things.",
        "Rank r of 1F1B keeps p - r microbatches. With v stages on each rank the idle time is v "
        "times shorter.",
        "The idle time of ZB-H1 is (p - 1)(T_F + T_I - T_W). The share of 1F1B is "
        "(p - 1)/(m + p - 1): with which m is it exactly 10 %?",
    ),
)


write = Rows(
    name="write",
    task="Fill in the body of `my_row`. It returns a list of text such as '2F0'.",
    model=schedules.one_f_one_b,
    hints=(
        "The last rank does F0 B0 F1 B1 ... The rank before it needs one more forward before its "
        "first backward can have come back.",
        "Rank r starts with stages - 1 - r forwards. Then it does one forward and one backward in "
        "turn.",
        "When no forward is left, the remaining backwards follow. With few microbatches there may "
        "be fewer forwards than the warm-up asks for.",
    ),
)


_SPLIT = re.sub(r"(\d)B(\d)", r"\1I\2,\1W\2", str(schedules.one_f_one_b(4, 4)))

shrink = Goal(
    name="shrink",
    start=Schedule.read(_SPLIT, "1F1B, each B split"),
    task="Move Ws in the picture until both goals are met, copy its text, and paste it between the "
    "quotes.",
    par=play(schedules.zb_h1(4, 4), Costs(1, 1, 1)).makespan,
    limit=4,
    hints=(
        "No other rank waits for a W. Whatever stands behind a W in its row starts earlier if that "
        "W stands later.",
        "Look at rank 3: move 3W0 behind 3I3, then 3W1 behind 3W0, and so on, until all its Ws "
        "stand at the end.",
        "Let rank r postpone its Ws by r places: rank 1 does 1W0 only after 1I1, rank 2 does 2W0 "
        "only after 2I2. Rank 0 stays as it is.",
    ),
)


class _Halves(Hints):
    """Compares the two halves of a linear layer's backward with autograd."""

    task = "Fill in both functions. The layer is y = x @ weights, and g is the gradient of y."

    def check(self, for_input: Callable, for_weights: Callable) -> Verdict:
        """Compare both functions with autograd on three shapes, one with a dim for sequences."""
        draw = {"generator": torch.Generator("cpu").manual_seed(0), "dtype": torch.float64}
        draw["device"] = "cpu"
        for shape in ((3, 4), (1, 4), (2, 5, 4)):
            x = torch.randn(shape, **draw, requires_grad=True)
            w = torch.randn(4, 6, **draw, requires_grad=True)
            y = x @ w
            g = torch.randn(y.shape, **draw)
            of_x, of_w = torch.autograd.grad(y, (x, w), g)
            for attempt, arguments, expected in (
                (for_input, (g, w.detach()), of_x),
                (for_weights, (g, x.detach()), of_w),
            ):
                try:
                    result = attempt(*arguments)
                except Exception as error:  # the reader's code may raise anything
                    failure = f"fails for x {list(shape)}: {type(error).__name__}: {error}"
                    return self._not_yet(f"`{name_of(attempt)}` {failure}")
                if result is None or result is ...:
                    return self._open(f"`{name_of(attempt)}` returns nothing", self.task)
                wrong = difference(result, expected, f"`{name_of(attempt)}` for x {list(shape)}:")
                if wrong:
                    return self._not_yet(f"{wrong}.")
        done = "I needs g and the weights; W needs g and x. Neither needs the other's result."
        return Verdict(True, f"Solved. {done}")


halves = _Halves(
    name="halves",
    hints=(
        "Look at the shapes: g is [.., K], the weights are [D, K], and the result of I is [.., D].",
        "For W, each row of x is multiplied with its row of g, and all products are added: flatten "
        "all dims but the last, then compute xᵀ g.",
    ),
)


def _ready(ranks: int, size: int):
    """Return each rank's input: rank r has an activation of entries 100 r, 100 r + 1, ..."""
    return [(100.0 * rank + torch.arange(float(size), device="cpu"),) for rank in range(ranks)]


def _passed(inputs):
    """Return each rank's activation from the left and gradient (here minus x) from the right."""
    zeros, ranks = torch.zeros_like(inputs[0][0]), len(inputs)
    activations = [inputs[r - 1][0] if r else zeros for r in range(ranks)]
    gradients = [-inputs[r + 1][0] if r < ranks - 1 else zeros for r in range(ranks)]
    return [torch.stack(pair) for pair in zip(activations, gradients)]


repair = Exercise(
    name="repair",
    task="Change `exchange_neighbours` so that it ends on every rank.",
    inputs=_ready,
    reference=_passed,
    sizes=(2, 1000),
    hints=(
        "Read the message, in which group 0>1 means messages from rank 0 to rank 1. In which send "
        "does each rank wait, and who should have received it?",
        "Rank r sends its activation to rank r + 1 while rank r + 1 sends a gradient to rank r. "
        "Each waits for the other to receive.",
        "Start both sends and both receives at once, with dist.batch_isend_irecv. `exchange` of "
        "lib.ranks.algorithms does this: exchange({to: x}, {source: empty}).",
    ),
)


@dataclass
class Invent(Hints):
    """Asks for a schedule with one stage on each rank that lies between ZB-H1 and ZB-H2."""

    task: str = ""
    costs: Costs = Costs(2, 2, 1)  # those of a rank, which has one stage

    @property
    def start(self) -> Schedule:
        """The schedule from which the reader begins: ZB-H1 on four ranks, eight microbatches."""
        return schedules.zb_h1(4, 8)

    def check(self, text: str, costs: Costs | None = None) -> Verdict:
        """Simulate the schedule; it must be faster than ZB-H1 and keep less than ZB-H2."""
        if not text.strip():
            return self._open("there is no text yet", self.task)
        own, costs = read(text), costs or self.costs
        if isinstance(own, str):
            return self._not_yet(own)
        if own.stages != own.ranks:
            have = f"Your schedule has {own.stages} stages on {own.ranks} ranks"
            return self._not_yet(f"{have}; the task has one stage on each rank.")
        rules = schedules.one_f_one_b, schedules.zb_h1, schedules.zb_h2
        known = [rule(own.ranks, own.microbatches) for rule in rules]
        scores = table(*known, own, costs=costs)
        if same := [other.name for other in known if other == own]:
            return self._not_yet(f"This is {same[0]}, action for action. Change it.\n{scores}")
        reached, _, fast, full = (score(schedule, costs) for schedule in (own, *known))
        if reached.makespan >= fast.makespan:
            why = f"it takes {reached.makespan:g}, and must be faster than {fast.name}'s"
            return self._not_yet(f"Your schedule is legal, but {why} {fast.makespan:g}.\n{scores}")
        if max(reached.alive) >= max(full.alive):
            why = f"a rank keeps {max(reached.alive):g} microbatches, and must keep fewer than"
            most = f"{max(full.alive):g}, as many as {full.name} keeps"
            return self._not_yet(f"Your schedule is legal, but {why} {most}.\n{scores}")
        return Verdict(
            True, f"Solved. It is faster than ZB-H1 and keeps less than ZB-H2.\n{scores}"
        )


invent = Invent(
    name="invent",
    task="Change the schedule in the picture, copy its text, and paste it between the quotes.",
    hints=(
        "ZB-H1 keeps 4 microbatches and ZB-H2 keeps 7. Look for a schedule that keeps 5.",
        "Rank 0 waits for its first I. Give it one more forward before that; it then keeps 5.",
        "Then postpone one more W on each of the other ranks.",
    ),
)
