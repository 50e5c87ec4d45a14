"""What one rank keeps to hand while it runs: its board, its recording, its slow motion."""

import functools
import sysconfig
import time
from contextlib import contextmanager
from pathlib import Path

from lib.ranks.board import RUNNING, WAITING, Board

# Not the reader's: this library, Python's own, what pip installed, generated code.
_HIDDEN = (
    str(Path(__file__).parents[1]),
    *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
    *("<string>", "<frozen"),
)


class Mismatch(RuntimeError):
    """Ranks of one group launched different things under the same number."""

    def __init__(self, message: str, tag: int, number: int, members: tuple[int, ...]):
        super().__init__(message)
        self.where = (tag, number, members)


class Desk:
    """The one place where this process knows which rank it is; only `ranks/` looks at it."""

    def __init__(self):
        self.rank = 0
        self.board: Board | None = None
        self.events: list[dict] | None = None  # a list while a recording runs
        self.now = time.monotonic_ns  # a GPU's clock while one is recorded
        self.spans: list[str] = []  # names of the spans this rank is in, innermost last
        self.abandoned = False  # a wait was left that its group may never end
        self.slow = None  # a slow_motion.Motion while one runs
        self.slipped: int | None = None  # ns that slow motion was late, for the recorder
        self.began: int | None = None  # ns at which all ranks of this call began, if they agreed
        self.ended: int | None = None  # ns at which slow motion was through, for the recorder

    def waiting(self, tag: int, number: int) -> None:
        """Say on the board that this rank now blocks on (tag, number)."""
        if self.board:
            self.board.state(self.rank, WAITING, tag, number)

    def running(self) -> None:
        """Say on the board that this rank runs again."""
        if self.board:
            self.board.state(self.rank, RUNNING)


desk = Desk()


@contextmanager
def span(name: str, *, stage: int = -1, microbatch: int = -1, note: str = ""):
    """Record what runs inside as a row `name` of the compute lane; free when not recording."""
    desk.spans.append(name)
    began = _edge()
    try:
        yield
    finally:
        desk.spans.pop()
        if desk.events is not None:
            row = {"lane": "compute", "op": name, "start": began, "end": _edge()}
            desk.events.append(row | {"stage": stage, "microbatch": microbatch, "note": note})


def _edge() -> int:
    """Give the time at which a span begins or ends; slow motion first sleeps until it is there."""
    if desk.slow and desk.events is not None:
        return desk.slow.boundary()
    return desk.now()


@functools.cache
def hidden(filename: str) -> bool:
    """True for files that are not the reader's own."""
    return filename.startswith(_HIDDEN)


def user_line(frame) -> str:
    """Give `file:line` of the innermost frame that is the reader's own."""
    while frame is not None and hidden(frame.f_code.co_filename):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else ""
