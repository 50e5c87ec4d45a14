"""What PyTorch itself reports when a rank fails: plain processes, without the course's runtime."""

import contextlib
import multiprocessing
import os
import re
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import cloudpickle
import torch.distributed as dist

from lib.ranks.kernel.launch import METHOD, warm

_LOST = 30.0  # s after which a process that has reported nothing counts as lost
_WIDTH = 44  # columns, so that a narrow screen shows whole lines
_FINE, _LATE, _CLOSED = "no error", "Timed out", "onnection closed"
_NOTE = (
    "(The course's note, not PyTorch's words: some of these ranks may report a closed connection "
    "instead, because another was at its limit first.)"
)


@dataclass(frozen=True)
class Reports:
    """Holds what each rank reported of each step: {name of the step: [report of rank 0, ...]}."""

    by_step: dict[str, list[str]]

    def reaction(self, step: str) -> str:
        """Return what the ranks got whose own code had not failed in this step.

        It is "a sum without it", "an error at once", or "a wait until the time limit".
        """
        others = [text for text in self.by_step[step] if text == _FINE or text.startswith("Runt")]
        if all(text == _FINE for text in others):
            return "a sum without it"
        late = any(_LATE in text for text in others)
        return "a wait until the time limit" if late else "an error at once"

    def __str__(self) -> str:
        lines, indent = [], " " * 4
        for name, reports in self.by_step.items():
            lines.append(f"----- {name}")
            for ranks, report in _merged(reports).items():
                word = "rank" if len(ranks) == 1 else "ranks"
                who = f"{word} {', '.join(map(str, ranks))}"
                lines += textwrap.wrap(f"{who}  {report}", _WIDTH, subsequent_indent=indent)
                if _LATE in report and len(ranks) > 1:
                    lines += textwrap.wrap(
                        _NOTE, _WIDTH, initial_indent=indent, subsequent_indent=indent
                    )
        return "\n".join(lines)


def _merged(reports: list[str]) -> dict[tuple[int, ...], str]:
    """Return {ranks: what they reported}, with equal reports as one.

    Ranks that wait for one another reach their limit at about the same moment. The first one closes
    its connections, and another may notice this before its own limit: which of the two messages it
    reports is chance, so both count as the limit here. What is printed says so in a note.
    """
    limits = [report for report in reports if _LATE in report]
    broken = [report for report in reports if _CLOSED in report]
    ranks: dict[str, list[int]] = {}
    for rank, report in enumerate(reports):
        text = limits[0] if limits and report in (*limits, *broken) else report
        ranks.setdefault(text, []).append(rank)
    return {tuple(those): text for text, those in ranks.items()}


def pytorch_reports(
    steps, *args, ranks: int = 4, seconds: float | Sequence[float] = 2.0
) -> Reports:
    """Call each `step(*args)` in new processes with plain gloo, and return what each rank reports.

    `seconds` is the time limit of the process group, or a sequence with one for each step. A rank
    reports "no error", or the type and message of the exception that ended its step, without port
    numbers, which differ in every run. A rank that failed ends at once, as a script would. One that
    did not, or that has reached the time limit, as others may at the same moment, stays until all
    have reported.
    """
    limits = [seconds] * len(steps) if isinstance(seconds, int | float) else seconds
    return Reports(
        {
            step.__name__: _reports(step, args, ranks, limit)
            for step, limit in zip(steps, limits, strict=True)
        }
    )


def _reports(step, args: tuple, ranks: int, seconds: float) -> list[str]:
    warm()
    context, call = multiprocessing.get_context(METHOD), cloudpickle.dumps((step, args))
    started = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for rank in range(ranks):
                ours, theirs = context.Pipe()
                arguments = (theirs, call, rank, ranks, f"{folder}/store", seconds)
                process = context.Process(target=_be_a_rank, args=arguments, daemon=True)
                process.start()
                theirs.close()
                started.append((process, ours))
            return [_report(connection) for _, connection in started]
        finally:
            for _, connection in started:
                connection.close()  # those that stayed end now
            for process, _ in started:
                process.join(5)
                process.kill()


def _report(connection) -> str:
    try:
        if connection.poll(_LOST):
            return connection.recv()
    except EOFError:
        return "its process ended without a report"
    return f"no report within {_LOST:.0f} s"


def _be_a_rank(connection, call: bytes, rank: int, ranks: int, path: str, seconds: float) -> None:
    """Form the group, call the step, report, and stay until the others have reported too."""
    for stream in (1, 2):  # what C++ prints here would turn up in the reader's cell
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    step, args = cloudpickle.loads(call)
    store = dist.FileStore(path, ranks)
    store.set(f"here {rank}", "")
    store.wait([f"here {other}" for other in range(ranks)])  # its limit is that of a store
    try:
        limit = timedelta(seconds=seconds)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=limit)
        step(*args)
        connection.send(_FINE)
    except Exception as error:
        report = _readable(error)
        connection.send(report)
        if _LATE not in report:
            os._exit(1)
    with contextlib.suppress(EOFError):
        connection.recv()  # until the notebook closes its end
    os._exit(0)


def _readable(error: Exception) -> str:
    """Write an exception on one line, without its port number and the folder of its C++ file."""
    text = re.sub(r"(\[[\d.:a-f]+\]):\d+", r"\1:port", str(error).splitlines()[0])
    text = re.sub(r"\[/\S*/(\w+\.cc:\d+)\]", r"[…/\1]", text)
    return f"{type(error).__name__}: {text}"
