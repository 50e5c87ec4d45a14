"""What one rank keeps to hand while it runs: its board, its recording, its slow motion."""

import functools
import site
import sysconfig
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import torch

from lib.ranks.shared.notice_board import NoticeBoard
from lib.ranks.state.frames import current_frames
from lib.ranks.state.waiting_threads import WaitingThreads

# Not the reader's: this library, Python's own, what pip installed, PyTorch wherever it was put,
# generated code.
_HIDDEN = (
    str(Path(__file__).parents[2]),
    *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
    site.getusersitepackages(),
    *torch.__path__,
    *("<string>", "<frozen"),
)


class Mismatch(RuntimeError):
    """Ranks of one group launched different things under the same number."""

    def __init__(self, message: str, tag: int, number: int, members: tuple[int, ...]):
        super().__init__(message)
        self.where = (tag, number, members)


@functools.cache
def hidden(filename: str) -> bool:
    """True for files that are not the reader's own."""
    return filename.startswith(_HIDDEN)


def user_line(frame) -> str:
    """Give `file:line` of the innermost frame that is the reader's own."""
    while frame is not None and hidden(frame.f_code.co_filename):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else ""


def line_here(frame) -> str:
    """Give the reader's line that a call came from; on a GPU backward has a thread of its own."""
    line = user_line(frame)
    if not line and threading.current_thread() is not threading.main_thread():
        return user_line(current_frames().get(threading.main_thread().ident))
    return line


class ThisRank:
    """The one place where this process knows which rank it is, and what it is doing."""

    def __init__(self):
        self.rank = 0
        self.board: NoticeBoard | None = None
        self.waits = WaitingThreads(user_line)  # which threads of this rank wait, and for what
        self.recording = None  # a recorder.Recording while one runs
        self.spans: list[str] = []  # names of the spans this rank is in, innermost last
        self.abandoned = False  # a wait was left that its group may never end
        self.counted = None  # the live_storages.Storages of a Memory that counts
        self.slow = None  # a ComputeClock while this rank is in slow motion

    def now(self):
        """Give the time in ns; while a GPU is recorded, a mark in its stream that becomes one."""
        recording = self.recording
        return recording.now() if recording else time.monotonic_ns()

    def waiting(self, tag: int, number: int) -> None:
        """Say on the board that this thread now blocks on (tag, number)."""
        if self.board:
            self.waits.enter(self.board, self.rank, (tag, number))

    def running(self) -> None:
        """Say on the board that this thread runs again."""
        if self.board:
            self.waits.leave(self.board, self.rank)


this_rank = ThisRank()


@contextmanager
def span(name: str, *, stage: int = -1, microbatch: int = -1, note: str = ""):
    """Record what runs inside as a row `name` of the compute lane; free when not recording."""
    this_rank.spans.append(name)
    began = _edge()
    try:
        yield
    finally:
        this_rank.spans.pop()
        if recording := this_rank.recording:
            more = {"stage": stage, "microbatch": microbatch, "note": note}
            recording.note("compute", name, began, _edge(), **more)


def _edge() -> int:
    """Give the time at which a span begins or ends; slow motion first sleeps until it is there."""
    if this_rank.slow and this_rank.recording:
        return this_rank.slow.boundary()
    return this_rank.now()
