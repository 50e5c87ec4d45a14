"""What ranks print: kept or streamed on the rank, shown by rank in the notebook."""

import codecs
import io
import os
import re
import sys

from lib.ranks.state.this_rank import this_rank

_LAST = 12  # printed lines of one rank that are shown at most while its call runs
_WIDTH = 200  # letters of such a line
_PIECES = 500  # that are looked at for them
_LINES = 500  # printed lines of one rank shown in a cell; all of them stay in `world.printed`
_LOG_LINE = re.compile(
    r"^\[(?:(?:rank\d+\]:\[)?[IWEF]\d{4} |/\S+\.cc:\d+\] (?:ERROR|WARN|INFO)).*\n?", re.M
)  # PyTorch's own, and gloo's


class Printed(io.TextIOBase):
    """What the reader's code prints on this rank, kept for the kernel, or streamed as it comes.

    `tail` is a file that C code and child processes write to, under `descriptor`: what they wrote
    first is kept first.
    """

    encoding, errors = "utf-8", "backslashreplace"

    def __init__(self, kept: list, stream: str, descriptor: int, tail=None):
        self.kept, self.stream, self.descriptor, self.tail = kept, stream, descriptor, tail
        self.live, self.begun, self.owner = None, "", os.getpid()
        self.buffer = _Bytes(self)

    def writable(self):
        return True

    def fileno(self) -> int:
        """Give the descriptor that a child process may write to."""
        return self.descriptor

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() takes a string, not {type(text).__name__}.")
        if os.getpid() != self.owner:  # a process forked from this rank, a DataLoader's say
            os.write(self.descriptor, text.encode(errors=self.errors))
            return len(text)
        self.catch_up()
        self._keep(text)
        return len(text)

    def catch_up(self) -> None:
        """Keep what others have written to the descriptor meanwhile."""
        text = self.tail.read() if self.tail else ""
        if text:
            self._keep(text)

    def _keep(self, text: str) -> None:
        if self.live:  # line by line, so that ranks do not cut into each other's lines
            *lines, self.begun = (self.begun + text).split("\n")
            if lines:
                self.live("\n".join(lines))
        else:
            self.kept.append((self.stream, text))

    def finish(self) -> None:
        """Send on a last line that did not end."""
        self.catch_up()
        if self.live and self.begun:
            self.live(self.begun)
        self.begun = ""


class _Bytes(io.RawIOBase):
    """The bytes under a Printed: what is written here is printed as text."""

    def __init__(self, text: Printed):
        self.text = text
        self.decoder = codecs.getincrementaldecoder(text.encoding)("backslashreplace")

    def writable(self):
        return True

    def fileno(self) -> int:
        return self.text.fileno()

    def write(self, data) -> int:
        self.text.write(self.decoder.decode(data))
        return memoryview(data).nbytes


class Tail:
    """What was written to a descriptor's file since the last time, by C code and by children."""

    def __init__(self, path: str):
        self.file = os.open(path, os.O_RDONLY)
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def read(self) -> str:
        """Give what was written since the last time."""
        text = ""
        while raw := os.read(self.file, 1 << 16):
            text += self.decoder.decode(raw)
        return text


class Stderr(Tail):
    """What was written to descriptor 2, without the log lines of PyTorch's C++ code.

    The board keeps how much of it was read: the rest is the last words of a rank that dies.
    """

    def __init__(self, path: str, rank: int):
        super().__init__(path)
        self.rank = rank
        this_rank.board.pass_on_stderr(rank, 0)

    def read(self) -> str:
        """Give what was written since the last time."""
        text = super().read()
        if not text:
            return text
        this_rank.board.pass_on_stderr(self.rank, os.lseek(self.file, 0, os.SEEK_CUR))
        return _LOG_LINE.sub("", text)


def show(rank: int, line: str, flush: bool = False) -> None:
    """Print one line of a rank's."""
    say(labelled(rank, line), flush)


def labelled(rank: int, line: str) -> str:
    """Write a line of a rank's as it is printed."""
    return f"rank {rank} │ {line}"


def last_lines(printed: list) -> list[str]:
    """Give the last lines of what a rank has printed, (stream, text) by piece.

    Of a line that was written over and over, as progress bars are, the last state is given.
    """
    text = "".join(piece[-_WIDTH * _LAST :] for _, piece in printed[-_PIECES:])
    text = text.encode(errors="backslashreplace").decode()  # a front end takes whole letters only
    lines = text.removesuffix("\n").split("\n")[-_LAST:] if text else []
    return [line.rstrip("\r").rpartition("\r")[2][:_WIDTH] for line in lines]


def say(text: str, flush: bool = False) -> None:
    """Print a line, also where the notebook's output has no such letters."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        print(text.encode(encoding, "backslashreplace").decode(encoding), flush=flush)
    except LookupError:  # it calls itself something that is no encoding
        print(text, flush=flush)


def show_all(rank: int, printed: list) -> str:
    """Print the first lines of what a rank has printed, (stream, text) by piece; give all of it."""
    text = "".join(piece for _, piece in printed)
    lines = text.splitlines()
    for line in lines[:_LINES]:
        show(rank, line)
    if len(lines) > _LINES:
        more = len(lines) - _LINES
        show(rank, f"… {more:,} more lines: world.printed[{rank}] holds them all")
    return text
