"""Holding the stop button back while messages travel: half a message would cost a rank its life."""

import _signal  # signal.signal looks each handler up in an enum: 11 µs a call, and this takes 0.7
import signal
import threading


class Interrupts:
    """Whether the stop button was pressed. Nothing is interrupted by it: code that waits looks."""

    def __init__(self):
        self.pressed = False

    def handle(self, *_) -> None:
        """Handle SIGINT."""
        self.pressed = True


class _Patient:
    """Lets an Interrupts handle SIGINT inside a `with`."""

    def __enter__(self) -> Interrupts:
        interrupts = Interrupts()
        self.in_main = threading.get_ident() == threading.main_thread().ident
        if self.in_main:
            self.before = _signal.signal(signal.SIGINT, interrupts.handle)
        return interrupts

    def __exit__(self, *_):
        if self.in_main:
            _signal.signal(signal.SIGINT, self.before)


def patient() -> _Patient:
    """Handle SIGINT by an Interrupts inside a `with`; threads beside the main one never see it."""
    return _Patient()  # no generator, which would take as long as the rest
