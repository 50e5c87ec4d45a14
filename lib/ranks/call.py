"""One call on the ranks, as the kernel sees it: wait; at the first failure stop, tell, mend."""

import textwrap
import time

from lib.ranks import diagnosis
from lib.ranks.crew import Crew
from lib.ranks.failures import Failure, RankError, list_of, place, ranks_say, were

_STOP_LIMIT = 5.0  # seconds a stopped rank may take before its process is ended
_TICK = 0.05  # seconds between two looks at the board while ranks work


class Stop(KeyboardInterrupt):
    """The stop button ended a call; the message says where each rank was."""

    def _render_traceback_(self):
        return [f"KeyboardInterrupt: {self}"]


class Call:
    """Call `number` on some ranks; `answers`, `printed` and `failed` fill as the ranks speak."""

    def __init__(self, crew: Crew, number: int, ranks: list[int], interrupts, patience: float):
        self.crew, self.number, self.ranks, self.interrupts = crew, number, ranks, interrupts
        self.patience = patience
        self.pending = set(ranks)
        self.answers: dict[int, object] = {}
        self.printed: dict[int, list] = {}
        self.failed: list[Failure] = []
        self.replaced: list[int] = []
        self.cut = False  # connections were cut to end waits: new groups are needed

    def wait(self) -> list:
        """Give what the ranks returned; raise RankError or Stop when they did not."""
        suspicion, beats, moved = None, None, time.monotonic()
        while self.pending and not self.failed:
            heard = self._hear(_TICK)
            if self.interrupts.pressed:
                self._stopped_by_reader()
            if heard or self.failed:
                continue
            now = [self.crew.board.look(rank) for rank in range(self.crew.size)]
            if now != beats:
                beats, moved, suspicion = now, time.monotonic(), None
            silent = time.monotonic() - moved > self.patience
            found = diagnosis.stuck(self.crew.board, self.pending, silent)
            if found and found == suspicion:  # twice the same, and nobody moved between
                self._stuck(found)
            suspicion = found
        if self.failed:
            self._failed()
        if len(self.ranks) == self.crew.size:
            odd = diagnosis.left_over(self.crew.board, set(self.ranks))
            if odd:
                self._left_over(odd)
        return [self.answers[rank] for rank in self.ranks]

    def _hear(self, limit: float) -> bool:
        heard = False
        for rank, message in self.crew.hear(self.interrupts, limit):
            if isinstance(message, Failure):
                if rank in self.pending:
                    self.pending.discard(rank)
                    self.failed.append(message)
                continue
            call, kind, value, printed = message
            if call not in (self.number, None) or rank not in self.pending:
                continue
            heard = True
            if kind == "print":
                for line in value.split("\n"):
                    print(f"rank {rank} │ {line}", flush=True)
                continue
            self.printed[rank] = printed
            self.pending.discard(rank)
            if kind == "ok":
                self.answers[rank] = value
            else:
                self.failed.append(Failure(rank, kind, **value))
        return heard

    def _stop(self, hard: bool) -> list[Failure]:
        """End the call on the ranks still in it; end the process of one that does not obey."""
        already, self.cut = len(self.failed), self.cut or hard
        deadline = time.monotonic() + (_STOP_LIMIT if hard else 1.0)
        for rank in self.pending:
            self.crew.order(rank, "cut" if hard else "stop", self.number)
        while self.pending and time.monotonic() < deadline:
            self._hear(0.05)
        if self.pending and not hard:
            self._stop(hard=True)
        unruly = set(self.pending)
        for rank in unruly:
            self.crew.processes[rank].process.kill()
        while self.pending:
            self._hear(0.5)
        for failure in self.failed[already:]:
            if failure.rank in unruly:
                failure.kind = "ended"  # by us: it is not to blame
        return self.failed[already:]

    # How it fails. Each way composes its message from the board before the board is cleared.

    def _failed(self):
        grace = time.monotonic() + 0.03  # others may have their own story; who waits has none
        while time.monotonic() < grace and self.pending - set(self._waiting(self.pending)):
            self._hear(0.005)
        causes = [f for f in self.failed if f.kind != "stopped"]
        waiting = self._waiting(self.pending)
        told = self._stop(hard=bool(self.pending))
        causes += [f for f in told if f.kind != "stopped"]  # some speak before the order comes
        late = {f.rank for f in told if f.kind == "stopped"}
        if told or any(f.kind == "died" for f in causes):  # gloo blames the living
            lost = [f for f in causes if f.waited or "gloo" in f.text.lower()]
            causes = [f for f in causes if f not in lost]
            for f in lost:
                broken = diagnosis.waiting_in(self.crew.board, f.rank, f.waited) if f.waited else ""
                waiting[f.rank] = broken or f"its work, at {place(*f.frames[-1][:2])}"
        causes.sort(key=lambda f: f.when)
        mismatch = next((f for f in causes if f.where), None)
        table = diagnosis.table(self.crew.board, *mismatch.where) if mismatch else ""
        text = ranks_say([f for f in causes if not f.where])
        if mismatch:
            text = (
                f"the ranks do not agree: {mismatch.text}.\n\n{table}\n\n"
                "Nothing of it was sent. Let every rank of the group call the same collectives,\n"
                "in the same order, with the same sizes and dtypes."
                + (f"\n\n{text}" if text else "")
            )
        else:  # beside a table, who happened to wait already says nothing
            text += _others(waiting, late - {f.rank for f in causes})
        text += self._mend(bool(waiting or late or mismatch))
        cause = causes[0].exception if len({f.type for f in causes}) == 1 else None
        raise RankError(text, causes[0].rank, causes, table) from cause

    def _stuck(self, found: dict[int, tuple]):
        tag, launch, _ = found[min(found)]
        members = self.crew.board.counts(min(found))[tag].members
        table = diagnosis.table(self.crew.board, tag, launch, members)
        waiting = self._waiting(found)
        ended = sorted(set().union(*(late for _, _, late in found.values())) - self.pending)
        absent = [rank for rank in ended if rank not in self.ranks]
        if not ended:
            why = "they wait for each other"
        elif absent:
            why = f"{list_of(absent)} {'is' if len(absent) == 1 else 'are'} not in this call"
        else:
            came = "has come to its end" if len(ended) == 1 else "have come to their end"
            why = f"{list_of(ended)} {came} without it"
        verb = "waits" if len(found) == 1 else "wait"
        text = f"{list_of(found)} {verb} for ever: {why}.\n\n{table}\n"
        text += "".join(f"\nrank {r} waits in {w}." for r, w in sorted(waiting.items()))
        self._stop(hard=True)
        raise RankError(text + self._mend(True), (ended or [min(found)])[0], (), table)

    def _left_over(self, odd: tuple):
        table = diagnosis.table(self.crew.board, *odd)
        text = f"the call ended, but not every rank launched the same.\n\n{table}"
        raise RankError(text + self._mend(True), odd[2][0], (), table)

    def _stopped_by_reader(self):
        waiting = self._waiting(self.pending)
        told = self._stop(hard=bool(waiting))
        where = [f"rank {r} waited in {w}" for r, w in sorted(waiting.items())]
        for f in sorted(told, key=lambda f: f.rank):
            if f.rank not in waiting and f.frames:
                where.append(f"rank {f.rank} was at {place(*f.frames[-1][:2])}")
        uneven = diagnosis.left_over(self.crew.board, set(range(self.crew.size)))
        raise Stop("\n".join(["stopped.", *where]) + self._mend(bool(waiting or uneven)))

    def _waiting(self, ranks) -> dict[int, str]:
        found = {rank: diagnosis.waiting_in(self.crew.board, rank) for rank in ranks}
        return {rank: text for rank, text in found.items() if text}

    def _mend(self, regroup: bool) -> str:
        """Start dead ranks anew, make new groups where needed; say what survived."""
        self.replaced = self.crew.dead()
        text = mend(self.crew, self.replaced, regroup or self.cut)
        return text


def mend(crew: Crew, dead: list[int], regroup: bool) -> str:
    """Bring a crew back after a failure, and say what survived and what did not."""
    text = ""
    if dead:
        crew.replace(dead)
        kept = "; the other ranks keep theirs." if len(dead) < crew.size else "."
        text = f"{were(dead)} started anew: what you had made there is lost{kept}"
    if regroup or dead:
        crew.meet("a call on these ranks failed, and the wait was ended")
        text += "" if dead else "The ranks keep what you made on them."
        text += " The next call works; build a DistributedDataParallel, an FSDP model or a mesh"
        text += " again before you use it."
    return "\n\n" + textwrap.fill(text, 88) if text else ""


def _others(waiting: dict[int, str], stopped: set[int]) -> str:
    """Say what the other ranks were doing when a call failed."""
    where: dict[str, list[int]] = {}
    for rank, text in waiting.items():
        where.setdefault(text, []).append(rank)
    text = "".join(f"\n\n{were(ranks)} left waiting in {what}." for what, ranks in where.items())
    rest = stopped - set(waiting)
    return text + (f"\n\n{were(rest)} stopped." if rest else "")
