"""Which threads of a rank wait, and whether another of its threads may still do something.

A rank can be said to wait for ever only if none of its threads can act: its main thread may wait in
one group while a thread beside it is about to serve another. So the board shows the waits of all
threads, and says HELPED instead of WAITING as long as some other thread may still act.
"""

import sys
import threading
import time

from lib.ranks.shared.notice_board import HELPED, RUNNING, WAITING
from lib.ranks.state.frames import current_frames

OURS = ("watcher", "lanes", "companion")  # threads that run beside the reader's code
_UNTIL = ("wait", "join", "_wait_for_tstate_lock")  # where threading.py blocks for another thread
_LOOK = 0.05  # seconds between two looks at threads that may still act


class WaitingThreads:
    """The waits of one rank, by thread, as they are written on the board.

    `user_line` gives the reader's line that a frame is at, "" if it has none.
    """

    def __init__(self, user_line):
        self.user_line = user_line
        self.waits: dict[int, tuple[int, int]] = {}
        self.companion: threading.Thread | None = None
        self.lock = threading.Lock()

    def enter(self, board, rank: int, wait: tuple[int, int]) -> None:
        """Write that this thread blocks on `wait`, a (tag, number)."""
        self.waits[threading.get_ident()] = wait
        if len(threading._active) <= 2:  # the main thread and the watcher; counting them would lock
            board.state(rank, WAITING, wait)
        else:
            self._write(board, rank)

    def leave(self, board, rank: int) -> None:
        """Write that this thread runs again."""
        self.waits.pop(threading.get_ident(), None)
        if self.waits:
            self._write(board, rank)
        else:
            board.state(rank, RUNNING)

    def _write(self, board, rank: int) -> None:
        with self.lock:
            state = HELPED if self._others_may_act() else WAITING
            board.state(rank, state, *self.waits.values())
            if state == HELPED and self.companion is None:
                self.companion = threading.Thread(
                    target=self._accompany, args=(board, rank), daemon=True, name="companion"
                )
                self.companion.start()

    def _accompany(self, board, rank: int) -> None:
        """Look again and again whether a thread may still act; it may end without having done so.

        The board is written only where that has changed: what never changes is no sign of life.
        """
        while True:
            time.sleep(_LOOK)
            with self.lock:
                if not (self.waits and self._others_may_act()):
                    break
        self.companion = None
        if self.waits:
            self._write(board, rank)

    def _others_may_act(self) -> bool:
        frames, own = current_frames(), threading.get_ident()
        for over in self.waits.keys() - frames.keys():  # threads that ended in the middle of a wait
            del self.waits[over]
        return any(
            self._may_act(
                thread, sys._getframe() if thread.ident == own else frames.get(thread.ident)
            )
            for thread in threading.enumerate()
            if thread.ident not in self.waits and thread.name not in OURS
        )

    def _may_act(self, thread, frame) -> bool:
        """True unless a thread is over, blocked by another, or a library's own beside them."""
        if frame is None or _blocked(frame):
            return False
        return not thread.daemon or bool(self.user_line(frame))


def _blocked(frame) -> bool:
    """True for an idle thread of a pool, and for one that joins or awaits another without limit."""
    code = frame.f_code
    if code.co_filename == threading.__file__ and code.co_name in _UNTIL:
        return frame.f_locals.get("timeout", -1) in (None, -1)
    return code.co_name == "_worker" and code.co_filename.endswith("futures/thread.py")
