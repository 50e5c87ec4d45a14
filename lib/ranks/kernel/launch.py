"""Starting rank processes: quickly, from a server that has torch loaded."""

import contextlib
import multiprocessing
import multiprocessing.util
import os
import re
import signal
import sys
from dataclasses import dataclass

from lib.ranks.process import child_processes
from lib.ranks.shared import folders
from lib.ranks.state.this_rank import hidden
from lib.ranks.transport.channel import Inbox, Outbox

_FRAME = re.compile(r'  File "(.*)", line')
METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


def warm() -> None:
    """Start the server that ranks are forked from, in the background: it loads torch meanwhile."""
    if METHOD != "forkserver" or multiprocessing.parent_process() is not None:
        return
    from multiprocessing import forkserver, resource_tracker

    # The socket of the server lies in a folder of mode 0700, never in the open abstract namespace.
    multiprocessing.util.abstract_sockets_supported = False
    _own_socket_folder()
    multiprocessing.set_forkserver_preload(["lib.ranks.kernel.preloaded"])
    # The stop button, pressed while the server still loads torch, must not end it: it starts with
    # SIGINT blocked, and ranks unblock it. (The tracker first: starting it would unblock it here.)
    resource_tracker.ensure_running()
    old = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with _without_main():
            forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)


def _own_socket_folder() -> None:
    """Keep multiprocessing's sockets where nothing stays when this process is killed."""
    settings = multiprocessing.current_process()._config
    if "tempdir" not in settings:
        settings["tempdir"] = folder = folders.make(short=True)
        multiprocessing.util.Finalize(None, folders.remove, (folder,), exitpriority=-100)


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


@dataclass
class Process:
    """One rank as the kernel holds it: its process and the kernel's ends of three connections."""

    rank: int
    process: object
    tasks: object
    answers: object
    control: object
    follows: tuple | None = None  # the notebook's settings that it goes by
    heard: bool = True  # somebody listens to it

    def __post_init__(self):
        self.outbox, self.inbox = Outbox(self.tasks), Inbox(self.answers)

    @property
    def sentinel(self) -> int:
        """A descriptor that becomes readable when the process ends."""
        return self.process.sentinel

    def exit_code(self) -> int | None:
        """Give the exit code of an ended process; minus the signal if a signal ended it."""
        self.process.join(2)
        child_processes.end_left(self.process.pid)
        return self.process.exitcode

    def kill(self) -> None:
        """End the process and close the connections."""
        if self.process.is_alive():
            child_processes.end_with(self.process.pid, self.process.kill)
        self.process.join(5)
        self.close()

    def close(self) -> None:
        """Close the kernel's ends; a living rank then ends by itself."""
        with contextlib.suppress(OSError, ValueError):  # it is dead, or this was done before
            self.control.send(("end", 0))
        for end in (self.tasks, self.answers, self.control):
            end.close()


def start(rank: int, size: int, place: str, board: str, threads: int) -> Process:
    """Start one rank; its first message on `answers` says that it is ready."""
    from torch.multiprocessing import start_processes

    from lib.ranks.process import worker

    warm()
    context = multiprocessing.get_context(METHOD)
    ours, theirs = zip(*(context.Pipe() for _ in range(3)), strict=True)
    with _without_main():
        arguments = (rank, size, *theirs, place, board, threads, dict(os.environ), list(sys.path))
        started = start_processes(worker.main, arguments, 1, join=False, start_method=METHOD)
    for end in theirs:
        end.close()
    return Process(rank, started.processes[0], *ours)


def threads_per_rank(size: int) -> int:
    """Give the threads of a rank: OMP_NUM_THREADS if set, else its share of the cores."""
    chosen = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if chosen.isdecimal() and int(chosen) > 0:
        return int(chosen)
    if hasattr(os, "sched_getaffinity"):  # those that `taskset` or a scheduler left us
        return max(1, len(os.sched_getaffinity(0)) // size)
    return max(1, (os.cpu_count() or 1) // size)


def last_words(path: str, passed_on: int) -> str:
    """Give the end of what a dead rank's C code wrote, in the reader's own frames.

    The first `passed_on` bytes of the file were shown while the rank lived.
    """
    try:
        with open(path, errors="replace") as file:
            file.seek(passed_on)
            lines = [line.rstrip() for line in file]
    except OSError:
        return ""
    # No addresses, no frames of ours, no list of loaded extensions.
    noise = ("Current thread", "Extension modules", "Thread 0x")
    own = [line for line in lines if line and not line.startswith(noise)]
    own = [n for n in own if not (frame := _FRAME.match(n)) or not hidden(frame[1])]
    return "\n".join("  " + line for line in own[-12:])
