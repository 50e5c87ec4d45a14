"""The exercises of chapter 3: predict, write, repair, choose and reshard."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist

from lib.course.checks.arguments import name_of
from lib.course.checks.difference import difference
from lib.course.checks.numbers import Numbers
from lib.course.checks.on_ranks import Exercise
from lib.course.checks.read_number import is_missing
from lib.course.checks.verdict import Hints, Verdict
from lib.course.fsdp.repair import BUGS, Repair
from lib.parallel.sharded.layout import Layout
from lib.predict.collectives.exchange import sent_bytes
from lib.predict.roofline import Speeds, speeds
from lib.predict.shape import MLPShape
from lib.predict.sharded.fsdp_step import fsdp_step
from lib.predict.sharded.models import model
from lib.predict.sharded.states import fewest_ranks, held
from lib.predict.sharded.traffic import of_step
from lib.predict.sharded.units import alive, units_of
from lib.ranks import span

LLAMA, GPUS, DEVICE = model("Llama 3 405B").numel, 64, 141e9  # on H200s

predict = Numbers(
    name="predict",
    task="Put a number in place of each None.",
    answers={
        "zero_2": round(held(LLAMA, GPUS, 2).total / 1e9, 1),
        "zero_3": round(held(LLAMA, GPUS, 3).total / 1e9, 1),
        "fewest": fewest_ranks(LLAMA, DEVICE, 3),
        "sent": round(sent_bytes(of_step(LLAMA, GPUS, 3, itemsize=2)) / 1e9, 1),
    },
    exact=("fewest",),
    kinds={"zero_2": "GB", "zero_3": "GB", "sent": "sent GB"},
    ranks=GPUS,
    hints=(
        "Mixed precision needs 2 bytes a parameter for the weights, 2 for the gradients and 12 for "
        "the optimizer. Which of them does ZeRO-2 divide by 64?",
        "With ZeRO-3 everything is divided: 16 bytes a parameter, 6,494 GB in all. How many times "
        "does that hold 141 GB? The next whole number is the answer to `fewest`.",
        "Weights and gradients have 2 bytes, so the whole model has 812 GB. All units are gathered "
        "twice and reduced once, and each of the three sends 63/64 of 812 GB.",
    ),
)


# --- write


def _linear_inputs(ranks: int, size: int):
    """Return each rank's x [3, size], its rows of W [2 · ranks, size], and dy [3, 2 · ranks]."""
    draw = torch.Generator("cpu").manual_seed(size)
    make = lambda *shape: torch.randn(*shape, generator=draw, device="cpu")
    return [(make(3, size), make(2, size), make(3, 2 * ranks)) for _ in range(ranks)]


def _linear_reference(inputs):
    whole = torch.cat([shard for _, shard, _ in inputs])
    mean = sum(dy.T @ x for x, _, dy in inputs) / len(inputs)
    pieces = mean.chunk(len(inputs))
    return [[x @ whole.T, dy @ whole, piece] for (x, _, dy), piece in zip(inputs, pieces)]


def _forward_and_backward(attempt, x, shard, dy):
    """Run an autograd function on this rank; return y, dx and the gradient of the shard."""
    x, shard = (tensor.detach().requires_grad_() for tensor in (x, shard))
    y = attempt.apply(x, shard)
    if y is None or y is ...:
        return None
    whole = dist.get_world_size() * shard.numel()
    left = (v for v in vars(y.grad_fn).values() if isinstance(v, torch.Tensor))  # on ctx
    with span("kept" if any(tensor.numel() == whole for tensor in left) else "backward"):
        y.backward(dy)
    return [y.detach(), x.grad, shard.grad]


class _Linear(Exercise):
    """Also counts the collectives: the weights must be gathered in forward and in backward."""

    def check(self, attempt: type[torch.autograd.Function], world) -> Verdict:
        """Run forward and backward of `attempt` on every rank, and return the verdict."""
        run = partial(_forward_and_backward, attempt)
        run.__name__ = f"{name_of(attempt)}.forward"
        return super().check(run, world)

    def _scored(self, ledger, world, inputs) -> Verdict:
        kept = list(ledger.where(rank=0, op="kept"))  # backward too, with whole weights on `ctx`
        parts = kept or ledger.where(rank=0, op="backward")  # waits cut the span into rows
        backward = min(row.start for row in parts)
        comm = list(ledger.where(rank=0, lane="comm"))
        rows = [row.op for row in comm]
        gathers, reduces = rows.count("all_gather"), rows.count("reduce_scatter")
        late = sum(row.op == "all_gather" and row.start >= backward for row in comm)
        if not kept and (gathers, late, reduces, len(rows)) == (2, 1, 1, 3):
            return Verdict(True, "Solved with two gathers and one reduce-scatter.")
        if kept or (gathers and not late):
            return self._not_yet(
                "The numbers are right, but the whole weights were kept from forward to backward. "
                "Save x and the shard, and gather again in backward."
            )
        return self._not_yet(
            f"The numbers are right, but rank 0 launched {', '.join(rows)}. Two all_gathers and "
            "one reduce_scatter are enough."
        )


