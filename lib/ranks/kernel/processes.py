"""The processes of a world as the kernel holds them: started, spoken to, heard, replaced."""

import contextlib
import itertools
import os
import selectors
import shutil
import struct
import time

from lib.ranks.gpus.placement import Placement
from lib.ranks.groups import process_group
from lib.ranks.kernel import launch
from lib.ranks.kernel.stop_button import Interrupts
from lib.ranks.shared import folders
from lib.ranks.shared.failures import Failure, RankError, list_of, ranks_say
from lib.ranks.shared.notice_board import NoticeBoard
from lib.ranks.transport import framing, packing
from lib.ranks.transport.channel import failed, unpacked

START_LIMIT = 180.0  # seconds; a crowded classroom machine starts slowly
_ATTEMPTS = 5  # to bring the ranks together again
_PATIENCE = 5.0  # seconds for that after the stop button was pressed; it takes hundredths


class Processes:
    """N rank processes, their board, the private folder they share, and the locks of their GPUs."""

    def __init__(self, size: int, placement: Placement, interrupts: Interrupts):
        self.size, self.placement, self.folder = size, placement, ""
        self.by_rank: list[launch.Process] = []
        self.selector = selectors.DefaultSelector()
        self.calls = itertools.count(1)
        self.whole = False  # all ranks are there, in one group
        self.meetings, self.place = itertools.count(1), ""
        try:
            self.folder = folders.make()
            self.board = NoticeBoard(f"{self.folder}/board", size, create=True)
            for rank in range(size):
                self._start(rank)
            self._await_start(set(range(size)), interrupts)
            self.recover([], "", interrupts)
        except BaseException:
            self.close()
            raise

    def send(self, number: int, live: bool, packed: dict[int, list]) -> None:
        """Give ranks their next call; what cannot be sent at once is sent while `hear` listens."""
        head, framed = struct.pack("<Q?", number, live), {}
        for rank, buffers in packed.items():
            if id(buffers) not in framed:
                framed[id(buffers)] = framing.pieces([head, *buffers])
            process = self.by_rank[rank]
            try:
                if not process.outbox.put(framed[id(buffers)]):
                    self.selector.register(process.tasks, selectors.EVENT_WRITE, (rank, "task"))
            except OSError:
                pass  # it died: its sentinel says so

    def order(self, rank: int, order: str, number: int) -> None:
        """Tell the watcher of a rank to end a call: "stop", or "cut" its connections too."""
        try:
            self.by_rank[rank].control.send((order, number))
        except OSError:
            pass  # it died: its sentinel says so

    def hear(self, interrupts: Interrupts, limit: float) -> list[tuple]:
        """Give (rank, message) for each that speaks in `limit` seconds, (rank, Failure) if dead.

        Ends at once when somebody spoke; within `limit` when the stop button was pressed.
        """
        deadline = time.monotonic() + limit
        while True:
            events = self.selector.select(max(0.0, deadline - time.monotonic()))
            keys = sorted([key.data for key, _ in events], reverse=True)  # the dead speak last
            messages = [
                (rank, message) for rank, kind in keys for message in self._said(rank, kind)
            ]
            if messages or interrupts.pressed or time.monotonic() >= deadline:
                return messages

    def _said(self, rank: int, kind: str) -> list:
        """Give what a rank has said since, or what the end of its process says."""
        process = self.by_rank[rank]
        if not process.heard:
            return []  # an event before this one has told its end
        if kind == "task":
            self._send_more(process)
            return []
        messages = []
        try:
            idle = 0
            while idle < (2 if kind == "end" else 1):  # of the dead, all that is still under way
                buffers = process.inbox.read()
                idle = 0 if buffers else idle + 1
                messages += [unpacked(buffers)] if buffers else []
            if kind == "answer":
                return messages
        except framing.TooLarge as error:
            return [*messages, failed("MemoryError", f"its answer is too large: {error}")]
        except (EOFError, OSError):
            process.process.join(1.0)  # its end is near
        self._forget(process)
        return [*messages, self._death_of(rank)]

    def _send_more(self, process) -> None:
        try:
            if process.outbox.flush():
                self.selector.unregister(process.tasks)
        except OSError:
            self.selector.unregister(process.tasks)  # it died: its sentinel says so

    def dead(self) -> list[int]:
        """Give the ranks whose process has ended."""
        return [process.rank for process in self.by_rank if not process.process.is_alive()]

    def unnoticed_deaths(self) -> list[Failure]:
        """Give how each rank ended that died while nobody listened."""
        if self.whole and all(key.data[1] != "end" for key, _ in self.selector.select(0)):
            return []
        dead = self.dead()
        for rank in dead:
            self._forget(self.by_rank[rank])
        return [self._death_of(rank) for rank in dead]

    def recover(self, lost, why: str, interrupts: Interrupts) -> list[int]:
        """Start lost ranks anew and give all ranks a new process group; the others keep the rest.

        Gives the ranks that were started anew: those that died meanwhile are among them.
        """
        gone, anew, self.whole = set(lost), set(), False
        if not os.path.isdir(self.folder):
            raise RankError(
                f"The folder of this World, {self.folder}, was removed while it was in use. "
                "Make a new World."
            )
        for attempt in range(_ATTEMPTS):
            anew |= gone
            try:
                self._replace(gone, interrupts)
                self._meet(why, interrupts)
                self.whole = True
                return sorted(anew)
            except RankError:
                if attempt == _ATTEMPTS - 1:
                    raise
                gone = set(self.dead()) or set(range(self.size))  # the last resort: all of them

    def _replace(self, ranks: set[int], interrupts: Interrupts) -> None:
        for rank in sorted(ranks):
            self._forget(self.by_rank[rank])
            self.by_rank[rank].kill()
            self._start(rank)
        self._await_start(set(ranks), interrupts, _PATIENCE)

    def close(self) -> None:
        """End the processes and remove the folder."""
        processes, self.by_rank = self.by_rank, []
        for process in processes:
            process.close()  # each rank ends by itself when the connection does
        deadline = time.monotonic() + 1.0
        for process in processes:
            process.process.join(max(0.0, deadline - time.monotonic()))
            process.kill()
        self.selector.close()
        if self.folder:
            folders.remove(self.folder)
        self.placement.release()

    def _start(self, rank: int) -> None:
        threads = launch.threads_per_rank(self.size)
        process = launch.start(rank, self.size, self.folder, self.board.path, threads)
        self.by_rank[rank : rank + 1] = [process]
        self.selector.register(process.answers, selectors.EVENT_READ, (rank, "answer"))
        self.selector.register(process.sentinel, selectors.EVENT_READ, (rank, "end"))

    def _forget(self, process) -> None:
        if not process.heard:
            return  # its ends may be closed by now, and their numbers somebody else's
        process.heard = False
        for end in (process.answers, process.tasks, process.sentinel):
            with contextlib.suppress(KeyError, ValueError):  # it was not listened to
                self.selector.unregister(end)

    def _await_start(self, pending: set[int], interrupts: Interrupts, patience=0.0) -> None:
        def hear(rank, message):
            if isinstance(message, Failure):
                raise RankError("The ranks could not start: " + ranks_say([message]), rank)
            pending.discard(rank)

        if not self._await(pending, hear, interrupts, patience):
            raise RankError(
                f"{list_of(pending)} did not start within {START_LIMIT:.0f} s: the machine may "
                "be too busy, or out of memory. `make doctor` looks."
            )

    def _await(self, pending: set[int], hear, interrupts: Interrupts, patience: float) -> bool:
        """Let `hear` take what ranks say until none is pending; False if that takes too long.

        `patience`: seconds that it may go on when the stop button was pressed; then it ends.
        """
        deadline, pressed = time.monotonic() + START_LIMIT, None
        while pending and time.monotonic() < deadline:
            for rank, message in self.hear(interrupts, 0.05):
                hear(rank, message)
            if interrupts.pressed:
                pressed = pressed or time.monotonic()
                if pending and time.monotonic() >= pressed + patience:
                    raise KeyboardInterrupt("The ranks were stopped while they were starting.")
        return not pending

    def _meet(self, why: str, interrupts: Interrupts) -> None:
        path = f"{self.folder}/meeting-{next(self.meetings)}"
        for rank in range(self.size):
            self.board.clear(rank)
        number, place = next(self.calls), self.placement
        for rank in range(self.size):
            nccl, gpu = place.backend != "gloo", place.gpu_of(rank)
            call = (process_group.rejoin, (path, rank, self.size, place.device, nccl, why, gpu), {})
            self.send(number, False, {rank: packing.pack(call)})
        try:
            self._await_meeting(number, interrupts)
        except BaseException:
            for rank in range(self.size):
                self.order(rank, "cut", number)  # those that wait for a rank that is gone
            raise
        shutil.rmtree(self.place, ignore_errors=True)  # of the meeting before
        self.place = path

    def _await_meeting(self, number: int, interrupts: Interrupts) -> None:
        pending = set(range(self.size))

        def hear(rank, message):
            if isinstance(message, Failure):
                raise RankError("The ranks could not meet: " + ranks_say([message]), rank)
            call, kind, value, _ = message
            if call == number and kind != "ok":
                told = ranks_say([Failure(rank, kind, **value)])
                raise RankError("The ranks could not meet: " + told, rank)
            pending.difference_update({rank} if call == number else ())

        if not self._await(pending, hear, interrupts, _PATIENCE):
            raise RankError(f"{list_of(pending)} did not come to the meeting of all ranks.")

    def _death_of(self, rank: int) -> Failure:
        """Say how the process of a rank ended, and what it wrote last."""
        process = self.by_rank[rank]
        code = process.exit_code()
        if process.process.is_alive():  # it closed its connection and lives: nobody can reach it
            process.kill()
        text = launch.last_words(
            f"{self.folder}/rank-{rank}.err", self.board.stderr_passed_on(rank)
        )
        return Failure(rank, "died", code=code, text=text, when=time.monotonic_ns())
