"""The cover of chapter 7: one pipeline that is emptied for every update above one that never is."""

from dataclasses import replace

from lib.course.asynchronous_pipelines.lessons import ROWS
from lib.course.narrow import narrow, save
from lib.draw import timeline
from lib.ledger import Ledger
from lib.predict.pipeline import schedules
from lib.predict.pipeline.play import Costs, play

IMAGE = "stream.png"
_CAPTION = "Below, the same four ranks without flushes."


def side_by_side() -> Ledger:
    """Predict twelve microbatches with flushes (rows 0 to 3) and in a stream (rows 4 to 7)."""
    costs = Costs(1e-3, 1e-3, 1e-3)
    above = play(schedules.repeated(schedules.one_f_one_b(4, 4), 3), costs).ledger
    below = play(schedules.pipedream(4, 12), costs).ledger
    moved = [replace(row, rank=row.rank + 4) for row in below.where(lane="compute")]
    rows = [*above.where(lane="compute"), *moved]
    return Ledger(rows, source="predicted", meta=above.meta)  # which says that it is simulated


def write(path) -> None:
    """Write the picture."""
    save(narrow(timeline(side_by_side(), caption=_CAPTION, rows=ROWS)), path)
