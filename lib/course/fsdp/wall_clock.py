"""An experiment by the wall clock: FSDP's step on two ranks, beside the calibrated prediction."""

import torch

from lib.course.stopwatch import beside_prediction, seconds_of, table
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
    """Return (what, predicted, measured) seconds of FSDP's step, as `beside_prediction` does.

    `machine` is the calibration of this machine; each rank makes `repeats` steps.
    """
    step = fsdp_step(shape, [rows] * world.size, machine)
    by_rank = world.run(fsdp_steps, shape, rows, repeats)
    return beside_prediction(step, machine, by_rank, "collectives")


def fsdp_on(world, shape: MLPShape, rows: int) -> str:
    """Calibrate this machine, and write what `compared` gives for FSDP's step on `world`."""
    return table(compared(world, calibrate(world, quiet=True), shape, rows))
