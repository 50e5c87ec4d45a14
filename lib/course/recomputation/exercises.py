"""The exercises of chapter 9: predict, write, repair, and a plan by hand."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from lib.course.checks.arguments import name_of
from lib.course.checks.numbers import Numbers
from lib.course.checks.on_ranks import Exercise
from lib.course.checks.read_number import is_missing
from lib.course.checks.verdict import Hints, Verdict
from lib.predict.recompute import BlockCost, best, every, smallest_peak, use_of
from lib.predict.recompute.plan import checked

EQUAL = [BlockCost(2_000_000, 16_000_000, 1.0)] * 100  # an input of 2 MB, 16 MB besides
FORWARD, BACKWARD = 2e-3, 3e-3  # seconds of a block


def _peak(k: int) -> float:
    """Return the MB at the peak with a checkpoint around each k blocks."""
    return use_of(every(100, k), EQUAL).peak / 1e6


BEST_K = min((k for k in range(1, 101) if 100 % k == 0), key=_peak)

predict = Numbers(
    name="predict",
    task="Put a number in place of each None.",
    answers={
        "k": BEST_K,
        "peak": _peak(BEST_K),
        "longer": round(100 * FORWARD / (FORWARD + BACKWARD), 1),
    },
    kinds={"peak": "MB", "longer": "%"},
    hints=(
        "With k blocks in a checkpoint, 100/k inputs are held after forward. While backward goes "
        "through the last checkpoint, k blocks hold all that they need, and 100/k - 1 inputs of "
        "the others are still there.",
        "The peak is (100/k - 1) · 2 MB + k · 18 MB. Try k = 1, 2, 4, 5 and 10.",
        "Whatever k is, each block runs forward once more: 2 ms beside the 5 ms of a step.",
    ),
)


def _drawn(seed: int):
    """Return a function of a shape that draws tensors on the CPU, the same for a seed anywhere."""
    draw = torch.Generator("cpu").manual_seed(seed)
    return lambda *shape: torch.randn(*shape, generator=draw, device="cpu")


# --- write


class _Probe(nn.Module):
    """Two linear maps with a tanh between: x [3, I] -> [3, 2]; it counts how often it runs."""

    def __init__(self, size: int, seed: int):
        super().__init__()
        make = _drawn(seed)
        self.up, self.down = nn.Parameter(make(size, 4 * size)), nn.Parameter(make(4 * size, 2))
        self.runs = 0

    def forward(self, x):
        self.runs += 1
        return (x @ self.up).tanh() @ self.down


def _write_inputs(ranks: int, size: int) -> list[tuple]:
    make = _drawn(size)
    return [(size, rank, make(3, size), make(3, 2)) for rank in range(ranks)]


def _write_reference(inputs) -> list:
    results = []
    for size, rank, x, dy in inputs:
        probe, x = _Probe(size, rank), x.clone().requires_grad_()
        y = probe(x)
        y.backward(dy)
        results.append([y.detach(), x.grad, probe.up.grad, probe.down.grad])
    return results


def _write_tried(attempt, size: int, rank: int, x, dy):
    """Run the reader's function forward and backward; return its result and the gradients."""
    probe, x = _Probe(size, rank), x.clone().requires_grad_()
    y = attempt.apply(probe, x)
    if y is None or y is ...:
        return None
    y.backward(dy)
    return [y.detach(), x.grad, probe.up.grad, probe.down.grad]


def _write_counted(attempt) -> tuple[int, int]:
    """Return how often the function runs in a step, and the bytes that are kept beside x."""
    probe, x, kept = _Probe(5, 0), torch.ones(3, 5, requires_grad=True), {}
    mine = {t.untyped_storage()._cdata for t in (x, probe.up, probe.down)}

    def note(t):
        kept[t.untyped_storage()._cdata] = t.untyped_storage().nbytes()
        return t

    with saved_tensors_hooks(note, lambda t: t):
        y = attempt.apply(probe, x)
    y.sum().backward()
    return probe.runs, sum(nbytes for place, nbytes in kept.items() if place not in mine)


class _Write(Exercise):
    """Also counts the runs of the function and what is kept."""

    def check(self, attempt: type[torch.autograd.Function], world) -> Verdict:
        """Run forward and backward of `attempt` on every rank, and return the verdict."""
        run = partial(_write_tried, attempt)
        run.__name__ = f"{name_of(attempt)}.forward"
        verdict = super().check(run, world)
        if not verdict.solved:
            return verdict
        runs, kept = world.run(_write_counted, attempt)[0]
        if runs != 2:
            return self._not_yet(
                f"The gradients are right, but the function ran {runs} time{'s' * (runs != 1)} in "
                "a step. A checkpoint runs it once in forward and once in backward."
            )
        if kept:
            return self._not_yet(
                f"The gradients are right, but {kept} bytes were kept from forward to backward "
                "beside x. Save x alone."
            )
        return Verdict(True, "Solved: forward keeps the input alone, and backward runs it again.")


