"""An experiment by the wall clock: a tensor-parallel step on two ranks, beside its prediction."""

import torch

from lib.course.stopwatch import beside_prediction, seconds_of, table
from lib.course.tensor_parallel.lessons import batch_of, forward_backward
from lib.parallel.tensor import tensor_parallel
from lib.predict.shape import GPTShape
from lib.predict.tensor.step import tensor_parallel_step
from lib.ranks.calibrate import calibrate
from lib.single import GPT


def steps(shape: GPTShape, samples: int, repeats: int = 20) -> list[float]:
    """Return the seconds of tensor-parallel training steps on this rank, with plain SGD."""
    model, batch = tensor_parallel(GPT(shape)), batch_of(shape, samples)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, foreach=False)

    def step():
        optimizer.zero_grad()
        forward_backward(model, *batch)
        optimizer.step()

    return seconds_of(step, repeats, uncounted=2)


def compared(world, machine, shape: GPTShape, samples: int, repeats: int = 20) -> list[tuple]:
    """Return (what, predicted, measured) seconds of the step, as `beside_prediction` does.

    `machine` is the calibration of this machine; each rank makes `repeats` steps.
    """
    step = tensor_parallel_step(shape, world.size, samples, machine)
    by_rank = world.run(steps, shape, samples, repeats)
    return beside_prediction(step, machine, by_rank, "all-reduces")


def step_on(world, shape: GPTShape, samples: int) -> str:
    """Calibrate this machine, and write what `compared` gives for a step on `world`."""
    return table(compared(world, calibrate(world, quiet=True), shape, samples))
