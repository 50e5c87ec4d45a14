"""What a front end is told of a call that takes longer than a second, while it runs.

[Note: progress]
How many ranks are done, what the others wait in, and the last lines that each has printed travel as
messages of a comm that nobody opened. `progress.js` in JupyterLab draws them below the cell; all
other clients pass over them, also those that store outputs, so nothing of it can be left in a
notebook. The thread that waits for the ranks sends them between two looks at the board: nothing
else runs that could outlive the call.
"""

import sys
import time

from lib.ranks.kernel import diagnosis
from lib.ranks.shared.failures import list_of
from lib.ranks.transport.printed import labelled, last_lines

NAME = "many-ranks-progress"  # progress.js listens to it
_AFTER = 1.0  # seconds that a call takes before anything is told
_BEAT = 0.25  # seconds between two messages
_LINES = 12  # printed lines that are told, or one for each rank


class Messages:
    """Sends to the front end that asked for what the kernel runs now, from any thread."""

    def __init__(self, kernel):
        self.kernel, self.parent = kernel, kernel.get_parent()

    @classmethod
    def of_notebook(cls) -> "Messages | None":
        """Return those of this notebook's kernel; None where there is none, as in a script."""
        kernel = _kernel()
        return cls(kernel) if kernel else None

    def send(self, data: dict) -> None:
        """Send what progress.js shows: a "text" and more, or that all is "over"."""
        content, kernel = {"comm_id": NAME, "data": data}, self.kernel
        kernel.session.send(kernel.iopub_socket, "comm_msg", content, parent=self.parent)


class Progress:
    """Tells of one call from its first second on; `lines` are the last that each rank printed."""

    def __init__(self):
        self.lines: dict[int, list[str]] = {}
        self.messages = None  # to the front end, once something was told
        self.began = time.monotonic()
        self.due = self.began + _AFTER

    def tell(self, call) -> None:
        """Tell how far a Call is, if that is due and a notebook's kernel makes it."""
        now = time.monotonic()
        if now < self.due or not call.pending:
            return
        if not self.messages:
            self.messages = Messages.of_notebook()
            if not self.messages:
                self.due = float("inf")
                return
            for rank in call.pending:
                call.processes.order(rank, "show", call.number)
        self.due = now + _BEAT
        done, ranks = len(call.ranks) - len(call.pending), len(call.ranks)
        text = f"{done} of {ranks} ranks {_are(done)} done, {_duration(now - self.began)}. "
        text += _doing(call)
        self.messages.send({"done": done, "ranks": ranks, "text": text, "lines": self._last(call)})

    def end(self) -> None:
        """Tell that the call is over, if anything was told of it."""
        if self.messages:
            self.messages.send({"over": True})

    def _last(self, call) -> list[str]:
        """Give the lines printed last, by rank."""
        printed = self.lines | {rank: last_lines(kept) for rank, kept in call.printed.items()}
        each = max(1, _LINES // max(1, sum(map(bool, printed.values()))))
        return [labelled(rank, line) for rank in sorted(printed) for line in printed[rank][-each:]]


def _kernel():
    """Give the kernel of this notebook; None where there is none, as in a script."""
    if "ipykernel" not in sys.modules:
        return None
    from IPython import get_ipython

    return getattr(get_ipython(), "kernel", None)


def _doing(call) -> str:
    """Say what the ranks that are not done do; those that do the same share a sentence."""
    doing: dict[str, list[int]] = {}
    for rank in sorted(call.pending):
        wait = diagnosis.waiting_in(call.board, rank, streamed=call.streamed).partition(" (")[0]
        doing.setdefault(wait, []).append(rank)
    parts = [
        f"{list_of(ranks)} wait{'s' if len(ranks) == 1 else ''} in {wait}"
        if wait
        else f"{list_of(ranks)} {_are(len(ranks))} running"
        for wait, ranks in doing.items()
    ]
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60} s"
