"""Locks that tell the Worlds of one machine, whoever's they are, which GPUs are in use.

[Note: one lock per GPU]
A lock is an `flock` on an empty file in /tmp: TMPDIR differs from user to user. A World that uses a
GPU holds its lock in shared mode, so several may share a GPU; the GPU is free if the lock can be
had in exclusive mode. The kernel of the operating system gives it back when the process ends.
Everybody can write to /tmp. Therefore a file is opened for reading only, never through a symbolic
link, and first without O_CREAT: with it Linux refuses files of others there (fs.protected_regular).
A new file gets its name by `link`, once everybody may read it. A lock that cannot be opened counts
as free: a GPU without a lock is better than none.
"""

import contextlib
import fcntl
import os
import stat
import tempfile
import time

_FOLDER, _PREFIX = "/tmp", "many-ranks-"
_PATIENCE = 2.0  # seconds to wait for another World that chooses; choosing takes milliseconds
_open: set[int] = set()  # the descriptors of this process


class GpuLock:
    """The lock of one GPU of this machine; `name` tells it from all others, such as its UUID."""

    def __init__(self, name: str):
        self.path = f"{_FOLDER}/{_PREFIX}{name}.lock"
        self._descriptor = _opened(self.path)

    def is_free(self) -> bool:
        """Take the lock alone; False where another World holds it."""
        return self._take(fcntl.LOCK_EX)

    def hold(self) -> None:
        """Hold the lock from now on, beside others that do."""
        self._take(fcntl.LOCK_SH)

    def release(self) -> None:
        """Give the lock back; a second call does nothing."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor in _open:
            _open.discard(descriptor)
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # a forked child may have it open as well
            os.close(descriptor)

    __del__ = release

    def holders(self) -> list[int]:
        """Give the processes that hold the lock, as far as this process may know them (Linux)."""
        if self._descriptor is None:
            return []
        inode = f":{os.fstat(self._descriptor).st_ino}"
        with contextlib.suppress(OSError), open("/proc/locks") as locks:
            rows = [line.split() for line in locks]
            processes = {
                int(row[4]) for row in rows if row[1] == "FLOCK" and row[5].endswith(inode)
            }
            return sorted(processes - {0, os.getpid()})
        return []

    def _take(self, mode: int) -> bool:
        if self._descriptor is None:
            return True
        try:
            fcntl.flock(self._descriptor, mode | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            pass  # this file system knows no locks
        return True


@contextlib.contextmanager
def choosing():
    """Let one World of this machine choose its GPUs at a time, so that two never take the same."""
    turn, deadline = GpuLock("choosing"), time.monotonic() + _PATIENCE
    try:
        while not turn.is_free() and time.monotonic() < deadline:
            time.sleep(0.002)
        yield
    finally:
        turn.release()


def _opened(path: str) -> int | None:
    """Open a lock file, which is made if need be; None where that is not possible or not safe."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    for _ in range(3):  # somebody may remove it in between
        try:
            descriptor = os.open(path, flags)
        except FileNotFoundError:
            _make(path)
            continue
        except OSError:
            return None
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            _open.add(descriptor)
            return descriptor
        os.close(descriptor)
        return None
    return None


def _make(path: str) -> None:
    with contextlib.suppress(OSError):  # another World was quicker, or nobody can write here
        descriptor, new = tempfile.mkstemp(prefix=_PREFIX, dir=_FOLDER)
        try:
            os.fchmod(descriptor, 0o644)
            os.link(new, path)
        finally:
            os.close(descriptor)
            os.unlink(new)


def _close_in_child() -> None:
    """Close what a forked child has inherited: it must not keep a lock that its parent had."""
    for descriptor in _open:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _open.clear()


os.register_at_fork(after_in_child=_close_in_child)
