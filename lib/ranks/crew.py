"""The processes of a world as the kernel holds them: started, spoken to, heard, replaced."""

import itertools
import os
import re
import selectors
import time

from lib.ranks import groups, launch, wire
from lib.ranks.board import Board
from lib.ranks.desk import hidden
from lib.ranks.failures import Failure, RankError, list_of, ranks_say
from lib.ranks.interrupts import Interrupts

START_LIMIT = 180.0  # seconds; a crowded classroom machine starts slowly
_FRAME = re.compile(r'  File "(.*)", line')


class Crew:
    """N rank processes, their board, and the private folder they share."""

    def __init__(self, size: int, device: str, backend: str, interrupts: Interrupts):
        self.size, self.device, self.backend = size, device, backend
        self.processes: list[launch.Process] = []
        self.selector = selectors.DefaultSelector()
        self.calls = itertools.count(1)
        self.meetings = itertools.count(1)
        self.folder = launch.private_folder()
        try:
            self.board = Board(f"{self.folder}/board", size, create=True)
            for rank in range(size):
                self._start(rank)
            self._await_start(set(range(size)), interrupts)
            self.meet("")
        except BaseException:
            self.close()
            raise

    def send(self, rank: int, number: int, live: bool, buffers: list) -> None:
        """Give a rank its next call."""
        head = number.to_bytes(8, "little") + bytes([live])
        try:
            wire.send(self.processes[rank].tasks, [head + bytes(buffers[0]), *buffers[1:]])
        except OSError:
            pass  # it died: its sentinel says so

    def order(self, rank: int, order: str, number: int) -> None:
        """Tell the watcher of a rank to end a call: "stop", or "cut" its connections too."""
        try:
            self.processes[rank].control.send((order, number))
        except OSError:
            pass  # it died: its sentinel says so

    def hear(self, interrupts: Interrupts, limit: float):
        """Give (rank, message) for each that speaks in `limit` seconds, (rank, Failure) if dead."""
        events = interrupts.wait(self.selector, limit)
        for key, _ in sorted(events, key=lambda event: event[0].data):
            rank, kind = key.data
            process = self.processes[rank]
            try:
                if kind == "answer":
                    yield rank, wire.unpack(wire.receive(process.answers))
                    continue
            except (EOFError, OSError):
                if process.process.is_alive():
                    continue  # its sentinel comes next
            except Exception as error:  # it could be packed there, and cannot be unpacked here
                told = f"it arrived, but cannot be unpacked here: {type(error).__name__}: {error}"
                yield rank, (None, "raised", {"type": "unpicklable", "text": told}, [])
                continue
            if process.answers in self.selector.get_map():
                self._forget(process)
                yield rank, self._obituary(rank)

    def dead(self) -> list[int]:
        """Give the ranks whose process has ended."""
        return [process.rank for process in self.processes if not process.process.is_alive()]

    def bury(self) -> list[Failure]:
        """Take note of ranks that died while nobody listened."""
        dead = self.dead()
        for rank in dead:
            if self.processes[rank].answers in self.selector.get_map():
                self._forget(self.processes[rank])
        return [self._obituary(rank) for rank in dead]

    def replace(self, ranks: list[int]) -> None:
        """Start ranks anew."""
        for rank in ranks:
            if self.processes[rank].answers in self.selector.get_map():
                self._forget(self.processes[rank])
            self.processes[rank].kill()
            self._start(rank)
        self._await_start(set(ranks), Interrupts())

    def meet(self, why: str) -> None:
        """Give all ranks a new process group; they keep everything else."""
        try:
            self._meet(why)
        except RankError:  # the last resort: all of them anew
            self.replace(list(range(self.size)))
            self._meet(why)

    def close(self) -> None:
        """End the processes and remove the folder."""
        processes, self.processes = self.processes, []
        for process in processes:
            process.close()  # each rank ends by itself when the connection does
        deadline = time.monotonic() + 1.0
        for process in processes:
            process.process.join(max(0.0, deadline - time.monotonic()))
            process.kill()
        self.selector.close()
        launch.remove(self.folder)

    def _start(self, rank: int) -> None:
        threads = max(1, (os.cpu_count() or 1) // self.size)
        process = launch.start(rank, self.size, self.folder, self.board.path, threads)
        self.processes[rank : rank + 1] = [process]
        self.selector.register(process.answers, selectors.EVENT_READ, (rank, "answer"))
        self.selector.register(process.sentinel, selectors.EVENT_READ, (rank, "end"))

    def _forget(self, process) -> None:
        self.selector.unregister(process.answers)
        self.selector.unregister(process.sentinel)

    def _await_start(self, pending: set[int], interrupts: Interrupts) -> None:
        deadline = time.monotonic() + START_LIMIT
        while pending:
            for rank, message in self.hear(interrupts, 0.2):
                if isinstance(message, Failure):
                    raise RankError("could not start: " + ranks_say([message]), rank)
                pending.discard(rank)
            if interrupts.pressed:
                raise KeyboardInterrupt("stopped while the ranks were starting")
            if time.monotonic() > deadline:
                raise RankError(
                    f"{list_of(pending)} did not start within {START_LIMIT:.0f} s: the machine may "
                    "be too busy, or out of memory. `make doctor` looks."
                )

    def _meet(self, why: str) -> None:
        path = f"{self.folder}/meeting-{next(self.meetings)}"
        for rank in range(self.size):
            self.board.clear(rank)
        number, nccl = next(self.calls), self.backend == "nccl"
        for rank in range(self.size):
            call = (groups.rejoin, (path, rank, self.size, self.device, nccl, why), {})
            self.send(rank, number, False, wire.pack(call))
        pending, deadline = set(range(self.size)), time.monotonic() + START_LIMIT
        while pending and time.monotonic() < deadline:
            for rank, message in self.hear(Interrupts(), 0.2):
                if isinstance(message, Failure):
                    raise RankError("the ranks could not meet: " + ranks_say([message]), rank)
                call, kind, value, _ = message
                if call == number and kind != "ok":
                    told = ranks_say([Failure(rank, kind, **value)])
                    raise RankError("the ranks could not meet: " + told, rank)
                pending -= {rank} if call == number else set()
        if pending:
            raise RankError(f"{list_of(pending)} did not come to the meeting of all ranks")

    def _obituary(self, rank: int) -> Failure:
        code = self.processes[rank].exit_code()
        text = _last_words(f"{self.folder}/rank-{rank}.err")
        return Failure(rank, "died", code=code, text=text, when=time.monotonic_ns())


def _last_words(path: str) -> str:
    """Give the end of what a dead rank's C code wrote, in the reader's own frames."""
    try:
        with open(path, errors="replace") as file:
            lines = [line.rstrip() for line in file]
    except OSError:
        return ""
    # No addresses, no frames of ours, no list of loaded extensions.
    noise = ("Current thread", "Extension modules", "Thread 0x")
    own = [line for line in lines if line and not line.startswith(noise)]
    own = [n for n in own if not (found := _FRAME.match(n)) or not hidden(found[1])]
    return "\n".join("  " + line for line in own[-12:])
