"""Tables of chapter 10 on 8 and 4 bits: what a small GPT learns, and which scales come too late.

[Note: one digit]
A sum in float32 ends in other digits on another processor, and rounding to few bits multiplies the
difference. So a loss is the mean of three seeds, and of its digits the nearest of 1, 2 and 5 is
written.
"""

import math
from functools import partial
from statistics import mean

from lib.course.mixed_precision.fp8_runs import SEEDS, delayed_steps, final_losses
from lib.single.formats import E4M3, E8M0, MXFP4, MXFP8, NVFP4, BlockFormat
from lib.single.precision import fp8, microscaled

OUTLIER = 2.0**20  # the size of the planted channel
BLOCK = 16


def trained() -> str:
    """Write final losses above fp32's, by scaling, without and with an outlier."""
    lines = [f"mean of {len(SEEDS)} seeds        loss - fp32's"]
    for title, outlier in (("plain", 0.0), ("outlier", OUTLIER)):
        plain = final_losses(outlier=outlier)
        for scaling in ("tensor", "row", "block"):
            change = partial(fp8, scaling=scaling, block=BLOCK)
            lines.append(
                _differences(f"{title}, {scaling}", final_losses(change, outlier=outlier), plain)
            )
    return "\n".join(lines)


def delayed(sizes=(1, 1, 1, 8, 8, 8, 1)) -> str:
    """Write what delayed scaling makes of a tensor whose size jumps, step by step."""
    lines = ["step  largest  largest it fits  clipped   error"]
    for number, step in enumerate(delayed_steps(sizes), 1):
        lines.append(
            f"{number:<6}{step.maximum:>7.1f}{448 * step.scale:>17.1f}"
            f"{step.clipped:>9.0%}{step.error:>8.1%}"
        )
    return "\n".join(lines)


def few_bits(steps: int = 60) -> str:
    """Write final losses above fp32's in formats whose blocks share a scale."""
    ways = {
        "MXFP8, floor": partial(microscaled, format=MXFP8),
        "MXFP8, ceil": partial(
            microscaled, format=BlockFormat("MXFP8", E4M3, E8M0, 32, rule="ceil")
        ),
        "MXFP4": partial(microscaled, format=MXFP4),
        "NVFP4": partial(microscaled, format=NVFP4),
        "NVFP4, stochastic": partial(microscaled, format=NVFP4, stochastic=True),
        "and with Hadamard": partial(
            microscaled, format=NVFP4, stochastic=True, hadamard="weights"
        ),
    }
    plain = final_losses(steps=steps)
    lines = [f"mean of {len(SEEDS)} seeds        loss - fp32's"]
    for name, change in ways.items():
        lines.append(_differences(name, final_losses(change, steps=steps), plain))
    return "\n".join(lines)


def _differences(name: str, losses: list[float], plain: list[float]) -> str:
    return f"{name:<22}{nearest(mean(losses) - mean(plain)):>13}"


def nearest(loss: float) -> str:
    """Write the nearest of 0.01, 0.02, 0.05, 0.1 and so on: "about 0.05", or "under 0.01"."""
    if abs(loss) < 0.01:
        return "under 0.01"
    steps = [digit * 10.0**power for power in range(-2, 2) for digit in (1, 2, 5)]
    best = min(steps, key=lambda step: abs(math.log(abs(loss) / step)))
    return f"{'-' if loss < 0 else ''}about {best:g}"
