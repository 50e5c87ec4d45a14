"""A world of ranks that stays warm: call it from a cell, and it survives what the cell does wrong."""

import atexit
import functools
import itertools
import os
import re
import selectors
import signal
import sys
import threading
import time
import weakref
from contextlib import contextmanager

from lib.ranks import failures, groups, launch, magic, namespace, recorder, wire
from lib.ranks.board import Board
from lib.ranks.desk import hidden
from lib.ranks.failures import Failure, RankError

_worlds: "weakref.WeakSet[World]" = weakref.WeakSet()
_last: list = []  # the world made last, as a weak reference: `%%ranks` speaks to it
_START_LIMIT = 180.0  # seconds; a crowded classroom machine starts slowly
_STOP_LIMIT = 5.0  # seconds a stopped rank may take before its process is ended
_TICK = 0.05  # seconds between two looks at the board while ranks work
_LINES = 500  # printed lines of one rank shown in a cell; all of them stay in `world.printed`


class World:
    """N real ranks, one process each, that run your functions and stay warm between calls.

    `World(4)` takes NCCL and one GPU per rank where there are 4 GPUs, else gloo and the CPU;
    `device="cpu"` forces the CPU, `backend="gloo", device="cuda"` lets ranks share GPUs.
    `slow_motion=SlowMotion(...)` stretches every operation to a chosen GPU's time.
    Raises ValueError for a size or device that cannot be, RankError when a call fails.
    """

    def __init__(self, size: int, *, device=None, backend=None, slow_motion=None, patience=60.0):
        self.device, self.backend = _choose(size, device, backend)
        self.size, self.slow_motion, self.patience = size, slow_motion, patience
        self.printed: list[str] = [""] * size
        self._processes: list[launch.Process] = []
        self._calls = itertools.count(1)
        self._generation = 0
        self._made: set[str] = set()  # names that `%%ranks` cells have made: they are the ranks' own
        self._lent: dict[int, dict] = {}  # what of the notebook each rank was given, by name
        self._selector = selectors.DefaultSelector()
        self._owner, self._busy = os.getpid(), False
        self._folder = launch.private_folder()
        try:
            self._board = Board(f"{self._folder}/board", size, create=True)
            with _patient_interrupts() as interrupts:
                for rank in range(size):
                    self._start(rank)
                self._await_start(range(size), interrupts)
                self._rejoin("")
        except BaseException:
            self.close()
            raise
        _worlds.add(self)
        _last[:] = [weakref.ref(self)]
        magic.register()

    # What a reader calls.

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

        return ledger_of(self._call([(step, args, kwargs)] * self.size, record=True), self)

    def cell(self, source: str, filename: str, names: dict, ranks=None) -> None:
        """Run the text of a `%%ranks` cell on some ranks, in the namespace that stays there.

        `names` holds what the cell reads of the notebook ("read") and which names it makes ("made").
        """
        everyone = list(range(self.size))
        for rank in ranks or ():
            if not 0 <= rank < self.size:
                last = self.size - 1
                raise ValueError(f"there is no rank {rank}: this world has ranks 0 to {last}")
        calls = []
        for rank in everyone:
            lent = self._lent.setdefault(rank, {})
            new = {n: v for n, v in names["read"].items() if n not in self._made}
            new = {n: v for n, v in new.items() if n not in lent or lent[n] is not v}
            calls.append((namespace.run_cell, (source, filename, new), {}))
            if ranks is None or rank in ranks:
                lent.update(new)
        if len({tuple(call[1][2]) for call in calls}) == 1:
            calls = calls[:1] * self.size  # packed once
        self._made |= names["made"]
        self._call(calls, ranks=ranks)

    def close(self) -> None:
        """End the ranks and remove what they shared; a second call does nothing."""
        if self._owner != os.getpid():
            return  # a forked child holds a copy: the ranks are not its own
        processes, self._processes = self._processes, []
        for process in processes:
            process.close()  # each rank ends by itself when the connection does
        deadline = time.monotonic() + 1.0
        for process in processes:
            process.process.join(max(0.0, deadline - time.monotonic()))
            process.kill()
        self._selector.close()
        launch.remove(self._folder)
        _worlds.discard(self)

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
        raise TypeError("a World cannot travel to a rank: the ranks are in it")

    def __repr__(self):
        state = "" if self._processes else ", closed"
        slow = f", slow_motion={self.slow_motion}" if self.slow_motion else ""
        return f"World({self.size}, device={self.device!r}, backend={self.backend!r}{slow}{state})"

    # How a call goes.

    def _call(self, calls, *, ranks=None, live=False, record=False) -> list:
        if not self._processes:
            raise RuntimeError("this World is closed: make a new one with World(...)")
        if self._busy:
            raise RuntimeError("this World is in a call already: wait for it, or make another World")
        everyone = ranks is None
        ranks = list(range(self.size)) if everyone else ranks
        packed = self._pack(calls, record)
        self._busy = True
        try:
            with _patient_interrupts() as interrupts:
                self._bury_the_dead()
                number = next(self._calls)
                for rank in ranks:
                    self._send(rank, number, live, packed[rank])
                return self._collect(number, ranks, everyone, interrupts)
        finally:
            self._busy = False

    def _pack(self, calls, record) -> list[list]:
        done: dict[int, list] = {}
        for call in calls:
            if id(call) not in done:
                step, args, kwargs = call
                if not callable(step):
                    raise TypeError(f"the first argument must be a function, not {step!r}")
                if self.slow_motion:
                    step = functools.partial(self.slow_motion.run, step)
                if record:
                    step = functools.partial(recorder.recorded, step)
                try:
                    done[id(call)] = wire.pack((step, args, kwargs))
                except Exception as error:
                    reason = wire.culprit(args, "the arguments") or wire.culprit(kwargs)
                    reason = reason or wire.culprit(call[0], "the function")
                    raise RankError(
                        f"nothing was run: this cannot travel to the ranks.\n  {reason or error}\n"
                        "Make it inside the function, on each rank, or keep it in a `%%ranks` cell."
                    ) from None
        return [done[id(call)] for call in calls]

    def _send(self, rank, number, live, buffers) -> None:
        head = number.to_bytes(8, "little") + bytes([live])
        try:
            wire.send(self._processes[rank].tasks, [head + bytes(buffers[0]), *buffers[1:]])
        except OSError:
            pass  # it died: its sentinel says so

    def _collect(self, number, ranks, everyone, interrupts) -> list:
        """Wait for every answer; at the first failure stop the others, tell, and mend."""
        answers, failed = {}, []
        pending, suspicion, beats, moved = set(ranks), None, None, time.monotonic()
        lines: dict[int, list] = {}
        while pending and not failed:
            if not self._hear(number, pending, answers, failed, lines, interrupts, _TICK):
                now = [self._board.look(rank) for rank in range(self.size)]
                if now != beats:
                    beats, moved, suspicion = now, time.monotonic(), None
                silent = time.monotonic() - moved > self.patience
                found = failures.stuck(self._board, pending, silent)
                if found and found == suspicion:
                    self._fail_stuck(number, pending, answers, lines, found, interrupts)
                suspicion = found
            if interrupts.pressed:
                self._fail_stopped(number, pending, answers, lines, interrupts)
        if failed:
            self._fail(number, pending, answers, failed, lines, interrupts)
        self._show(lines)
        odd = failures.left_over(self._board, set(ranks)) if everyone else None
        if odd:
            self._fail_left_over(odd)
        return [answers[rank] for rank in ranks]

    def _hear(self, number, pending, answers, failed, lines, interrupts, limit) -> bool:
        """Take in what ranks say within `limit` seconds; True if any said something."""
        events = interrupts.wait(self._selector, limit)
        heard = False
        for key, _ in sorted(events, key=lambda event: event[0].data):
            kind, rank = key.data
            if rank not in pending:
                continue
            heard = True
            process = self._processes[rank]
            try:
                message = wire.unpack(wire.receive(process.answers)) if kind == "answer" else None
            except (EOFError, OSError):
                message = None
            except Exception as error:  # it could be packed there, and cannot be unpacked here
                told = f"it arrived, but could not be unpacked here: {type(error).__name__}: {error}"
                message = number, "raised", {"type": "unpicklable", "text": told}, []
            if message is None:
                if process.process.is_alive() and kind == "answer":
                    continue
                pending.discard(rank)
                words = _last_words(self._folder, rank)
                failed.append(Failure(rank, "died", code=process.exit_code(), text=words,
                                      when=time.monotonic_ns()))  # fmt: skip
                self._selector.unregister(process.answers)
                self._selector.unregister(process.sentinel)
                continue
            call, kind, value, printed = message
            if call != number:
                continue
            if kind == "print":
                print(f"rank {rank} │ ", value[1], sep="", end="", flush=True)
                continue
            lines[rank] = printed
            pending.discard(rank)
            if kind == "ok":
                answers[rank] = value
            else:
                failed.append(Failure(rank, kind, **value))
        return heard

    def _stop(self, number, pending, answers, lines, interrupts, hard) -> list[Failure]:
        """End the call on the ranks still in it; end the process of one that does not obey."""
        told: list[Failure] = []
        order = "cut" if hard else "stop"
        deadline = time.monotonic() + (_STOP_LIMIT if hard else 1.0)
        for rank in set(pending):
            self._order(rank, order, number)
        while pending and time.monotonic() < deadline:
            self._hear(number, pending, answers, told, lines, interrupts, 0.05)
        if pending and not hard:
            return told + self._stop(number, pending, answers, lines, interrupts, True)
        for rank in pending:
            self._processes[rank].process.kill()
        while pending:
            self._hear(number, pending, answers, told, lines, interrupts, 0.5)
        return told

    def _order(self, rank, order, number) -> None:
        try:
            self._processes[rank].control.send((order, number))
        except OSError:
            pass  # it died: its sentinel says so

    # How a call fails. Each composes its message from the board before the board is cleared.

    def _fail(self, number, pending, answers, failed, lines, interrupts):
        grace = time.monotonic() + 0.03
        while pending and time.monotonic() < grace:
            self._hear(number, pending, answers, failed, lines, interrupts, 0.01)
        waiting = self._waiting(pending)
        hard = bool(waiting) or any(f.kind == "died" for f in failed)
        told = self._stop(number, pending, answers, lines, interrupts, hard or bool(pending))
        failed += [f for f in told if f.kind == "died"]
        late = [f for f in told if f.kind == "stopped"]
        causes = sorted((f for f in failed if f.kind != "stopped"), key=lambda f: f.when)
        dead = [f for f in causes if f.kind == "died"]
        if dead:  # gloo blames the living: "connection closed by peer"
            lost = [f for f in causes if f.waited or "gloo" in f.text.lower()]
            causes = [f for f in causes if f not in lost]
            for f in lost:
                text = failures.waiting_in(self._board, f.rank, f.waited) if f.waited else ""
                waiting[f.rank] = text or f"their work, at {failures.place(*f.frames[-1][:2])}"
        self._tell(causes, waiting, late, lines)

    def _tell(self, causes, waiting, late, lines):
        mismatch = next((f for f in causes if f.where), None)
        table = failures.table(self._board, *mismatch.where) if mismatch else ""
        if mismatch:
            text = f"the ranks do not agree: {mismatch.text}.\n\n{table}\n\n"
            text += "Nothing of it was sent. Let every rank of the group call the same "
            text += "collectives, in the same order, with the same sizes and dtypes."
            others = [f for f in causes if not f.where]
            text += "\n\n" + failures.ranks_say(others) if others else ""
        else:
            text = failures.ranks_say(causes)
        text += _also(waiting, {f.rank for f in late}, {f.rank for f in causes})
        text += self._mend(bool(waiting) or bool(late) or bool(mismatch))
        self._show(lines)
        first = causes[0]
        cause = first.exception if len({f.type for f in causes}) == 1 else None
        raise RankError(text, first.rank, causes, table) from cause

    def _fail_stuck(self, number, pending, answers, lines, found, interrupts):
        rank, (tag, launch_number, late) = min(found.items())
        members = self._board.counts(rank)[tag].members
        table = failures.table(self._board, tag, launch_number, members)
        waiting = self._waiting(found)
        ended = sorted(late - pending)
        why = f"rank {ended[0]} has come to its end without it" if ended else "all of them wait"
        text = f"{failures.ranks_are(found).rsplit(' ', 1)[0]} waiting for ever: {why}.\n\n{table}\n"
        text += "".join(f"\nrank {r} waits in {w}" for r, w in sorted(waiting.items()))
        self._stop(number, pending, answers, lines, interrupts, True)
        text += self._mend(True)
        self._show(lines)
        raise RankError(text, min(ended or found), (), table)

    def _fail_left_over(self, odd):
        table = failures.table(self._board, *odd)
        text = f"the call ended, but not every rank launched the same.\n\n{table}\n"
        raise RankError(text + self._mend(True), odd[2][0], (), table)

    def _fail_stopped(self, number, pending, answers, lines, interrupts):
        waiting = self._waiting(pending)
        told = self._stop(number, pending, answers, lines, interrupts, bool(waiting))
        where = [f"rank {r} waited in {w}" for r, w in sorted(waiting.items())]
        for f in sorted(told, key=lambda f: f.rank):
            if f.rank not in waiting and f.frames:
                where.append(f"rank {f.rank} was at {failures.place(*f.frames[-1][:2])}")
        text = "stopped.\n" + "\n".join(where) + self._mend(bool(waiting) or self._uneven())
        self._show(lines)
        raise Stop(text)

    def _waiting(self, ranks) -> dict[int, str]:
        found = {rank: failures.waiting_in(self._board, rank) for rank in ranks}
        return {rank: text for rank, text in found.items() if text}

    def _uneven(self) -> bool:
        return failures.left_over(self._board, set(range(self.size))) is not None

    # How ranks come and go.

    def _start(self, rank) -> None:
        threads = max(1, (os.cpu_count() or 1) // self.size)
        process = launch.start(rank, self.size, self._folder, self._board.path, threads)
        self._processes[rank : rank + 1] = [process]
        self._selector.register(process.answers, selectors.EVENT_READ, ("answer", rank))
        self._selector.register(process.sentinel, selectors.EVENT_READ, ("end", rank))

    def _await_start(self, ranks, interrupts) -> None:
        pending, answers, failed = set(ranks), {}, []
        deadline = time.monotonic() + _START_LIMIT
        while pending and not failed:
            self._hear(0, pending, answers, failed, {}, interrupts, 0.2)
            if interrupts.pressed:
                raise KeyboardInterrupt("stopped while the ranks were starting")
            if time.monotonic() > deadline:
                raise RankError(f"ranks {sorted(pending)} did not start in {_START_LIMIT:.0f} s")
        if failed:
            raise RankError("could not start: " + failures.ranks_say(failed))

    def _rejoin(self, why: str) -> None:
        """Give all ranks a new process group; they keep everything else."""
        self._generation += 1
        path = f"{self._folder}/meeting-{self._generation}"
        for rank in range(self.size):
            self._board.clear(rank)
        number = next(self._calls)
        nccl = self.backend == "nccl"
        for rank in range(self.size):
            call = (groups.rejoin, (path, rank, self.size, self.device, nccl, why), {})
            self._send(rank, number, False, wire.pack(call))
        pending, answers, failed = set(range(self.size)), {}, []
        deadline = time.monotonic() + _START_LIMIT
        quiet = _Interrupts()
        while pending and not failed and time.monotonic() < deadline:
            self._hear(number, pending, answers, failed, {}, quiet, 0.2)
        if failed or pending:
            raise RankError("the ranks could not meet again: " + failures.ranks_say(failed))

    def _mend(self, regroup: bool) -> str:
        """Start dead ranks anew, make new groups where needed; say what survived."""
        dead = [p.rank for p in self._processes if not p.process.is_alive()]
        for rank in dead:
            self._processes[rank].kill()
            self._lent.pop(rank, None)
            self._start(rank)
        if dead:
            self._await_start(dead, _Interrupts())
        text = ""
        if dead:
            names = failures.ranks_are(dead)
            text += f"\n\n{names} started anew: what you had made there is lost"
            text += "; the other ranks keep theirs." if len(dead) < self.size else "."
        if regroup or dead:
            cause = "a call on these ranks failed, and the wait was ended"
            self._rejoin(cause)
            text += "" if dead else "\n\nThe ranks keep what you made on them."
            text += " The next call works; build a DistributedDataParallel, an FSDP model or a mesh"
            text += " again before you use it."
        return text

    def _bury_the_dead(self) -> None:
        dead = [p for p in self._processes if not p.process.is_alive()]
        if dead:
            told = [Failure(p.rank, "died", code=p.exit_code(),
                            text=_last_words(self._folder, p.rank)) for p in dead]  # fmt: skip
            for process in dead:
                self._selector.unregister(process.answers)
                self._selector.unregister(process.sentinel)
            text = "since the last call " + failures.ranks_say(told) + self._mend(True)
            raise RankError(text + "\nRun the cell again.", dead[0].rank, told)

    def _show(self, lines: dict[int, list]) -> None:
        """Print what ranks printed, grouped by rank, in rank order; keep all of it."""
        for rank in range(self.size):
            printed = lines.get(rank, [])
            self.printed[rank] = "".join(text for _, text in printed)
            shown = self.printed[rank].splitlines()
            for line in shown[:_LINES]:
                print(f"rank {rank} │ {line}")
            if len(shown) > _LINES:
                more = len(shown) - _LINES
                print(f"rank {rank} │ … {more:,} more lines: world.printed[{rank}] holds them all")


def current() -> World | None:
    """Give the world made last that is still open: the one `%%ranks` cells run on."""
    world = _last[0]() if _last else None
    return world if world is not None and world._processes else None


class Stop(KeyboardInterrupt):
    """The stop button ended a call; the message says where each rank was."""

    def _render_traceback_(self):
        return [f"KeyboardInterrupt: {self}"]


def _also(waiting: dict, late: set, causes: set) -> str:
    """Say what the other ranks were doing when a call failed."""
    where: dict[str, list[int]] = {}
    for rank, text in waiting.items():
        where.setdefault(text, []).append(rank)
    text = "".join(
        f"\n\n{failures.ranks_are(ranks)} left waiting in {what}." for what, ranks in where.items()
    )
    rest = late - set(waiting) - causes
    return text + (f"\n\n{failures.ranks_are(rest)} stopped." if rest else "")


def _last_words(folder: str, rank: int) -> str:
    """Give the end of what a dead rank's C code wrote."""
    try:
        with open(f"{folder}/rank-{rank}.err", errors="replace") as file:
            lines = [line.rstrip() for line in file]
    except OSError:
        return ""
    # The reader's own frames, without addresses, our frames and the list of loaded extensions.
    noise = ("Current thread", "Extension modules", "Thread 0x")
    own = [line for line in lines if line and not line.startswith(noise)]
    own = [n for n in own if not (found := _FRAME.match(n)) or not hidden(found[1])]
    return "\n".join("  " + line for line in own[-12:])


_FRAME = re.compile(r'  File "(.*)", line')


class _Interrupts:
    """Whether the stop button was pressed; it only cuts in where nothing can be torn."""

    def __init__(self):
        self.pressed = self.open = False

    def wait(self, selector, limit) -> list:
        """Wait for events; the stop button ends the wait, and leaves the events for the next one."""
        if self.pressed:  # being dealt with: from now on nothing cuts in
            return selector.select(limit)
        self.open = True
        try:
            return selector.select(limit)
        except KeyboardInterrupt:
            return []
        finally:
            self.open = False

    def handle(self, *_):
        self.pressed = True
        if self.open:
            self.open = False
            raise KeyboardInterrupt


@contextmanager
def _patient_interrupts():
    """Hold SIGINT back while messages travel: half a message would cost a rank its life."""
    interrupts = _Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return
    old = signal.signal(signal.SIGINT, interrupts.handle)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, old)


