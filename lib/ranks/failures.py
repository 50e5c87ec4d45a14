"""Telling what went wrong: which rank, at which line of the reader's, and what to do now."""

import linecache
import signal
import textwrap
from dataclasses import dataclass, field

from lib.ranks.board import WAITING, Board


class RankError(RuntimeError):
    """A call on the ranks failed; the message says which rank, where, and what survived.

    `rank` is the first rank to blame, `failures` what each rank told, `table` the collectives of a
    mismatch or a wait without end.
    """

    def __init__(self, message: str, rank: int | None = None, failures=(), table: str = ""):
        super().__init__(message)
        self.rank, self.failures, self.table = rank, tuple(failures), table

    def _render_traceback_(self):  # IPython shows this instead of our own frames
        return [f"{type(self).__name__}: {self}"]


@dataclass
class Failure:
    """What one rank told of its end of a call, or what its process's end tells."""

    rank: int
    kind: str  # "raised", "stopped", "died"
    type: str = ""
    text: str = ""
    frames: list = field(default_factory=list)
    when: int = 0
    where: tuple | None = None  # of a mismatch: tag, number, members
    waited: tuple | None = None  # tag and number of the wait that broke off
    exception: BaseException | None = None
    code: int | None = None


# Names of notebook cells: the kernel knows them, a rank sees only a made-up file name.
cells: dict[str, str] = {}


def place(filename: str, line: int) -> str:
    """Name a line as its reader knows it: `cell In[3], line 2`, or `file.py, line 2`."""
    if filename in cells:
        return f"{cells[filename]}, line {line}"
    try:
        from IPython import get_ipython

        kind, name = get_ipython().compile.format_code_name(filename)
        return f"{kind.lower()} {name}, line {line}"
    except (ImportError, AttributeError, TypeError):
        return f"{filename.rsplit('/', 1)[-1]}, line {line}"


def place_of(text: str) -> str:
    """Name a line given as the board keeps it, `file:line`."""
    filename, _, line = text.rpartition(":")
    return place(filename, int(line)) if filename else "a line outside your code"


def frames_of(failure: Failure) -> str:
    """Write a failure's own frames, innermost last, with their source lines."""
    lines = []
    for filename, line, name, source in failure.frames:
        name = "" if name in ("<module>", "<cell line: 1>") else f", in {name}"
        source = linecache.getline(filename, line).strip() or source or ""
        lines += [f"  {place(filename, line)}{name}", *([f"    {source}"] if source else [])]
    return "\n".join(lines)


def death(code: int | None) -> str:
    """Say how a process ended."""
    if code is None:
        return "its process is gone"
    if code >= 0:
        return f"its process ended with exit code {code}"
    name = signal.Signals(-code).name
    hint = "; out of memory is the usual reason" if name == "SIGKILL" else ""
    return f"its process was ended by signal {-code} ({name}{hint})"


def stuck(board: Board, running: set[int], silent: bool = False) -> dict[int, tuple]:
    """Find the ranks that can never be answered: {rank: (tag, number, ranks it waits for)}.

    A rank that waits has hope if all it waits for are still running or have hope themselves; those
    left over wait for one that has finished, or for each other in a circle. With `silent`, a rank
    that launched something its partners have not counts as waiting even if it does not say so
    (C++ code waits without telling us).
    """
    counts = {rank: board.counts(rank) for rank in range(board.size)}

    def missing(tag, number, members):
        return {m for m in members if (c := counts[m].get(tag)) is None or c.launches <= number}

    waits: dict[int, tuple] = {}
    for rank in running:
        state, _, tag, number = board.look(rank)
        own = counts[rank].get(tag)
        if state == WAITING and own:
            late = missing(tag, number, own.members) - {rank}
            if late and not own.name.startswith("any "):
                waits[rank] = (tag, number, late)
        else:
            for own in counts[rank].values():
                late = missing(own.tag, own.launches - 1, own.members) - {rank}
                if late and (silent or not late <= running) and ">" not in own.name:
                    waits[rank] = (own.tag, own.launches - 1, late)
    hopeful = set(running) - set(waits)
    while True:
        more = {r for r, (_, _, late) in waits.items() if r not in hopeful and late <= hopeful}
        if not more:
            break
        hopeful |= more
    return {rank: wait for rank, wait in waits.items() if rank not in hopeful}


def left_over(board: Board, ranks: set[int]) -> tuple | None:
    """Find something that only some of its members launched in a call that all have finished."""
    counts = {rank: board.counts(rank) for rank in ranks}
    for rank in sorted(ranks):
        for own in counts[rank].values():
            for member in own.members:
                if member in ranks and not own.name.startswith(("any ", "joining")):
                    theirs = counts[member].get(own.tag)
                    if (theirs.launches if theirs else 0) < own.launches:
                        return own.tag, own.launches - 1, own.members
    return None


def table(board: Board, tag: int, number: int, members) -> str:
    """Write rank × (collective, group, number, size, line) for one number of one group."""
    name = next((c.name for r in members for c in board.counts(r).values() if c.tag == tag), "")
    rows = [("rank", "launched", "group", "number", "at")]
    for rank in members:
        entry = board.entry(rank, tag, number)
        launched = entry.text if entry else "nothing: it has not come"
        rows.append(
            (str(rank), launched, name, str(number), place_of(entry.place) if entry else "")
        )
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    return "\n".join(
        "  " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def waiting_in(board: Board, rank: int, wait: tuple | None = None) -> str:
    """Say what a rank waits in: `wait` as (tag, number), else what it says on the board."""
    state, _, tag, number = board.look(rank)
    if wait:
        tag, number = wait
    entry = board.entry(rank, tag, number) if wait or state == WAITING else None
    if not entry:
        return ""
    count = board.counts(rank).get(tag)
    what = entry.text.split(" ")[0]
    return f"{what} (group {count.name if count else '?'}, number {number}) at {place_of(entry.place)}"


def ranks_are(ranks) -> str:
    """Write a set of ranks with its verb: `rank 2 was`, `ranks 0, 1 and 3 were`."""
    names = [str(rank) for rank in sorted(ranks)]
    if len(names) == 1:
        return f"rank {names[0]} was"
    return f"ranks {', '.join(names[:-1])} and {names[-1]} were"


def ranks_say(failures: list[Failure]) -> str:
    """Write what went wrong on each rank; ranks with the same story share it."""
    stories: dict[str, list[int]] = {}
    for failure in failures:
        if failure.kind == "died":
            story = f"died: {death(failure.code)}." + (f"\n{failure.text}" if failure.text else "")
        elif failure.type == "unpicklable":
            story = (
                f"returned what cannot travel to the notebook.\n  {failure.text}\n"
                "Return tensors, numbers, strings, or lists and dicts of them; "
                "what you keep in a `%%ranks` cell need not travel."
            )
        elif failure.type == "SystemExit":
            story = f"called {failure.text}, which would end the rank.\n{frames_of(failure)}"
        else:
            text = f": {failure.text}" if failure.text else ""
            story = f"raised {failure.type}{text}\n{frames_of(failure)}"
        stories.setdefault(story, []).append(failure.rank)
    return "\n\n".join(
        ranks_are(ranks).rsplit(" ", 1)[0] + " " + story for story, ranks in stories.items()
    )


def paragraph(text: str) -> str:
    """Wrap a sentence for a cell's output."""
    return textwrap.fill(text, 100)
