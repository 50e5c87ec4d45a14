"""The cover of chapter 3: a step of FSDP without prefetch above the same step with it."""

from lib.course.data_parallel.cover import stacked
from lib.course.data_parallel.lessons import on_one_axis
from lib.course.fsdp.lessons import LARGE, ROWS, in_phases
from lib.course.narrow import narrow, save
from lib.draw import timeline
from lib.ledger import Ledger
from lib.predict.roofline import speeds
from lib.predict.sharded.fsdp_step import fsdp_step

IMAGE = "fsdp.png"
RANKS = 2  # that are drawn; all four do the same


def without_and_with() -> list[Ledger]:
    """Predict a step of FSDP on four H100s with NVLink 4, with prefetch 0 and 1, on one scale."""
    hardware = speeds("H100", "NVLink4")
    steps = [fsdp_step(LARGE, [ROWS] * 4, hardware, prefetch=limit) for limit in (0, 1)]
    return on_one_axis(
        *(in_phases(step, LARGE, hardware).where(rank=range(RANKS)) for step in steps)
    )


def write(path) -> None:
    """Write the picture."""
    without, prefetching = (narrow(timeline(step)) for step in without_and_with())
    still = stacked(
        [
            ("Each unit is gathered when it is needed", without, {}),
            ("The next unit is gathered while this one computes", prefetching, {}),
        ]
    )
    save(still, path)
