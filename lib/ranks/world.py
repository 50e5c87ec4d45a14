"""A world of ranks that stays warm: call it from a cell; it survives what the cell does wrong."""

import contextlib
import os
import sys
import threading

from lib.ranks.gpus.placement import choose
from lib.ranks.kernel import cell_magic, launch, open_worlds, outgoing, reloads
from lib.ranks.kernel.calls import Call, mend
from lib.ranks.kernel.lending import Lending, names_in
from lib.ranks.kernel.processes import Processes
from lib.ranks.kernel.stop_button import patient
from lib.ranks.shared.failures import RankError, ranks_say
from lib.ranks.state import ambient, namespace
from lib.ranks.transport import packing
from lib.ranks.transport.printed import say, show_all


class World:
    """N real ranks, one process each, that run your functions and stay warm between calls.

    `World(4)` takes NCCL and one GPU per rank where 4 GPUs are free, else gloo and the CPU; it says
    which when it is shown. A GPU is free if no other World of this machine has it and less than a
    tenth of its memory is in use. `gpus=[4, 5, 6, 7]` chooses, rank by rank; `device="cuda"` takes
    also those that are not free, `backend="gloo", device="cuda"` lets ranks share a GPU.
    `device="cpu"`, or RANKS_DEVICE=cpu in the environment, forces the CPU.
    `slow_motion=SlowMotion(...)` stretches every operation to a chosen GPU's time, on CPU ranks.
    `patience` is for C++ code that waits without telling: after so many seconds in which no rank
    moves, a collective that some ranks never launched counts as a failure.
    Raises ValueError for a size or device that cannot be, RankError when a call fails.

    A call begins as in the notebook: with its directory, `sys.path`, environment, default dtype,
    gradient and inference mode, autocast and deterministic mode, and with its modules loaded anew
    where it did. A rank has its own threads and default device. What a call sets of these ends with
    it, the environment excepted; what a `%%ranks` cell sets stays, as its names do. Random states,
    warnings filters and imported modules go on from call to call.
    """

    def __init__(
        self, size: int, *, device=None, backend=None, gpus=None, slow_motion=None, patience=60.0
    ):
        self._placement = placement = choose(size, device, backend, gpus, slow_motion)
        self.device, self.backend = placement.device, placement.backend
        self.size, self.slow_motion, self.patience = size, slow_motion, patience
        if placement.note:
            say(placement.note)
        self.printed: list[str] = [""] * size  # all that each rank printed in the last call
        self._processes: Processes | None = None
        self._lending = Lending()  # what of the notebook each rank was given by `%%ranks` cells
        self._now: tuple = ()  # the notebook's settings, and how often it loaded modules anew
        self._owner, self._free = os.getpid(), threading.Lock()
        with patient() as interrupts:
            self._processes = Processes(size, placement, interrupts)
        if interrupts.pressed:  # at a moment when there was nothing left to stop
            self.close()
            raise KeyboardInterrupt("The World was closed: it was stopped while it was starting.")
        open_worlds.opened(self)
        cell_magic.register()

    @classmethod
    def from_torchrun(cls, **options):
        """Take this process's place in the world that a launcher started: see TorchrunWorld."""
        from lib.ranks.launched.torchrun import TorchrunWorld

        return TorchrunWorld(**options)

    def run(self, step, *args, **kwargs) -> list:
        """Call `step(*args, **kwargs)` on every rank; give back what they returned, by rank."""
        return self._call([(step, args, kwargs)] * self.size)

    def map(self, step, items) -> list:
        """Call `step(items[r])` on rank r; give back what they returned, by rank."""
        items = list(items)
        if len(items) != self.size:
            raise ValueError(f"{len(items)} items for {self.size} ranks: give one to each rank.")
        return self._call([(step, (item,), {}) for item in items])

    def live(self, step, *args, **kwargs) -> list:
        """Do what `run` does, and show what ranks print as it comes instead of by rank."""
        return self._call([(step, args, kwargs)] * self.size, live=True)

    def record(self, step, *args, **kwargs):
        """Do what `run` does, and give back the Ledger of all that happened, with `.results`."""
        from lib.ranks.kernel.merge_recordings import ledger_of

        answers = self._call([(step, args, kwargs)] * self.size, record=True)
        return ledger_of(answers, slow_motion=self.slow_motion, meta={"device": self.device})

    def cell(self, source: str, filename: str, notebook: dict, ranks=None, hidden=()) -> None:
        """Run the text of a `%%ranks` cell on some ranks, in the namespace that stays there.

        What the cell reads of the names in `notebook`, but for those `hidden`, goes there first.
        """
        for rank in ranks or ():
            if not 0 <= rank < self.size:
                last = self.size - 1
                raise ValueError(f"There is no rank {rank}: this World has ranks 0 to {last}.")
        ranks = list(range(self.size)) if ranks is None else ranks
        read, made, later = names_in(source, filename)
        with self._turn() as interrupts:
            self._lend(notebook, read, hidden, ranks, interrupts)
            self._lending.made |= made
            self._lending.watched |= later
            calls = [(namespace.run_cell, (source, filename), {})] * self.size
            self._answers(calls, interrupts, ranks)

    def _lend(self, notebook: dict, read: set[str], hidden, ranks: list[int], interrupts) -> None:
        """Give ranks what they must have of the notebook before a cell runs."""
        weighed = self._lending.weigh(notebook, read, hidden)
        processes = {rank: self._processes.by_rank[rank].process for rank in ranks}
        due = {rank: self._lending.due(processes[rank], weighed) for rank in ranks}
        parcel = next(self._lending.parcels)
        for names in set(due.values()) - {frozenset()}:
            values = {name: weighed[name].value for name in sorted(names)}
            receivers = [rank for rank in ranks if due[rank] == names]
            calls = [(namespace.take, (values,), {})] * self.size
            self._answers(calls, interrupts, receivers, home=notebook)
            for rank in receivers:
                self._lending.sent(processes[rank], {n: weighed[n] for n in names}, parcel)

    def close(self) -> None:
        """End the ranks and remove what they shared; a second call does nothing."""
        processes, self._processes = self._processes, None
        if processes and self._owner == os.getpid():  # in a forked child they are not its own
            with patient() as interrupts:
                processes.close()
            if interrupts.pressed:
                raise KeyboardInterrupt

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        if getattr(self, "_processes", None):
            self.close()

    def __len__(self):
        return self.size

    def __reduce__(self):
        raise TypeError("A World cannot be sent to a rank, because the ranks are part of it.")

    def __repr__(self):
        state = "" if self.is_open else ", closed"
        slow = f", in slow motion: {self.slow_motion}" if self.slow_motion else ""
        ranks = f"{self.size} rank{'s' if self.size > 1 else ''}"
        return f"World of {ranks} {self._placement}{slow}{state}"

    @property
    def is_open(self) -> bool:
        """True until the World is closed."""
        return self._processes is not None

    @property
    def slow_motion(self):
        """Give the SlowMotion that calls run in, or None; it can be set where ranks have no GPU."""
        return self._slow_motion

    @slow_motion.setter
    def slow_motion(self, speeds):
        """Let the next calls run in slow motion, or not (None); ValueError for ranks on GPUs."""
        if speeds:
            self._placement.refuse_slow_motion()
        self._slow_motion = speeds

    @contextlib.contextmanager
    def _turn(self):
        """Let one thread at a time speak to the ranks; give what tells of the stop button."""
        if not self._processes:
            raise RuntimeError("This World is closed. Make a new one with World(...).")
        if not self._free.acquire(blocking=False):
            raise RuntimeError(
                "This World is in a call already. Wait for it, or make another World."
            )
        try:
            with patient() as interrupts:
                yield interrupts
            if interrupts.pressed:  # at a moment when there was nothing left to stop
                raise KeyboardInterrupt
        except (AttributeError, KeyError, ValueError, OSError):
            if self._processes:
                raise
            raise RuntimeError("This World was closed while a call was running on it.") from None
        finally:
            self._free.release()

    def _call(self, calls, **options) -> list:
        with self._turn() as interrupts:
            return self._answers(calls, interrupts, **options)

    def _answers(self, calls, interrupts, ranks=None, live=False, record=False, home=None) -> list:
        ranks = list(range(self.size)) if ranks is None else ranks
        slow_motion = self.slow_motion if home is None else None
        packed = outgoing.packed(calls, ranks, slow_motion, record, home)
        self._report_deaths(interrupts)
        self._follow(ranks, interrupts)
        return self._carry_out(ranks, packed, live, interrupts)

    def _carry_out(self, ranks, packed, live, interrupts) -> list:
        call = Call(self._processes, next(self._processes.calls), ranks, interrupts, self.patience)
        try:
            self._processes.send(call.number, live, {rank: packed[rank] for rank in ranks})
            return call.wait()
        finally:
            for rank in range(self.size):
                self.printed[rank] = show_all(rank, call.printed.get(rank, []))

    def _follow(self, ranks, interrupts) -> None:
        """Let ranks take over what has changed in the notebook: its settings, reloaded modules."""
        modules = reloads.loaded_anew()
        now = ambient.of_notebook(), len(modules)
        if now != self._now:
            self._now = now
        processes = [self._processes.by_rank[rank] for rank in ranks]
        late, packed = [p for p in processes if p.follows is not self._now], {}
        if not late:
            return
        for process in late:
            done = process.follows[1] if process.follows else 0
            packed[process.rank] = packing.pack((reloads.follow, (now[0], modules[done:]), {}))
            process.follows = (None, len(modules))  # should it fail: a module is tried once
        self._carry_out(list(packed), packed, False, interrupts)
        for process in late:
            process.follows = self._now

    def _report_deaths(self, interrupts) -> None:
        """Bring back ranks that died since the last call, and raise RankError that says so."""
        deaths = self._processes.unnoticed_deaths()
        if deaths:
            what_survived = mend(self._processes, True, interrupts)
            text = f"since the last call {ranks_say(deaths)}{what_survived}\nRun the cell again."
            raise RankError(text, deaths[0].rank, deaths)
        if not self._processes.whole:  # the stop button broke off what follows a failure
            self._processes.recover([], "the stop button ended it", interrupts)


if "ipykernel" in sys.modules:  # while the reader reads
    launch.warm()