write = _Linear(
    name="write",
    task="Fill in both methods of `MyLinear`.",
    inputs=_linear_inputs,
    reference=_linear_reference,
    sizes=(1, 5),
    hints=(
        "Which tensor do both methods need whole, of which shape is it, and which method of "
        "`Unit` above fills such a tensor?",
        "Both methods gather: an empty tensor with n times the rows of the shard, and then "
        "dist.all_gather_single(whole, shard). For y = x Wᵀ, dx = dy W and dW = dyᵀ x.",
        "Call `ctx.save_for_backward(x, shard)` in forward, and write `x, shard = "
        "ctx.saved_tensors` in backward. Forward must not save the whole weights.",
        "dW is a sum over this rank's samples only. dist.reduce_scatter_single(part, dW / n) adds "
        "the ranks' dW up and gives this rank its rows, where part has the shape of the shard. "
        "Return dx, part.",
    ),
)


# --- repair

repair = Repair(name="repair", hints=BUGS["clip"].hints)


# --- choose


@dataclass
class _Choose(Hints):
    """Asks for units and a prefetch limit that are fast enough and fit beside the shards."""

    task: str = "Choose the layers of each unit, for example [4, 4, 4, 4], and a prefetch limit."
    shape: MLPShape = MLPShape((4096,) * 17, bias=False)
    rows: int = 4096  # on each rank
    ranks: int = 64
    room: int = 600_000_000  # bytes for whole units and whole gradients
    par: float = 86e-3  # seconds

    @property
    def hardware(self) -> Speeds:
        """Return the times of H100s that are linked by InfiniBand."""
        return speeds("H100", "InfiniBand NDR")

    def tried(self, blocks, prefetch: int) -> tuple[float, int]:
        """Return the seconds of a step and the most bytes that it holds beside the shards."""
        batches = [self.rows] * self.ranks
        step = fsdp_step(self.shape, batches, self.hardware, blocks=blocks, prefetch=prefetch)
        states = alive(units_of(self.shape, blocks), self.ranks, prefetch=prefetch)
        return step.makespan, max(state.total for state in states)

    def check(self, units=None, prefetch=None) -> Verdict:
        """Predict the step with these units and this limit."""
        if is_missing(units) or is_missing(prefetch):
            return self._open("there is nothing to predict", self.task)
        if not isinstance(units, list | tuple):
            return self._not_yet("The units are a list of whole numbers, such as [4, 4, 4, 4].")
        try:
            seconds, nbytes = self.tried(list(units), prefetch)
        except ValueError as error:
            return self._not_yet(str(error))
        score = (
            f"  step: {1e3 * seconds:.2f} ms; the goal is {1e3 * self.par:.2f} ms\n"
            f"  held beside the shards: {nbytes:,} of {self.room:,} bytes"
        )
        if nbytes > self.room:
            return self._not_yet(f"These units do not fit.\n{score}")
        if seconds > self.par:
            return self._not_yet(f"These units fit, but the step is too slow.\n{score}")
        return Verdict(True, f"Solved.\n{score}")


# --- reshard


@dataclass
class _Reshard(Hints):
    """Compares shards that were cut anew with those of the library's own layout."""

    task: str = "Fill in the body of `my_reshard`: return a list of `ranks` shards."

    def check(self, attempt: Callable) -> Verdict:
        """Cut shards of 4 ranks for 2 and those for 3, for several lengths."""
        for numel in (8, 7, 10, 1):
            values, shards = torch.arange(1.0, numel + 1), None
            for ranks in (4, 2, 3):
                expected = _shards(values, ranks)
                if ranks == 4:
                    shards = expected
                    continue
                try:
                    found = attempt(list(shards), numel, ranks)
                except Exception as error:  # the reader's code may raise anything
                    call = f"`{name_of(attempt)}` for {numel} elements and {ranks} ranks"
                    return self._not_yet(f"{call} fails: {type(error).__name__}: {error}")
                if is_missing(found):
                    return self._open(f"`{name_of(attempt)}` returns nothing", self.task)
                found = list(found) if isinstance(found, list | tuple) else found
                if wrong := difference(found, expected):
                    return self._not_yet(
                        f"From {len(shards)} ranks to {ranks}, with {numel} elements: {wrong}."
                    )
                shards = found
        return Verdict(True, "Solved for 4 → 2 → 3 ranks, with 8, 7, 10 and 1 elements.")


def _shards(values, ranks: int) -> list:
    layout = Layout([values.shape], ranks)
    flat = torch.zeros(layout.length)
    flat[: layout.numel] = values
    return list(flat.chunk(ranks))


choose = _Choose(
    name="choose",
    hints=(
        "Try [1] * 16, [2] * 8, [4] * 4 and [8] * 2 with prefetch 1. Which are fast enough, and "
        "which fit?",
        "Each gather has 63 rounds of latency, so fewer and larger units are faster. A prefetch "
        "limit above 1 only holds more, because the link is never idle.",
        "Two layers in each unit, and prefetch 1.",
    ),
)

reshard = _Reshard(
    name="reshard",
    hints=(
        "Join the shards with torch.cat. Is everything in the result an element of the model?",
        "The last elements may be zeros that only made the shards equal: keep the first `numel`.",
        "Append zeros until the length is a multiple of `ranks`: -len(flat) % ranks of them. Then "
        "flat.chunk(ranks) gives the new shards.",
    ),
)
