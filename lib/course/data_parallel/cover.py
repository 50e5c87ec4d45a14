"""The cover of chapter 1: a step of DP above the same step of DDP, on one time axis."""

from dataclasses import replace

from lib.course.data_parallel.lessons import in_phases, on_one_axis
from lib.course.narrow import narrow, save
from lib.draw import timeline
from lib.draw.parts import style
from lib.draw.parts.marks import Mark, Still
from lib.ledger import Ledger
from lib.predict.data.ddp_step import data_parallel_step
from lib.predict.data.dp_step import data_parallel_devices_step
from lib.predict.roofline import speeds
from lib.predict.shape import MLPShape

IMAGE = "data-parallel.png"
WIDTHS, ROWS, COUNT = (4096,) * 7, 16384, 4
BF16 = 2  # bytes
# What a timeline calls rank and names by its colour, in DP's own words.
DP_WORDS = {f"rank {n}": f"GPU {n}" for n in range(COUNT)}
DP_WORDS |= {"all_reduce": "reduce", "all_gather": "gather"}
DP_LEGEND = DP_WORDS | {"broadcast": "broadcast, scatter"}  # both have one colour


def dp_and_ddp() -> tuple[Ledger, Ledger]:
    """Predict one step of DP, whose ledger's ranks are devices, and the same step of DDP.

    The model has six layers of width 4096; four H100s, linked by NVLink 4, share 16,384 rows in
    bfloat16. DP broadcasts and reduces through NCCL's ring, as PyTorch does on GPUs. Both ledgers
    last equally long, so that their pictures have one scale.
    """
    shape, hardware = MLPShape(WIDTHS, bias=False), speeds("H100", "NVLink4")
    nbytes = ROWS * WIDTHS[0] * BF16
    dp = data_parallel_devices_step(
        shape, ROWS, COUNT, hardware, batch_bytes=nbytes, itemsize=BF16, ring=True
    )  # fmt: skip
    ddp = data_parallel_step(shape, [ROWS // COUNT] * COUNT, hardware, itemsize=BF16)
    dp, ddp = on_one_axis(dp, in_phases(ddp, shape))
    return dp, ddp


def stacked(parts) -> Still:
    """Return stills below one another.

    Each part is a title, a picture, and words to replace; those of a legend may follow as a
    further dict, if they are others.
    """
    marks, y = [], 0.0
    for title, picture, words, *others in parts:
        legend = others[0] if others else words
        y += style.LINE
        marks.append(Mark("text", 8, y - style.LINE / 2, text=title, fill=style.INK))
        for mark in picture.marks:
            points = tuple((px, py + y) for px, py in mark.points)
            text = (legend if mark.align == "left" else words).get(mark.text, mark.text)
            marks.append(replace(mark, y=mark.y + y, points=points, text=text))
        y += picture.height
    return Still(marks, max(picture.width for _, picture, *_ in parts), round(y))


def write(path) -> None:
    """Write the picture."""
    dp, ddp = (narrow(timeline(step)) for step in dp_and_ddp())
    still = stacked(
        [
            ("DP: four devices of one process", dp, DP_WORDS, DP_LEGEND),
            ("DDP: four ranks, a process each", ddp, {}),
        ]
    )
    save(still, path)
