"""Holding the stop button back while messages travel: half a message would cost a rank its life."""

import signal
import threading
from contextlib import contextmanager


class Interrupts:
    """Whether the stop button was pressed; it cuts in only where nothing can be torn."""

    def __init__(self):
        self.pressed = self.open = False

    def wait(self, selector, limit: float) -> list:
        """Wait for events; the stop button ends the wait and leaves the events for the next."""
        if self.pressed:  # being dealt with: from now on nothing cuts in
            return selector.select(limit)
        self.open = True
        try:
            return selector.select(limit)
        except KeyboardInterrupt:
            return []
        finally:
            self.open = False

    def handle(self, *_) -> None:
        """Handle SIGINT."""
        self.pressed = True
        if self.open:
            self.open = False
            raise KeyboardInterrupt


@contextmanager
def patient():
    """Handle SIGINT by an Interrupts inside; a thread other than the main one never sees it."""
    interrupts = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return
    old = signal.signal(signal.SIGINT, interrupts.handle)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, old)
