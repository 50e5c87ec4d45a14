"""The cover of chapter 2: three workers of a server that wait for each other, and that do not."""

from dataclasses import replace

from lib.course.narrow import narrow, save
from lib.draw import timeline
from lib.ledger import Ledger
from lib.predict.data.parameter_server import ServerSettings, simulate

IMAGE = "communicating-less.png"
ROWS = [f"{way} {worker}" for way in ("bulk", "free") for worker in range(3)]
MILLISECOND = 1e-3
# A gradient takes 1 ms, but every twelfth takes 12 ms, at another time on each worker.
SLOW = (11, 7, 0, 3, 5, 9)
TIMES = tuple(tuple(12 if n % 12 == slow else 1 for n in range(12)) for slow in SLOW)


def stragglers(bound: int | None, gradients: int = 180, many: int = 3) -> ServerSettings:
    """Return the run of so many of chapter 2's workers (at most six) with this staleness bound."""
    return ServerSettings(bound, gradients, TIMES[:many])


def workers(bound: int | None, gradients: int = 36, first_row: int = 0) -> list:
    """Return the predicted rows of the three workers, in milliseconds, without the server's."""
    times = tuple(tuple(t * MILLISECOND for t in one) for one in TIMES[:3])
    settings = replace(stragglers(bound, gradients), compute_times=times)
    rows = simulate(settings).ledger
    kept = [row for row in rows if row.rank and row.end - row.start > 1e-9]
    return [replace(row, rank=row.rank - 1 + first_row) for row in kept]


def side_by_side() -> Ledger:
    """Predict bulk-synchronous workers (rows 0 to 2) and asynchronous ones (rows 3 to 5)."""
    formula = "by a simulated server, with invented times; messages and updates take none"
    rows = [*workers(0), *workers(None, first_row=3)]
    return Ledger(rows, source="predicted", meta={"formula": formula})


def write(path) -> None:
    """Write the picture."""
    save(narrow(timeline(side_by_side(), rows=ROWS)), path)
