"""Where the members of a group find each other: a store that lives in the world's private folder.

Each key is a file, so every wait is Python's and the stop button reaches it, and a folder that is
gone is an error at once. (PyTorch's FileStore retries for minutes and holds the interpreter.)
PyTorch's C++ code calls some methods by other names than Python does; these stand at the end.
Queues and the list of keys cannot be offered: it calls these in stores of its own alone.
"""

import datetime
import fcntl
import hashlib
import os
import threading
import time

import torch.distributed as dist

# Long on purpose: a wait that cannot end is found on the board, not by this clock.
_PATIENCE = datetime.timedelta(hours=6)


class FolderStore(dist.Store):
    """A key-value store of processes on one machine; one file a key."""

    def __init__(self, folder: str):
        super().__init__()
        os.makedirs(folder, mode=0o700, exist_ok=True)
        self.folder, self._stopped = folder, threading.Event()
        self._clones: list[FolderStore] = []  # C++ code keeps no Python object alive
        self.set_timeout(_PATIENCE)

    def clone(self):
        """Give another store of the same keys; what stops one stops the other."""
        other = FolderStore(self.folder)
        other._stopped = self._stopped
        other.set_timeout(self.timeout)
        self._clones.append(other)
        return other

    def stop(self) -> None:
        """End every wait of this process on these keys, with RuntimeError."""
        self._stopped.set()

    def set(self, key, value):
        """Write a value; whoever reads sees the old one or the new one, never a part."""
        path = self._path(key)
        draft = f"{path}.{os.getpid()}-{threading.get_ident()}"
        with open(draft, "wb") as file:
            file.write(value.encode() if isinstance(value, str) else bytes(value))
        os.replace(draft, path)

    def get(self, key):
        """Wait for a key and read it."""
        self.wait([key])
        return self._read(key)

    def wait(self, keys, timeout=None):
        """Wait until all keys are there; raise DistStoreError when the time (or the call) is over.

        Without a `timeout` the store's own holds, which `set_timeout` sets.
        """
        limit, pause = (timeout or self.timeout).total_seconds(), 0.0001
        end = time.monotonic() + limit
        while not self.check(keys):
            if self._stopped.is_set():
                raise RuntimeError(
                    "This rank was stopped while it waited for the others to join a group."
                )
            if time.monotonic() > end:
                missing = ", ".join(key for key in keys if not self.check([key]))
                raise dist.DistStoreError(
                    f"This rank timed out: it waited {limit:g} s for {missing} in the store. See "
                    "that the rank that sets it comes so far, or give the wait more time."
                )
            time.sleep(pause)
            pause = min(2 * pause, 0.005)

    def check(self, keys):
        """True if all keys are there."""
        return all(os.path.exists(self._path(key)) for key in keys)

    def add(self, key, amount):
        """Add to a number, from 0 if there is none; give the sum."""
        with self._alone():
            total = int(self._read(key) or 0) + amount
            self.set(key, str(total))
        return total

    def compare_set(self, key, expected, desired):
        """Write `desired` if the value is `expected` (or there is none and it is empty)."""
        with self._alone():
            now = self._read(key)
            if now == _raw(expected) or (now is None and not expected):
                self.set(key, desired)
                return _raw(desired)
            return _raw(expected) if now is None else now

    def delete_key(self, key):
        """Forget a key; True if it was there."""
        try:
            os.remove(self._path(key))
        except FileNotFoundError:
            return False
        return True

    def num_keys(self):
        """Count the keys."""
        return sum(name.isalnum() and name != "lock" for name in os.listdir(self.folder))

    def multi_get(self, keys):
        """Wait for several keys and read them."""
        self.wait(keys)
        return [self._read(key) for key in keys]

    def multi_set(self, keys, values):
        """Write several values."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def append(self, key, value):
        """Write behind the value that is there."""
        with self._alone():
            self.set(key, (self._read(key) or b"") + _raw(value))

    def has_extended_api(self):
        """Say that append, multi_get and multi_set are there."""
        return True

    deleteKey, getNumKeys = delete_key, num_keys  # as C++ code calls them

    def _path(self, key) -> str:
        return f"{self.folder}/{hashlib.blake2b(key.encode(), digest_size=16).hexdigest()}"

    def _read(self, key):
        try:
            with open(self._path(key), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def _alone(self):
        file = open(f"{self.folder}/lock", "a")  # noqa: SIM115  (closing it gives the lock back)
        fcntl.flock(file, fcntl.LOCK_EX)
        return file


def _raw(value) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
