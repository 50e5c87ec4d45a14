"""A world of ranks that stays warm: call it from a cell; it survives what the cell does wrong."""

import atexit
import functools
import os
import sys
import time
import weakref

from lib.ranks import launch, magic, namespace, recorder, together, wire
from lib.ranks.call import Call, mend
from lib.ranks.crew import Crew
from lib.ranks.failures import RankError, ranks_say
from lib.ranks.interrupts import patient

_worlds: "weakref.WeakSet[World]" = weakref.WeakSet()
_last: list = []  # the world made last, as a weak reference: `%%ranks` speaks to it
_LINES = 500  # printed lines of one rank shown in a cell; all of them stay in `world.printed`


class World:
    """N real ranks, one process each, that run your functions and stay warm between calls.

    `World(4)` takes NCCL and one GPU per rank where there are 4 GPUs, else gloo and the CPU;
    `device="cpu"` forces the CPU, `backend="gloo", device="cuda"` lets ranks share GPUs.
    `slow_motion=SlowMotion(...)` stretches every operation to a chosen GPU's time.
    `patience` is for C++ code that waits without telling: after so many seconds in which no rank
    moves, a collective that some ranks never launched counts as a failure.
    Raises ValueError for a size or device that cannot be, RankError when a call fails.
    """

    def __init__(self, size: int, *, device=None, backend=None, slow_motion=None, patience=60.0):
        self.device, self.backend = _choose(size, device, backend)
        self.size, self.slow_motion, self.patience = size, slow_motion, patience
        self.printed: list[str] = [""] * size  # all that each rank printed in the last call
        self._crew: Crew | None = None
        self._made: set[str] = (
            set()
        )  # names that `%%ranks` cells have made: they are the ranks' own
        self._lent: dict[int, dict] = {}  # what of the notebook each rank was given, by name
        self._owner, self._busy = os.getpid(), False
        with patient() as interrupts:
            self._crew = Crew(size, self.device, self.backend, interrupts)
        _worlds.add(self)
        _last[:] = [weakref.ref(self)]
        magic.register()

    @classmethod
    def from_torchrun(cls):
        """Take this process's place in the world that `torchrun` (or SLURM) has started."""
        from lib.ranks.torchrun import TorchrunWorld

        return TorchrunWorld()

    def run(self, step, *args, **kwargs) -> list:
        """Call `step(*args, **kwargs)` on every rank; give back what they returned, by rank."""
        return self._call([(step, args, kwargs)] * self.size)

    def map(self, step, items) -> list:
        """Call `step(items[r])` on rank r; give back what they returned, by rank."""
        items = list(items)
        if len(items) != self.size:
            raise ValueError(f"{len(items)} items for {self.size} ranks: give one to each rank")
        return self._call([(step, (item,), {}) for item in items])

    def live(self, step, *args, **kwargs) -> list:
        """Do what `run` does, and show what ranks print as it comes instead of by rank."""
        return self._call([(step, args, kwargs)] * self.size, live=True)

    def record(self, step, *args, **kwargs):
        """Do what `run` does, and give back the Ledger of all that happened, with `.results`."""
        from lib.ranks.records import ledger_of

        answers = self._call([(step, args, kwargs)] * self.size, record=True)
        return ledger_of(answers, slow_motion=self.slow_motion, meta={"device": self.device})

    def cell(self, source: str, filename: str, names: dict, ranks=None) -> None:
        """Run the text of a `%%ranks` cell on some ranks, in the namespace that stays there.

        `names`: what the cell reads of the notebook ("read"), and which names it makes ("made").
        """
        for rank in ranks or ():
            if not 0 <= rank < self.size:
                last = self.size - 1
                raise ValueError(f"there is no rank {rank}: this world has ranks 0 to {last}")
        calls, same = [], True
        read = {n: v for n, v in names["read"].items() if n not in self._made}
        for rank in range(self.size):
            lent = self._lent.setdefault(rank, {})
            new = {n: v for n, v in read.items() if n not in lent or lent[n] is not v}
            calls.append((namespace.run_cell, (source, filename, new), {}))
            same = same and new.keys() == calls[0][1][2].keys()
            if ranks is None or rank in ranks:
                lent.update(new)
        self._made |= names["made"]
        self._call(calls[:1] * self.size if same else calls, ranks=ranks)

    def close(self) -> None:
        """End the ranks and remove what they shared; a second call does nothing."""
        crew, self._crew = self._crew, None
        if crew and self._owner == os.getpid():  # a forked child's copy: the ranks are not its own
            with patient() as interrupts:
                crew.close()
            if interrupts.pressed:
                raise KeyboardInterrupt

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        if getattr(self, "_crew", None):
            self.close()

    def __len__(self):
        return self.size

    def __reduce__(self):
        raise TypeError("a World cannot travel to a rank: the ranks are in it")

    def __repr__(self):
        state = "" if self._crew else ", closed"
        slow = f", slow_motion={self.slow_motion}" if self.slow_motion else ""
        return f"World({self.size}, device={self.device!r}, backend={self.backend!r}{slow}{state})"

    def _call(self, calls, *, ranks=None, live=False, record=False) -> list:
        if not self._crew:
            raise RuntimeError("this World is closed: make a new one with World(...)")
        if self._busy:
            raise RuntimeError(
                "this World is in a call already: wait for it, or make another World"
            )
        ranks = list(range(self.size)) if ranks is None else ranks
        packed = self._pack(calls, ranks, record)
        self._busy = True
        try:
            with patient() as interrupts:
                self._bury_the_dead()
                call = Call(self._crew, next(self._crew.calls), ranks, interrupts, self.patience)
                try:
                    for rank in ranks:
                        self._crew.send(rank, call.number, live, packed[rank])
                    return call.wait()
                finally:
                    for rank in call.replaced:
                        self._lent.pop(rank, None)
                    self._show(call.printed)
        finally:
            self._busy = False

    def _pack(self, calls, ranks, record) -> list[list]:
        done: dict[int, list] = {}
        start = time.monotonic_ns()  # tells this start from any other
        for call in calls:
            if id(call) not in done:
                step, args, kwargs = call
                if not callable(step):
                    raise TypeError(f"the first argument must be a function, not {step!r}")
                if self.slow_motion:
                    step = functools.partial(self.slow_motion.run, step)
                if record:
                    step = functools.partial(recorder.recorded, step)
                if self.slow_motion or record:
                    step = functools.partial(together.begin, (start, tuple(ranks)), step)
                try:
                    done[id(call)] = wire.pack((step, args, kwargs))
                except Exception as error:
                    reason = wire.culprit(args, "the arguments") or wire.culprit(kwargs)
                    reason = reason or wire.culprit(call[0], "the function") or error
                    raise RankError(
                        f"nothing was run: this cannot travel to the ranks.\n  {reason}\n"
                        "Make it inside the function, on each rank, or keep it in a `%%ranks` cell."
                    ) from None
        return [done[id(call)] for call in calls]

    def _bury_the_dead(self) -> None:
        told = self._crew.bury()
        if told:
            dead = [failure.rank for failure in told]
            for rank in dead:
                self._lent.pop(rank, None)
            text = "since the last call " + ranks_say(told) + mend(self._crew, dead, True)
            raise RankError(text + "\nRun the cell again.", dead[0], told)

    def _show(self, printed: dict[int, list]) -> None:
        """Print what ranks printed, grouped by rank, in rank order; keep all of it."""
        for rank in range(self.size):
            self.printed[rank] = "".join(text for _, text in printed.get(rank, []))
            lines = self.printed[rank].splitlines()
            for line in lines[:_LINES]:
                print(f"rank {rank} │ {line}")
            if len(lines) > _LINES:
                more = len(lines) - _LINES
                print(f"rank {rank} │ … {more:,} more lines: world.printed[{rank}] holds them all")


