"""Where each thread of this process stands.

[Note: nothing is collected meanwhile]
`sys._current_frames()` makes frames under a lock of the interpreter. In Python 3.11 that may start
the collector of garbage, whose Python code lets another thread have the interpreter. If that thread
is ending, it wants the same lock, and both wait for ever: github.com/python/cpython/issues/106883.

[Note: no frame of one's own]
A function that keeps its own frame makes a ring: all that the functions above it hold, gradients
too, then lives until the collector of garbage comes.
"""

import gc
import sys
import threading


def current_frames() -> dict:
    """Return the innermost frame of every thread, by its identifier; of the calling one None."""
    collects = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames() | {threading.get_ident(): None}
    finally:
        if collects:
            gc.enable()