def _choose(size, device, backend) -> tuple[str, str]:
    """Choose device and backend, or say why the wish cannot be granted."""
    import torch

    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= 64:
        raise ValueError(f"World({size!r}): the number of ranks is a whole number from 1 to 64")
    if device not in (None, "cpu", "cuda") or backend not in (None, "gloo", "nccl"):
        raise ValueError(
            f"device={device!r}, backend={backend!r}: device is 'cpu' or 'cuda', backend 'gloo' or 'nccl'"
        )
    gpus = torch.cuda.device_count()
    if backend == "nccl" and device == "cpu":
        raise ValueError("NCCL has no CPU: take backend='gloo', or device='cuda'")
    if backend == "nccl" and gpus < size:
        have = f"{gpus} GPU{'s' if gpus != 1 else ''}"
        raise ValueError(
            f"World({size}) with NCCL needs a GPU for each rank; this machine has {have}. "
            f"Take World({size}, device='cpu')"
            + (f", World({gpus}), or World({size}, backend='gloo', device='cuda')." if gpus else ".")
        )
    if device == "cuda" and not gpus:
        raise ValueError("device='cuda' was asked for, and this machine has no GPU")
    if device is None:
        device = "cuda" if backend == "nccl" or (backend is None and gpus >= size) else "cpu"
    if backend is None:
        backend = "nccl" if device == "cuda" and gpus >= size else "gloo"
    return device, backend


@atexit.register
def _close_all() -> None:
    for world in list(_worlds):
        world.close()


if "ipykernel" in sys.modules:  # while the reader reads
    launch.warm()
