"""Pictures that a page shows before any code: python -m lib.course.cover writes them all.

chapters/images/slow-motion.svg   data parallel on four ranks, in slow motion, playing: the README
chapters/images/bubble.png        GPipe on paper: chapter 4
"""

from pathlib import Path

import torch
import torch.distributed as dist

from lib import World
from lib.draw import schedule, timeline
from lib.draw.playing import playing
from lib.ranks import span
from lib.ranks.namespace import names
from lib.ranks.slow_motion import SlowMotion

IMAGES = Path(__file__).parents[2] / "chapters" / "images"
WIDTH, ROWS, LAYERS = 1024, 1024, 4


def prepare() -> None:
    """Make weights and inputs, which stay on the rank."""
    names()["weights"] = [torch.ones(WIDTH, WIDTH) for _ in range(LAYERS)]
    names()["inputs"] = torch.ones(ROWS, WIDTH)


def step() -> None:
    """One training step by hand: each layer's gradient is summed while the next is computed.

    Rank 2 has half a layer more to do in forward, and everybody waits for it.
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
    for handle in sums:
        handle.wait()
    with span("optimizer"):
        for weight in weights:
            weight.add_(gradient, alpha=-0.1)


def picture():
    """Run the step in slow motion on real ranks and draw what they did."""
    speeds = SlowMotion("H100", link="NVLink4", dtype="fp32", factor=20_000)
    with World(4, slow_motion=speeds) as world:
        world.run(prepare)
        world.run(step)
        return timeline(world.record(step))


if __name__ == "__main__":
    (IMAGES / "slow-motion.svg").write_text(playing(picture()))
    schedule("gpipe", stages=4, microbatches=4).save(IMAGES / "bubble.png")
