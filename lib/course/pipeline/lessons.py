"""Functions that chapter 6 uses repeatedly: runs in slow motion, bytes kept, times of stages."""

from collections import Counter
from collections.abc import Callable
from statistics import median
from textwrap import fill

import torch

from lib import World
from lib.course.pipeline.bubbles import idle_share
from lib.ledger import Ledger
from lib.parallel.pipeline import Pipeline, stage_costs
from lib.parallel.pipeline.pipes import cut
from lib.predict.pipeline.actions import Schedule
from lib.predict.pipeline.play import Costs, Run, play
from lib.ranks.memory import Memory
from lib.single.split import SplitBackward
from lib.single.train import next_token_loss


def check_against(truth: dict[str, torch.Tensor]) -> Callable[[list[dict]], str]:
    """Return a function that compares the gradients of a pipeline's ranks with `truth`, by name.

    The function takes a list with a dict of gradients from each rank, and returns a sentence if all
    gradients are there and equal. Otherwise it raises AssertionError, with the name of one that is
    missing or differs.
    """

    def check(gradients_by_rank):
        gradients = {name: g for of_rank in gradients_by_rank for name, g in of_rank.items()}
        if gradients.keys() != truth.keys():
            name = min(gradients.keys() ^ truth.keys())
            where = "the ranks' results" if name in truth else "the plain model"
            raise AssertionError(f"The gradient of {name} is missing in {where}.")
        for name, expected in truth.items():
            if not torch.allclose(gradients[name], expected, rtol=1e-9, atol=1e-12):
                raise AssertionError(f"The gradient of {name} is not the plain model's.")
        return f"all {len(truth)} gradients are the plain model's"

    return check


def one_step(make_model, order: Schedule, batch) -> None:
    """Run one step of a new model on the ranks of `order`; call it on every rank."""
    Pipeline(make_model(), order).step(*batch)


def in_slow_motion(make_model, order: Schedule, batch, speeds) -> tuple[Ledger, Run]:
    """Record a step in slow motion, after one at full speed; return it and its prediction.

    `make_model()` returns the whole model, `batch` is (inputs [N, ...], targets [N, ...]). The
    recording holds the actions F, B, I and W.
    """
    with World(order.ranks, device="cpu") as world:
        world.run(one_step, make_model, order, batch)
        world.slow_motion = speeds
        recorded = world.record(one_step, make_model, order, batch)
    costs = stage_costs(make_model(), order, *batch, speeds)
    return recorded.where(lane="compute", op=list("FBIW")), play(order, costs)


def kept_bytes(make_model, order: Schedule, batch) -> int:
    """Return the most bytes of activations that this rank keeps in one step."""
    with Memory(model := make_model()) as counted:
        Pipeline(model, order).step(*batch)
    return max(row.bytes for row in counted.rows if row.op == "activations")


def bytes_by_rank(kept: dict) -> str:
    """Return a line for each name in `kept`, with the bytes that each rank keeps: `1F1B  1,024`."""
    width = max(map(len, kept))
    return "\n".join(
        f"{name:<{width}} " + " ".join(f"{nbytes:>8,}" for nbytes in of_ranks)
        for name, of_ranks in kept.items()
    )


def gradients_for_w(model, order: Schedule, batch) -> list[int]:
    """Return the bytes of gradients that one microbatch of each stage keeps from its I to its W.

    It runs F and I of every stage here, on the first microbatch of `batch`, with next_token_loss.
    """
    x, labels = (part[: len(part) // order.microbatches] for part in batch)
    waiting = []
    for stage, (first, last) in enumerate(cut(model, order.stages, None)):
        y = model[first:last](x)
        after = next_token_loss(y, labels) if stage == order.stages - 1 else y
        halves = SplitBackward(after, x if stage else ())
        halves.inputs(torch.ones_like(after))
        waiting.append(halves.waiting_bytes)
        x = y.detach().requires_grad_()
    return waiting


def median_run(world: World, make_model, order: Schedule, batch, repeats: int = 5) -> Ledger:
    """Record a step `repeats` times by the wall clock; return the F and B of the median run."""
    runs = [world.record(one_step, make_model, order, batch) for _ in range(repeats)]
    actions = [run.where(lane="compute", op=["F", "B"]) for run in runs]
    return sorted(actions, key=lambda run: run.makespan)[repeats // 2]


def measured_costs(recorded: Ledger) -> Costs:
    """Return the median time of F and of B on each rank of a recorded run, as costs for `play`."""
    times = {
        op: [median(r.seconds for r in recorded.where(op=op, rank=rank)) for rank in recorded.ranks]
        for op in "FB"
    }
    return Costs(times["F"], backward=times["B"])


def messages(recorded: Ledger) -> str:
    """Return how many messages of each size the ranks sent: `3 × 1, 48 × 4,096 bytes`."""
    sizes = Counter(row.bytes for row in recorded.where(lane="comm", op="send"))
    return ", ".join(f"{count} × {size:,}" for size, count in sorted(sizes.items())) + " bytes"


def idle_shares(recorded: Ledger, predicted: Run) -> str:
    """Return a sentence for a caption: the idle share of a recording beside the predicted one."""
    return f"Idle share: {idle_share(recorded):.1%} recorded, {predicted.bubble():.1%} predicted."


def work_and_idle(run: Ledger) -> str:
    """Return three columns in ms: the length of a run, and a rank's mean work and idle time."""
    work = sum(row.seconds for row in run) / len(run.ranks)
    return "".join(f"{1e3 * s:>7.0f}" for s in (run.makespan, work, run.makespan - work))


def refusal(rows) -> str:
    """Return the words with which `Schedule` refuses these rows, in lines of at most 50 columns.

    Raises ValueError if the rows are a legal schedule.
    """
    try:
        Schedule(rows)
    except ValueError as error:
        return "\n".join(fill(line, 50) for line in str(error).splitlines())
    raise ValueError("These rows are a legal schedule, so nothing is refused.")
