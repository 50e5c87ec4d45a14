"""Two experiments by the wall clock: DDP's step on two ranks, and microbatches on one device."""

import contextlib
import functools
from statistics import median

import torch

from lib.course.stopwatch import seconds_of
from lib.parallel.data.ddp import DistributedDataParallel
from lib.predict.data.ddp_step import data_parallel_step, gradients_per_bucket
from lib.predict.memory import activations
from lib.predict.shape import GPTShape, MLPShape
from lib.ranks.calibrate import calibrate
from lib.single import GPT, MLP, Batches, train_step

BUCKET = 2**20  # bytes


def ddp_steps(shape: MLPShape, rows: int, sends: bool, repeats: int = 20) -> list[float]:
    """Return the seconds of DDP's training steps on this rank; without `sends`, inside no_sync."""
    ddp = DistributedDataParallel(MLP(shape), bucket_bytes=BUCKET)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-6, foreach=False)
    x, gradient = torch.ones(rows, shape.widths[0]), torch.ones(rows, shape.widths[-1])

    def step():
        optimizer.zero_grad()
        ddp(x).backward(gradient)
        optimizer.step()

    with contextlib.nullcontext() if sends else ddp.no_sync():
        return seconds_of(step, repeats, uncounted=2)


def compared(
    world, machine, shape: MLPShape, rows: int, repeats: int = 20
) -> list[tuple[str, float, float]]:
    """Return (what, predicted, measured) seconds of DDP's step on `world`, each rank with `rows`.

    `machine` is the calibration of this machine. The measured time is the median of the slowest
    rank's `repeats` steps.
    """
    step = {"buckets": gradients_per_bucket(shape, BUCKET)}
    apart, together = (
        data_parallel_step(shape, [rows] * world.size, machine, overlap=overlap, **step)
        for overlap in (False, True)
    )
    computing = sum(row.seconds for row in apart.where(lane="compute", rank=0))
    predicted = computing, machine.overlapped(apart.makespan, together.makespan)
    compared_rows, names = [], ("without all-reduces", "whole step")
    for what, seconds, sends in zip(names, predicted, (False, True)):
        by_rank = world.run(ddp_steps, shape, rows, sends, repeats)
        compared_rows.append((what, seconds, median(map(max, zip(*by_rank)))))
    return compared_rows


def ddp_on(world, shape: MLPShape, rows: int) -> str:
    """Calibrate this machine, and write what `compared` gives for DDP's step on `world`."""
    machine = calibrate(world, quiet=True)
    return table(compared(world, machine, shape, rows), machine.hidden)


def table(rows: list[tuple[str, float, float]], hidden: float) -> str:
    """Write predicted and measured seconds as a table in milliseconds, with the errors.

    The last row is the difference of the two steps, the all-reduces that remain exposed. `hidden`
    is the share of all-reduces under computation that the prediction used.
    """
    (_, *without), (_, *whole) = rows
    rows = [*rows, ("exposed", whole[0] - without[0], whole[1] - without[1])]
    lines = [f"{'ms':<20}{'predicted':>10}{'measured':>10}{'error':>7}"]
    for what, predicted, measured in rows:
        error = percent(predicted / measured - 1) if measured > 0 else "-"
        lines.append(f"{what:<20}{1e3 * predicted:>10.1f}{1e3 * measured:>10.1f}{error:>7}")
    return "\n".join([*lines, f"hidden share, as calibrated: {hidden:.0%}"])


def percent(error: float) -> str:
    """Write an error in whole percent, with its sign unless it is 0 %."""
    return f"{error:+.0%}" if abs(error) > 0.005 else "0%"


def accumulation(shape: GPTShape, batch: int, numbers) -> list[tuple[int, int, float]]:
    """Time a training step of `batch` samples on one device, for several numbers of microbatches.

    Return (number, predicted bytes of activations, seconds ÷ seconds of the first number) of each.
    The numbers take turns and the fastest step of each counts, so that other programs disturb less.
    """
    samples, model = Batches(batch, shape.sequence)[0], GPT(shape)
    optimizer = torch.optim.AdamW(model.parameters())
    taken = dict.fromkeys(numbers, float("inf"))
    for _ in range(3):
        for number in numbers:
            step = functools.partial(train_step, model, optimizer, samples, microbatches=number)
            taken[number] = min(taken[number], *seconds_of(step, 2, uncounted=2))
    first = next(iter(taken.values()))
    return [(n, activations(shape, batch // n), best / first) for n, best in taken.items()]


def microbatches(shape: GPTShape, batch: int, numbers) -> str:
    """Write what `accumulation` gives as a table."""
    lines = [f"{'microbatches':<14}{'activations':>12}{'time':>8}"]
    for number, kept, ratio in accumulation(shape, batch, numbers):
        lines.append(f"{number:<14}{kept / 1e6:>9.1f} MB{'×':>4}{ratio:>4.1f}")
    return "\n".join(lines)
