"""The picture at the top of chapter 1: python -m lib.course.cover_data writes it.

chapters/images/data-parallel.png   DP's five exchanges beside DDP's buckets, on one clock
"""

from dataclasses import replace
from pathlib import Path

from lib.draw import timeline
from lib.ledger import Ledger, Row
from lib.predict.devices import data_parallel_devices_step
from lib.predict.overlap import data_parallel_step, layers_per_bucket
from lib.predict.shape import MLPShape
from lib.ranks.slow_motion import SlowMotion

IMAGE = Path(__file__).parents[2] / "chapters" / "images" / "data-parallel.png"
WIDTHS, ROWS, COUNT = (4096,) * 7, 16384, 4


def side_by_side() -> Ledger:
    """Play one step of DP (rows 0 to 3, its devices) and of DDP (rows 4 to 7, its ranks) on paper.

    Six layers 4096 wide and 16,384 rows, shared by four H100s over NVLink.
    """
    speeds, itemsize = SlowMotion("H100", link="NVLink4"), 4
    size = WIDTHS[0] ** 2 * itemsize
    dp = data_parallel_devices_step(
        MLPShape(WIDTHS, bias=False), ROWS, COUNT, speeds, batch_bytes=ROWS * WIDTHS[0] * itemsize
    )
    ddp = data_parallel_step(
        WIDTHS, [ROWS // COUNT] * COUNT, speeds, buckets=layers_per_bucket(WIDTHS, size)
    )
    below = []
    for rank in ddp.ranks:
        rows = list(ddp.where(rank=rank, lane="compute"))
        layers = len(WIDTHS) - 1
        parts = rows[: 2 * layers], rows[2 * layers : -layers], rows[-layers:]
        for op, part in zip(("forward", "backward", "step"), parts):
            below.append(Row(rank + COUNT, "compute", op, part[0].start, part[-1].end))
        for row in ddp.where(rank=rank, lane="comm"):
            members = tuple(member + COUNT for member in row.members)
            below.append(replace(row, rank=rank + COUNT, members=members))
    return Ledger([*dp.where(lane=["compute", "comm"]), *below], source="predicted")


if __name__ == "__main__":
    timeline(side_by_side()).save(IMAGE)
