"""The stop button, pressed by a test."""

import contextlib
import os
import signal
import threading


@contextlib.contextmanager
def pressed_after(seconds: float):
    """Press the stop button some seconds after the `with` began, and surely before it ends.

    On a busy machine the press may come late. Pytest would take one that comes behind the test for
    a Ctrl-C of its own, and would end the whole run.
    """
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        yield
    finally:
        timer.join()  # the signal is sent by then, and Python's handler runs before the next line
