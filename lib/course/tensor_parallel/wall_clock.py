"""An experiment by the wall clock: a tensor-parallel step on two ranks, beside its prediction."""

from statistics import median

import torch

from lib.course.fsdp.wall_clock import table
from lib.course.stopwatch import seconds_of
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
    """Return (what, predicted, measured) seconds: computation, all-reduces, and the whole step.

    `machine` is the calibration of this machine. The measured time is the median of the slowest
    rank's `repeats` steps. Computation and all-reduces are the prediction's alone.
    """
    step = tensor_parallel_step(shape, world.size, samples, machine)
    computing = sum(row.seconds for row in step.where(lane="compute", rank=0))
    moving = sum(
        machine.moving(row.op, world.size, row.bytes) for row in step.where(lane="comm", rank=0)
    )
    predicted = machine.overlapped(computing + moving, step.makespan)
    by_rank = world.run(steps, shape, samples, repeats)
    return [
        ("computation", computing, None),
        ("all-reduces", moving, None),
        ("whole step", predicted, median(map(max, zip(*by_rank)))),
    ]


def step_on(world, shape: GPTShape, samples: int) -> str:
    """Calibrate this machine, and write what `compared` gives for a step on `world`."""
    return table(compared(world, calibrate(world, quiet=True), shape, samples))
