"""Starting rank processes: quickly, from a server that has torch loaded, in a private folder."""

import contextlib
import fcntl
import multiprocessing
import multiprocessing.util
import os
import shutil
import signal
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

# torch._dynamo: every optimizer loads it in its first step, a second on each rank otherwise.
_PRELOADED = ["torch", "torch.distributed", "torch._dynamo", "lib.ranks.worker"]
METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


def warm() -> None:
    """Start the server that ranks are forked from, in the background: it loads torch meanwhile."""
    if METHOD != "forkserver" or multiprocessing.parent_process() is not None:
        return
    from multiprocessing import forkserver, resource_tracker

    # The socket of the server lies in a folder of mode 0700, never in the open abstract namespace.
    multiprocessing.util.abstract_sockets_supported = False
    multiprocessing.set_forkserver_preload(_PRELOADED)
    # The stop button, pressed while the server still loads torch, must not end it: it starts with
    # SIGINT blocked, and ranks unblock it. (The tracker first: starting it would unblock it here.)
    resource_tracker.ensure_running()
    old = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with _without_main():
            forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)


@contextlib.contextmanager
def _without_main():
    """Hide the main script: a rank must not run it again, guard or no guard."""
    main = sys.modules["__main__"]
    hidden = {n: main.__dict__.pop(n) for n in ("__file__", "__spec__") if n in main.__dict__}
    main.__spec__ = None
    try:
        yield
    finally:
        main.__dict__.update(hidden)


_alive: dict[str, object] = {}  # folder -> its locked file, open as long as this process lives


def private_folder() -> str:
    """Make a folder that only this user can enter; remove those whose kernel was killed."""
    for left in Path(tempfile.gettempdir()).glob("ranks-*/alive"):
        with contextlib.suppress(OSError), open(left) as file:  # another user's, or still alive
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left.parent, ignore_errors=True)
    folder = tempfile.mkdtemp(prefix="ranks-")  # mode 0700
    _alive[folder] = file = open(f"{folder}/alive", "w")  # noqa: SIM115  (open while we live)
    fcntl.flock(file, fcntl.LOCK_EX)
    return folder


@dataclass
class Process:
    """One rank as the kernel holds it: its process and the kernel's ends of three connections."""

    rank: int
    process: object
    tasks: object
    answers: object
    control: object
    ready: bool = False

    @property
    def sentinel(self) -> int:
        """A descriptor that becomes readable when the process ends."""
        return self.process.sentinel

    def exit_code(self) -> int | None:
        """Give the exit code of an ended process; minus the signal if a signal ended it."""
        self.process.join(2)
        return self.process.exitcode

    def kill(self) -> None:
        """End the process and close the connections."""
        if self.process.is_alive():
            self.process.kill()
        self.process.join(5)
        self.close()

    def close(self) -> None:
        """Close the kernel's ends; a living rank then ends by itself."""
        for end in (self.tasks, self.answers, self.control):
            end.close()


def start(rank: int, size: int, folder: str, board: str, threads: int) -> Process:
    """Start one rank; it tells on `answers` when it is there."""
    from torch.multiprocessing import start_processes

    from lib.ranks import worker

    warm()
    context = multiprocessing.get_context(METHOD)
    ours, theirs = zip(*(context.Pipe() for _ in range(3)), strict=True)
    with _without_main():
        arguments = (rank, size, *theirs, folder, board, threads, dict(os.environ), list(sys.path))
        started = start_processes(worker.main, arguments, 1, join=False, start_method=METHOD)
    for end in theirs:
        end.close()
    return Process(rank, started.processes[0], *ours)


def remove(folder: str) -> None:
    """Remove a private folder."""
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(KeyError):
        _alive.pop(folder).close()
