"""Tells of a check that runs the reader's own code for long, and where the stop button ended it.

On ranks `lib.ranks.kernel.progress` does so; here is the same for what a check calls in the kernel.
"""

import linecache
import sys
import threading
import time
import traceback
from types import FrameType

from lib.ranks.kernel.calls import Stop
from lib.ranks.kernel.progress import Messages
from lib.ranks.shared.failures import cell_of, place

_AFTER = 2.0  # seconds before anything is told
_BEAT = 0.5  # seconds between two messages


class Watch:
    """Watches the thread that enters it; frames that this thread adds inside are the check's."""

    def __enter__(self):
        self.began, self.over, self.is_told = time.monotonic(), threading.Event(), False
        self.base, self.thread = sys._getframe(1), threading.get_ident()
        self.messages = Messages.of_notebook()
        self.teller = threading.Thread(target=self._tell, daemon=True)
        if self.messages:
            self.teller.start()
        return self

    def __exit__(self, kind, error, trace) -> None:
        self.over.set()
        if self.messages:
            self.teller.join()
            self._take_back()
        self.base = None
        # Scripts show where they were, and a Stop of a World says where its ranks were.
        if self.messages and kind is KeyboardInterrupt:
            raise Stop(_stopped(trace, self._seconds())) from None

    def _tell(self) -> None:
        """Tell which function of the reader's runs, as long as one does."""
        pause = _AFTER
        while not self.over.wait(pause):
            pause = _BEAT
            name = self._running()
            if not name:
                self._take_back()
                continue
            text = f"The check has been running for {self._seconds()} s, now in `{name}`."
            self.messages.send({"text": f"{text} Stop it with ■ if it should have ended."})
            self.is_told = True

    def _take_back(self) -> None:
        if self.is_told:
            self.messages.send({"over": True})
            self.is_told = False

    def _seconds(self) -> int:
        return int(time.monotonic() - self.began)

    def _running(self) -> str:
        """Return the name of the reader's function that the check has called; "" where none is."""
        name, frame = "", sys._current_frames().get(self.thread)
        while frame and frame is not self.base:
            name = _name(frame) if cell_of(frame.f_code.co_filename) else name
            frame = frame.f_back
        return name


def _name(frame: FrameType) -> str:
    return frame.f_code.co_qualname.rpartition("<locals>.")[2]


def _stopped(trace, seconds: int) -> str:
    """Say what the stop button ended: the innermost line of the reader's below a check."""
    frames = list(traceback.walk_tb(trace))
    readers = [pair for pair in frames if cell_of(pair[0].f_code.co_filename)]
    if not readers:
        return f"stopped after {seconds} s in the check itself, not in your code."
    frame, line = readers[-1]
    filename = frame.f_code.co_filename
    where = f"stopped after {seconds} s in `{_name(frame)}`, {place(filename, line)}:"
    return f"{where}\n    {linecache.getline(filename, line).strip()}"
