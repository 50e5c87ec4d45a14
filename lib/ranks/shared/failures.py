"""Telling what went wrong: which rank, at which line of the reader's, and what to do now."""

import linecache
import signal
from dataclasses import dataclass, field


class RankError(RuntimeError):
    """A call on the ranks failed; the message says which rank, where, and what survived.

    `rank` is the first rank to blame, None where nobody can tell; `failures` what each rank told,
    `table` the collectives of a mismatch or a wait without end.
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
    kind: str  # "raised", "stopped", "died"; "ended": by us, since it did not stop
    type: str = ""
    text: str = ""
    frames: list = field(default_factory=list)
    when: int = 0
    where: tuple | None = None  # of a mismatch: tag, number, members
    waited: tuple | None = None  # tag and number of the wait that broke off
    lost: bool = False  # it only tells that another rank has gone
    exception: list | None = None  # packed: it may not be one that the kernel can make
    code: int | None = None


# Names of notebook cells: the kernel knows them, a rank sees only a made-up file name.
cells: dict[str, str] = {}


def place(filename: str, line: int) -> str:
    """Name a line as its reader knows it: `cell In[3], line 2`, or `file.py, line 2`."""
    return f"{cell_of(filename) or filename.rsplit('/', 1)[-1]}, line {line}"


def cell_of(filename: str) -> str:
    """Name the cell that a made-up file name stands for, `cell In[3]`; "" where it is no cell."""
    if filename in cells:
        return cells[filename]
    try:
        from IPython import get_ipython

        kind, name = get_ipython().compile.format_code_name(filename)
        return f"{kind.lower()} {name}"
    except (ImportError, AttributeError, TypeError):
        return ""


def place_of(text: str) -> str:
    """Name a line given as the board keeps it, `file:line`."""
    filename, _, line = text.rpartition(":")
    return place(filename, int(line)) if line.isdigit() else "a line outside your code"


_ENDS = 5  # calls shown from each end of a deep recursion


def frames_of(failure: Failure) -> str:
    """Write a failure's own frames, innermost last, with their source lines."""
    lines, frames = [], failure.frames
    for index, (filename, line, name, source) in enumerate(frames):
        if len(frames) > 2 * _ENDS + 1 and _ENDS <= index < len(frames) - _ENDS:
            if index == _ENDS:
                lines.append(f"  … {_skipped(frames[_ENDS:-_ENDS])} …")
            continue
        name = "" if name in ("<module>", "<cell line: 1>") else f", in {name}"
        source = linecache.getline(filename, line).strip() or source or ""
        lines += [f"  {place(filename, line)}{name}", *([f"    {source}"] if source else [])]
    return "\n".join(lines)


def _skipped(frames) -> str:
    """Say what a deep recursion leaves out."""
    alike = len({tuple(frame[:2]) for frame in frames}) == 1
    return f"repeated {len(frames):,} times" if alike else f"{len(frames):,} more calls"


def death(code: int | None) -> str:
    """Say how a process ended."""
    if code is None:
        return "its process is gone"
    if code >= 0:
        return f"its process ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "a real-time signal"
    hint = "; out of memory is the usual reason" if name == "SIGKILL" else ""
    return f"its process was ended by signal {-code} ({name}{hint})"


def list_of(ranks) -> str:
    """Write a set of ranks: `rank 2`, `ranks 0, 1 and 3`."""
    names = [str(rank) for rank in sorted(ranks)]
    return (
        f"rank {names[0]}" if len(names) == 1 else f"ranks {', '.join(names[:-1])} and {names[-1]}"
    )


def ranks_were(ranks) -> str:
    """Write a set of ranks with its verb: `rank 2 was`, `ranks 0, 1 and 3 were`."""
    return list_of(ranks) + (" was" if len(ranks) == 1 else " were")


def ranks_say(failures: list[Failure]) -> str:
    """Write what went wrong on each rank; ranks with the same story share it."""
    stories: dict[str, list[int]] = {}
    for failure in failures:
        if failure.kind == "died":
            story = f"died: {death(failure.code)}." + (f"\n{failure.text}" if failure.text else "")
        elif failure.kind == "ended":
            story = "did not stop in time: its process was ended."
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
    return "\n\n".join(f"{list_of(ranks)} {story}" for story, ranks in stories.items())
