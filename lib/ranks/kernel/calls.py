"""One call on the ranks, as the kernel sees it.

The kernel waits for all of them; at the first failure it stops the others, reports, and repairs.
"""

import contextlib
import textwrap
import time

from lib.ranks.kernel import diagnosis, reports
from lib.ranks.kernel.processes import Processes
from lib.ranks.kernel.progress import Progress
from lib.ranks.shared.failures import Failure, RankError, ranks_were
from lib.ranks.transport.printed import show

_STORY = 0.25  # seconds for other ranks to fail or to wait, after the first has failed
_STOP_LIMIT = 5.0  # seconds a stopped rank may take before its process is ended
_TICK = 0.05  # seconds between two looks at the board while ranks work
_GRACE = 1.0  # seconds for others to finish or to wait, before those who wait for ever are named


class Stop(KeyboardInterrupt):
    """The stop button ended a call; the message says where each rank was."""

    def _render_traceback_(self):
        return [f"KeyboardInterrupt: {self}"]


class Call:
    """Call `number` on some ranks; `answers`, `printed` and `failed` fill as the ranks speak."""

    def __init__(self, processes: Processes, number: int, ranks: list[int], interrupts, patience):
        self.processes, self.board, self.number = processes, processes.board, number
        self.ranks, self.interrupts, self.patience = ranks, interrupts, patience
        self.streamed = processes.placement.backend != "gloo"  # waits hold up streams of GPUs
        self.pending = set(ranks)
        self.answers: dict[int, object] = {}
        self.printed: dict[int, list] = {}
        self.failed: list[Failure] = []
        self.progress = Progress()
        self.cut = False  # connections were cut to end waits: new groups are needed

    def wait(self) -> list:
        """Give what the ranks returned; raise RankError or Stop when they did not.

        Whatever else fails on the way, the reader is told what the ranks have told until then.
        """
        try:
            return self._outcome()
        except (RankError, Stop):
            raise
        except Exception as broken:
            with contextlib.suppress(Exception):
                self._stop(hard=True)
            report = reports.plain(self.failed, broken)
            with contextlib.suppress(Exception):
                report.text += self._mend(True)
            raise RankError(report.text, report.rank, report.failures) from report.cause
        finally:
            self.progress.end()

    def _outcome(self) -> list:
        suspicion, beats, moved = None, None, time.monotonic()
        while self.pending and not self.failed:
            heard = self._hear(_TICK)
            self.progress.tell(self)
            if self.interrupts.pressed:
                self._stopped_by_reader()
            if heard or self.failed:
                continue
            now = [self.board.look(rank) for rank in range(self.processes.size)]
            if now != beats:
                beats, moved, suspicion = now, time.monotonic(), None
            silent = time.monotonic() - moved > self.patience
            stuck = diagnosis.stuck(self.board, self.pending, silent, self.streamed)
            # Twice the same, and nobody moved between. Others who compute may come to a wait too.
            settled = self.pending <= stuck.keys() or time.monotonic() - moved > _GRACE
            if stuck and stuck == suspicion and settled:
                self._stuck(stuck)
            suspicion = stuck
        if self.failed:
            self._failed()
        if len(self.ranks) == self.processes.size:
            odd = diagnosis.left_over(self.board, set(self.ranks))
            if odd:
                self._left_over(odd)
        if any(self.board.has_left(rank) for rank in self.ranks):
            self._mend(True)  # dist.destroy_process_group(): the next call needs a new one
        return [self.answers[rank] for rank in self.ranks]

    def _hear(self, limit: float) -> bool:
        heard = False
        for rank, message in self.processes.hear(self.interrupts, limit):
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
                    show(rank, line, flush=True)
                continue
            if kind == "show":
                self.progress.lines[rank] = value
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
            self.processes.order(rank, "cut" if hard else "stop", self.number)
        while self.pending and time.monotonic() < deadline:
            self._hear(0.05)
        if self.pending and not hard:
            self._stop(hard=True)
        unruly = set(self.pending)
        for rank in unruly:
            self.processes.by_rank[rank].process.kill()
        while self.pending:
            self._hear(0.5)
        for failure in self.failed[already:]:
            if failure.rank in unruly:
                failure.kind = "ended"  # by us: it is not to blame
        return self.failed[already:]

    # How it fails. Each way composes its report from the board before the board is cleared.

    def _failed(self):
        self._let_settle()
        waiting = self._waiting(self.pending)
        self._stop(hard=bool(self.pending))  # some speak before the order comes
        self._raise(reports.compose(reports.failed, self.failed, self.board, waiting))

    def _let_settle(self) -> None:
        """Let ranks still in the call fail too, or come to where they wait for ever.

        A rank whose wait has been answered, and which has not woken yet, goes on to the next first.
        """
        began = moved = time.monotonic()
        while time.monotonic() - moved < _STORY:
            answered = diagnosis.answered(self.board, self.pending, self.streamed)
            if answered and time.monotonic() - began < _GRACE:
                moved = time.monotonic()
            elif not self.pending - self._waiting(self.pending).keys():
                break
            self._hear(0.005)

    def _stuck(self, waits: dict[int, diagnosis.Wait]):
        board, called = self.board, self.ranks
        report = reports.compose(reports.stuck, [], board, waits, set(self.pending), called)
        self._stop(hard=True)
        self._raise(report)

    def _left_over(self, odd: tuple):
        self._raise(reports.compose(reports.left_over, [], self.board, *odd))

    def _raise(self, report: reports.Report):
        text = report.text + self._mend(report.regroup)
        raise RankError(text, report.rank, report.failures, report.table) from report.cause

    def _stopped_by_reader(self):
        waiting = self._waiting(self.pending)
        ended = self._stop(hard=bool(waiting))
        report = reports.compose(reports.stopped, ended, waiting)
        uneven = diagnosis.left_over(self.board, set(range(self.processes.size)))
        raise Stop(report.text + self._mend(bool(waiting or uneven)))

    def _waiting(self, ranks) -> dict[int, str]:
        board, streamed = self.board, self.streamed
        waits = {rank: diagnosis.waiting_in(board, rank, streamed=streamed) for rank in ranks}
        return {rank: text for rank, text in waits.items() if text}

    def _mend(self, regroup: bool) -> str:
        """Start dead ranks anew, make new groups where needed; say what survived."""
        all_ranks = range(self.processes.size)
        regroup = regroup or any(self.board.has_left(rank) for rank in all_ranks)
        return mend(self.processes, regroup or self.cut, self.interrupts)


def mend(processes: Processes, regroup: bool, interrupts) -> str:
    """Bring ranks back after a failure, and say what survived and what did not."""
    text, dead = "", processes.dead()
    if regroup or dead:
        dead = processes.recover(
            dead, "a call on these ranks failed, and the wait was ended", interrupts
        )
        if dead:
            kept = "; the other ranks keep theirs." if len(dead) < processes.size else "."
            text = f"{ranks_were(dead)} started anew: what you had made there is lost{kept}"
        else:
            text = "The ranks keep what you made on them."
        advice = "The next call works; build a DistributedDataParallel, an FSDP model or a mesh"
        advice += " again before you use it."
        text += f"\n{textwrap.fill(advice, 49)}"  # as wide as a phone shows
    return f"\n\n{text}" if text else ""
