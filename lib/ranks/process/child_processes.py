"""The processes that a rank's own code has started: they end with the rank.

Each rank leads a process group of its own, which its children are born into. A child that left for
a session of its own is found through its parent, on Linux: it outlives only a rank's sudden death.
"""

import contextlib
import os
import signal
from pathlib import Path


def lead() -> None:
    """Make this process the leader of a process group of its own."""
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)


def end_own() -> None:
    """End what this process has started; to be called last before it ends itself."""
    _kill(_below(os.getpid()))
    group = os.getpgid(0)
    with contextlib.suppress(OSError):
        os.setpgid(0, os.getpgid(os.getppid()))  # so as to be spared
    if group == os.getpid():
        _kill_group(group)


def end_with(pid: int, kill) -> None:
    """End a living process by `kill()`, and all that it has started."""
    below = _below(pid)
    _kill_group(pid)
    kill()
    _kill(below)


def end_left(pid: int) -> None:
    """End what a process that is dead and buried has left behind."""
    try:
        os.getpgid(pid)  # the number is another's by now, so nobody of the group was left
    except ProcessLookupError:
        _kill_group(pid)


def _kill_group(group: int) -> None:
    with contextlib.suppress(OSError):  # nobody is in it
        os.killpg(group, signal.SIGKILL)


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _below(pid: int) -> list[int]:
    """Give the children of a process, and theirs; none where the system does not list them."""
    pids: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, children.read_text().split()):
                pids += [child, *_below(child)]
    return pids
