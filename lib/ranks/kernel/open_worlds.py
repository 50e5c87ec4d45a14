"""The Worlds of this notebook that are open: which one `%%ranks` speaks to, and that all end."""

import atexit
import weakref

_opened: list[weakref.ref] = []  # in the order in which they were made


def opened(world) -> None:
    """Take note of a World that was just made: `%%ranks` cells run on it until it is closed."""
    _opened[:] = [ref for ref in _opened if ref() is not None]
    _opened.append(weakref.ref(world))


def current():
    """Return the World made last among those that are open, or None if there is none."""
    worlds = [ref() for ref in _opened]
    return next((w for w in reversed(worlds) if w is not None and w.is_open), None)


@atexit.register
def _close_all() -> None:
    for ref in _opened:
        if (world := ref()) is not None:
            world.close()
