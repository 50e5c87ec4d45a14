"""The README's picture: one data-parallel step on four ranks in slow motion, as an animated SVG."""

import torch
import torch.distributed as dist

from lib import World
from lib.draw import timeline
from lib.draw.parts.animated_svg import playing
from lib.ranks import span
from lib.ranks.slow_motion import SlowMotion
from lib.ranks.state.namespace import names

IMAGE = "slow-motion.svg"
WIDTH, ROWS, LAYERS = 1024, 1024, 4


def prepare() -> None:
    """Create weights and inputs, which stay on the rank."""
    names()["weights"] = [torch.ones(WIDTH, WIDTH) for _ in range(LAYERS)]
    names()["inputs"] = torch.ones(ROWS, WIDTH)


def step() -> None:
    """Run one training step in which each layer's gradient is summed while the next is computed.

    Rank 2 has half a layer more to compute in forward, and the other ranks wait for it.
    """
    weights, x = names()["weights"], names()["inputs"]
    with span("forward"):
        for weight in weights:
            x @ weight
        if dist.get_rank() == 2:
            x[: ROWS // 2] @ weights[0]
    sums = []
    for weight in reversed(weights):
        with span("backward"):
            gradient = x.T @ x
            x @ weight.T
        sums.append(dist.all_reduce(gradient, async_op=True))
    for work in sums:
        work.wait()
    with span("optimizer"):
        for weight in weights:
            weight.add_(gradient, alpha=-0.1)


def write(path) -> None:
    """Record the step in slow motion on real ranks, and write the animated picture."""
    speeds = SlowMotion("H100", link="NVLink4", dtype="fp32", factor=20_000)
    with World(4, slow_motion=speeds) as world:
        world.run(prepare)
        world.run(step)
        path.write_text(playing(timeline(world.record(step))))