write = _Write(
    name="write",
    task="Fill in both methods of `MyCheckpoint`.",
    inputs=_write_inputs,
    reference=_write_reference,
    sizes=(1, 5),
    words="x of [3, {}]",
    names=("y", "the gradient of x", "the gradient of up", "the gradient of down"),
    hints=(
        "Inside `forward` of an autograd function autograd builds no graph, so `function(x)` keeps "
        "nothing by itself. `backward` sees ctx and dy only: what does it need to run the function "
        "again, and how does that get into ctx?",
        "The function is no tensor, so keep it as an attribute, such as ctx.function. `backward` "
        "builds no graph either, unless you ask for one, as `run_again` of *Build it* does.",
        "y.backward(dy) on the result of the second run adds the gradients of the weights. Return "
        "None for the function, and the gradient of the detached x.",
    ),
)


# --- repair


def _dropped(x, weight):
    """A linear map whose result is dropped by half: x [3, I], W [I, 4] -> [3, 4]."""
    y = x @ weight
    kept = torch.rand(y.shape, device="cpu") < 0.5  # on the CPU on every device: see the exercise
    return y * kept.to(y.device)


def _repair_inputs(ranks: int, size: int) -> list[tuple]:
    make = _drawn(size)
    return [(rank, make(3, size), make(size, 4)) for rank in range(ranks)]


def _repair_reference(inputs) -> list:
    return [_repair_tried(_dropped_plainly, *each) for each in inputs]


def _dropped_plainly(function, x):
    return function(x)


def _repair_tried(attempt, seed: int, x, weight):
    """Run a step with a checkpoint of the reader's; return gradients and the next random number."""
    before = torch.random.get_rng_state()
    torch.manual_seed(seed)
    x, weight = x.clone().requires_grad_(), weight.clone().requires_grad_()
    y = attempt(partial(_dropped, weight=weight), x)
    if y is None or y is ...:
        return None
    torch.rand(3, device="cpu")  # as a later layer would
    y.sum().backward()
    following = torch.rand(2, device="cpu")
    torch.random.set_rng_state(before)
    return [x.grad, weight.grad, following]


class _Repair(Exercise):
    """Gives the reader's checkpoint a function that draws random numbers."""

    def check(self, attempt: Callable, world) -> Verdict:
        """Run a step with `attempt` on every rank, and return the verdict."""
        run = partial(_repair_tried, attempt)
        run.__name__ = name_of(attempt)
        return super().check(run, world)


repair = _Repair(
    name="repair",
    task="Repair `my_checkpoint`: return function(x), and let backward see the same mask.",
    inputs=_repair_inputs,
    reference=_repair_reference,
    sizes=(4, 50),
    words="x of [3, {}]",
    names=("the gradient of x", "the gradient of the weight", "what is drawn afterwards"),
    hints=(
        "The second run draws other random numbers than the first, so it drops other entries. What "
        "decides which numbers `torch.rand` draws, and when can you still read it?",
        "Before the first run note torch.get_rng_state(), and before the second run set it with "
        "torch.set_rng_state(state).",
        "The second run must leave no trace: what is drawn after backward has to be what it would "
        "be without a checkpoint. Note the state before the second run, and set it again after it.",
    ),
)


# --- going further: a plan by hand

UNEQUAL = [
    BlockCost(4_000_000, inside, seconds)
    for inside, seconds in (
        (4_000_000, 1e-3), (24_000_000, 2e-3), (8_000_000, 6e-3), (40_000_000, 3e-3),
        (12_000_000, 8e-3), (32_000_000, 1e-3), (4_000_000, 5e-3), (28_000_000, 2e-3),
    )
]  # fmt: skip
BUDGET = 72_000_000


@dataclass
class _ByHand(Hints):
    """Judges a plan for `UNEQUAL` by what it computes again within `BUDGET`, against the best."""

    task: str = "Give the plan that the picture prints, such as (0, (1, 2), 3, 4, 5, 6, 7)."

    def check(self, plan=None) -> Verdict:
        """Say what the plan holds and computes again, and what the best plan does."""
        if is_missing(plan):
            return self._open("there is no plan", self.task)
        try:
            own = use_of(checked(plan, len(UNEQUAL)), UNEQUAL)
        except ValueError as error:
            return self._not_yet(str(error))
        goal = use_of(best(UNEQUAL, BUDGET), UNEQUAL)
        score = (
            f"  at the peak: {own.peak:,} of {BUDGET:,} bytes\n"
            f"  computed again: {1e3 * own.again:.0f} ms; the goal is {1e3 * goal.again:.0f} ms"
        )
        if own.peak > BUDGET:
            return self._not_yet(f"This plan does not fit.\n{score}")
        if own.again > goal.again + 1e-9:
            return self._not_yet(f"This plan fits, but computes too much again.\n{score}")
        return Verdict(True, f"Solved.\n{score}")


by_hand = _ByHand(
    name="by_hand",
    hints=(
        "Which blocks hold many bytes for little time? Their time is what forgetting them costs.",
        "A checkpoint also keeps its input, so neighbours that are forgotten together hold one "
        "input instead of two, but their insides are there at the same time when they run again.",
        f"The smallest peak of all plans is {smallest_peak(UNEQUAL):,} bytes. Begin with what is "
        "cheapest to compute again, and forget more until the plan fits.",
    ),
)
