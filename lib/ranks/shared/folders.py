"""The private folders of this kernel: only its user can enter them, and they end with the kernel.

[Note: whose folder it is]
Folders lie in the user's runtime directory, or in a temporary directory that everybody may write
to. Whoever cleans up there must not be led astray: a folder counts as left behind only if it
belongs to this user, is closed to others, holds a regular file `alive` with our mark in it, and
nobody holds the lock on that file. The lock is taken before the file gets its name.
"""

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path

from lib.ranks.shared.failures import RankError

_MARK = b"a world of ranks: its kernel holds the lock on this file\n"
_SHORT = 65  # characters of a directory that leave room for the name of a socket: 104 on macOS
_locks: dict[str, int] = {}  # folder -> the descriptor that holds its lock while this kernel lives


def make(*, short: bool = False) -> str:
    """Make a folder that only this user can enter; remove those whose kernel was killed.

    `short`: its path leaves room for the name of a Unix socket. Raises RankError where no directory
    can hold the folder.
    """
    reasons = []
    for home in _homes():
        if short and len(home) > _SHORT:
            reasons.append(f"  {home}: its path is too long for a socket")
            continue
        sweep(home)
        try:
            return _lock(tempfile.mkdtemp(prefix="ranks-", dir=home))  # mode 0700
        except OSError as error:
            reasons.append(f"  {home}: {error.strerror}")
    raise RankError(
        "The ranks need a private folder, and no directory can hold it:\n"
        + "\n".join(reasons)
        + "\nFree some space there, or set TMPDIR to a directory that you can write to."
    )


def remove(folder: str) -> None:
    """Remove a folder that this kernel made."""
    shutil.rmtree(folder, ignore_errors=True)
    if folder in _locks:
        os.close(_locks.pop(folder))


def sweep(home: str) -> None:
    """Remove what killed kernels of this user left in a directory."""
    for path in Path(home).glob("ranks-*"):
        with contextlib.suppress(OSError):  # another user's, alive, or gone meanwhile
            _remove_if_left(str(path))


def _homes() -> list[str]:
    homes = [os.environ.get("XDG_RUNTIME_DIR", "")]
    with contextlib.suppress(OSError):  # not one directory that can be written to
        homes.append(tempfile.gettempdir())
    homes += ["/tmp", "/var/tmp"]
    if not (os.path.isabs(homes[0]) and os.path.isdir(homes[0]) and _private(os.stat(homes[0]))):
        del homes[0]
    return list(dict.fromkeys(homes))


def _private(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o077


def _lock(folder: str) -> str:
    descriptor = os.open(f"{folder}/new", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.write(descriptor, _MARK)
        os.rename(f"{folder}/new", f"{folder}/alive")
    except OSError:
        os.close(descriptor)
        shutil.rmtree(folder, ignore_errors=True)
        raise
    _locks[folder] = descriptor
    return folder


def _remove_if_left(path: str) -> None:
    """Remove a folder if it is one of ours and its kernel is gone; nothing here can block."""
    look = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | look)
    try:
        if not _private(os.fstat(folder)):
            return
        alive = os.open("alive", os.O_RDWR | look, dir_fd=folder)
        try:
            if stat.S_ISREG(os.fstat(alive).st_mode) and os.read(alive, 99) == _MARK:
                fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(alive)
    finally:
        os.close(folder)
