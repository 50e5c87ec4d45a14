"""An experiment by the wall clock: a linear layer on a square of four ranks, and its prediction."""

import torch
from torch import nn

from lib.course.stopwatch import beside_prediction, seconds_of, table
from lib.parallel.grid import Linear2D
from lib.predict.tensor.summa_step import summa_step
from lib.ranks.calibrate import calibrate
from lib.ranks.mesh import mesh

SIDE = 2


def steps(rows: int, inputs: int, outputs: int, overlap: bool, repeats: int = 10) -> list[float]:
    """Return the seconds of forward and backward of a layer on this rank's tiles."""
    layer = Linear2D(nn.Linear(inputs, outputs), mesh(row=SIDE, column=SIDE), overlap)
    device = layer.weight.device
    x = torch.randn(rows // SIDE, inputs // SIDE, device=device, requires_grad=True)
    slope = torch.randn(rows // SIDE, outputs // SIDE, device=device)

    def step():
        x.grad = None
        layer.zero_grad()
        layer(x).backward(slope)

    return seconds_of(step, repeats, uncounted=2)


def compared(
    world, machine, rows: int, inputs: int, outputs: int, overlap: bool = True, repeats: int = 10
) -> list[tuple]:
    """Return (what, predicted, measured) seconds of the step, as `beside_prediction` does.

    `machine` is the calibration of this machine; each of the four ranks makes `repeats` steps.
    """
    step = summa_step(rows, inputs, outputs, SIDE, machine, overlap=overlap)
    by_rank = world.run(steps, rows, inputs, outputs, overlap, repeats)
    return beside_prediction(step, machine, by_rank, "collectives")


def layer_on(world, rows: int, inputs: int, outputs: int) -> str:
    """Calibrate this machine, and write what `compared` gives for a layer on `world`."""
    return table(compared(world, calibrate(world, quiet=True), rows, inputs, outputs))