def current() -> World | None:
    """Give the world made last that is still open: the one `%%ranks` cells run on."""
    world = _last[0]() if _last else None
    return world if world is not None and world._crew else None


def _choose(size, device, backend) -> tuple[str, str]:
    """Choose device and backend, or say why the wish cannot be granted."""
    import torch

    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= 64:
        raise ValueError(f"World({size!r}): the number of ranks is a whole number from 1 to 64")
    if device not in (None, "cpu", "cuda") or backend not in (None, "gloo", "nccl"):
        raise ValueError(
            f"World({size}, device={device!r}, backend={backend!r}): "
            "the device is 'cpu' or 'cuda', the backend 'gloo' or 'nccl'"
        )
    gpus = torch.cuda.device_count()
    if backend == "nccl" and device == "cpu":
        raise ValueError("NCCL has no CPU: take backend='gloo', or device='cuda'")
    if backend == "nccl" and gpus < size:
        have = f"{gpus} GPU{'s' if gpus != 1 else ''}"
        other = f", World({gpus}), or World({size}, backend='gloo', device='cuda')" if gpus else ""
        raise ValueError(
            f"World({size}) with NCCL needs a GPU for each rank; this machine has {have}. "
            f"Take World({size}, device='cpu'){other}."
        )
    if device == "cuda" and not gpus:
        raise ValueError("device='cuda' was asked for, and this machine has no GPU")
    if device is None:
        device = "cuda" if backend == "nccl" or (backend is None and gpus >= size) else "cpu"
    return device, backend or ("nccl" if device == "cuda" and gpus >= size else "gloo")


@atexit.register
def _close_all() -> None:
    for world in list(_worlds):
        world.close()


if "ipykernel" in sys.modules:  # while the reader reads
    launch.warm()
