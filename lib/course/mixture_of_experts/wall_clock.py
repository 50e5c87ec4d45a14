"""An experiment by the wall clock: a layer of experts on two ranks, beside its prediction."""

import torch
import torch.distributed as dist

from lib.course.stopwatch import beside_prediction, seconds_of, table
from lib.parallel.expert import expert_parallel
from lib.predict.expert.step import expert_step
from lib.ranks.calibrate import calibrate
from lib.single.experts import MoE

WIDTH, HIDDEN, EXPERTS, K, TOKENS = 256, 1024, 8, 2, 2048


def steps(repeats: int = 10) -> list[float]:
    """Return the seconds of forward and backward of a layer of experts on this rank.

    The gate has its first weights, so that the load is nearly even.
    """
    layer = expert_parallel(MoE(WIDTH, HIDDEN, EXPERTS, K))
    torch.manual_seed(dist.get_rank())
    x = torch.randn(1, TOKENS, WIDTH, requires_grad=True)

    def step():
        layer.zero_grad()
        x.grad = None
        layer(x).square().mean().backward()

    return seconds_of(step, repeats, uncounted=2)


def compared(world, machine, repeats: int = 10) -> list[tuple]:
    """Return (what, predicted, measured) seconds, as `beside_prediction` does."""
    sizes = WIDTH, HIDDEN, EXPERTS, K, TOKENS
    step = expert_step(*sizes, world.size, machine)
    return beside_prediction(step, machine, world.run(steps, repeats), "messages")


def step_on(world) -> str:
    """Calibrate this machine, and write what `compared` gives for a step on `world`."""
    return table(compared(world, calibrate(world, quiet=True)))
