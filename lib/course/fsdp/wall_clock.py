"""An experiment by the wall clock: FSDP's step on two ranks, beside the calibrated prediction."""

from statistics import median

import torch

from lib.course.stopwatch import seconds_of
from lib.parallel.sharded import FSDP
from lib.predict.shape import MLPShape
from lib.predict.sharded.fsdp_step import fsdp_step
from lib.ranks.calibrate import calibrate
from lib.single import MLP


def fsdp_steps(shape: MLPShape, rows: int, repeats: int = 20) -> list[float]:
    """Return the seconds of FSDP's training steps on this rank, with plain SGD."""
    fsdp = FSDP(MLP(shape))
    optimizer = torch.optim.SGD(fsdp.parameters(), lr=1e-6, foreach=False)
    x, gradient = torch.ones(rows, shape.widths[0]), torch.ones(rows, shape.widths[-1])

    def step():
        optimizer.zero_grad()
        fsdp(x).backward(gradient)
        optimizer.step()

    return seconds_of(step, repeats, uncounted=2)


def compared(world, machine, shape: MLPShape, rows: int, repeats: int = 20) -> list[tuple]:
    """Return (what, predicted, measured) seconds: computation on one rank, and FSDP's whole step.

    `machine` is the calibration of this machine. The measured time is the median of the slowest
    rank's `repeats` steps. Computation is the prediction's alone.
    """
    step = fsdp_step(shape, [rows] * world.size, machine)
    computing = sum(row.seconds for row in step.where(lane="compute", rank=0))
    moving = sum(
        machine.moving(row.op, world.size, row.bytes) for row in step.where(lane="comm", rank=0)
    )
    predicted = machine.overlapped(computing + moving, step.makespan)
    by_rank = world.run(fsdp_steps, shape, rows, repeats)
    return [
        ("computation", computing, None),
        ("collectives", moving, None),
        ("whole step", predicted, median(map(max, zip(*by_rank)))),
    ]


def fsdp_on(world, shape: MLPShape, rows: int) -> str:
    """Calibrate this machine, and write what `compared` gives for FSDP's step on `world`."""
    return table(compared(world, calibrate(world, quiet=True), shape, rows))


def table(rows: list[tuple]) -> str:
    """Write predicted and measured seconds as a table in milliseconds, with the error."""
    lines = [f"{'ms':<14}{'predicted':>10}{'measured':>10}{'error':>7}"]
    for what, predicted, measured in rows:
        line = f"{what:<14}{1e3 * predicted:>10.1f}"
        if measured is not None:
            line += f"{1e3 * measured:>10.1f}{f'{predicted / measured - 1:+.0%}':>7}"
        lines.append(line)
    return "\n".join(lines)
