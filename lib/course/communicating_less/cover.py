"""The cover of chapter 2: three workers of a server that wait for each other, and that do not."""

from dataclasses import replace

from lib.course.narrow import narrow, save
from lib.draw import timeline
from lib.ledger import Ledger
from lib.predict.data.parameter_server import ServerSettings, simulate

IMAGE = "communicating-less.png"
ROWS = [f"worker {worker}" for worker in range(3)] * 2
MILLISECOND = 1e-3
# A gradient takes 1 ms, but every twelfth takes 12 ms, at another time on each worker.
SLOW = (11, 7, 0, 3, 5, 9)
TIMES = tuple(tuple(12 if n % 12 == slow else 1 for n in range(12)) for slow in SLOW)


def stragglers(bound: int | None, gradients: int = 180, many: int = 3) -> ServerSettings:
    """Return the run of so many of chapter 2's workers (at most six) with this staleness bound."""
    return ServerSettings(bound, gradients, TIMES[:many])


def workers(bound: int | None, gradients: int = 36) -> Ledger:
    """Predict three workers, in milliseconds, without the server."""
    times = tuple(tuple(t * MILLISECOND for t in one) for one in TIMES[:3])
    settings = replace(stragglers(bound, gradients), compute_times=times)
    seen = (row for row in simulate(settings).ledger if row.rank and row.end - row.start > 1e-9)
    rows = [replace(row, members=()) for row in seen]  # the server has no row
    formula = "by a simulated server, with invented times; messages and updates take no time"
    return Ledger(rows, source="predicted", meta={"formula": formula})


def above_one_another() -> dict[str, Ledger]:
    """Predict workers that wait for each other in every round, and workers that never wait."""
    return {"bulk-synchronous": workers(0), "asynchronous": workers(None)}


def write(path) -> None:
    """Write the picture."""
    save(narrow(timeline(above_one_another(), rows=ROWS)), path)
