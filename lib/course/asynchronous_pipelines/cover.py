"""The cover of chapter 7: one pipeline that is emptied for every update above one that never is."""

from lib.course.narrow import narrow, save
from lib.draw import timeline
from lib.ledger import Ledger
from lib.predict.pipeline import schedules
from lib.predict.pipeline.play import Costs, play

IMAGE = "stream.png"
_CAPTION = "Below, the same four ranks without flushes."


def above_one_another() -> dict[str, Ledger]:
    """Predict twelve microbatches on four ranks, with a flush after every four and in a stream."""
    costs = Costs(1e-3, 1e-3, 1e-3)
    flushed = play(schedules.repeated(schedules.one_f_one_b(4, 4), 3), costs).ledger
    stream = play(schedules.pipedream(4, 12), costs).ledger
    return {
        name: one.where(lane="compute") for name, one in (("1F1B", flushed), ("stream", stream))
    }


def write(path) -> None:
    """Write the picture."""
    save(narrow(timeline(above_one_another(), caption=_CAPTION)), path)
