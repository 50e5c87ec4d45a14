"""Lines of the book that have no room: where code, names and headings may go on below."""

import re
from collections.abc import Iterable, Iterator
from html import unescape
from itertools import pairwise

from pygments.formatters import HtmlFormatter

TAG = re.compile("(<[^>]*>)")
# Where a word of code without room may go on below: f(|x), x[|0], and if that is not enough a|.b.
OPENED, DOTS = re.compile(r"(?<=[(\[])(?=[^\s)\]])"), re.compile(r"(?<=[\w)\]])(?=\.[A-Za-z_])")
ROOM = 30  # letters in a line of 360 px, behind the four by which what is left of a line stands in

# Where a name in a sentence or a table may go on below: Grad|Scaler, bytes_|sent, lib/|ranks.
PARTS = re.compile(
    r"(?<=[\w)\]][_./-])(?=[^\W\d])|(?<=\w\()(?=\w)"
    r"|(?<=[a-z])(?=\d?[A-Z])|(?<=[A-Z0-9])(?=[A-Z][a-z])"
)
SHORT = 10  # letters; a shorter name needs no break
MINUTES = re.compile(r"(?<=\(\d) (?=min\))|(?<=\(\d\d) (?=min\))")  # of a section: (5 min)
INLINE = re.compile(r'(?<=<span class="pre">)[^<]+(?=</span>)')


class CodeLines(HtmlFormatter):
    """Puts each line into an element that knows its indentation, for pages.css to wrap it by."""

    def wrap(self, source: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
        """Yield the lines as Pygments does, each in an element of its own."""
        return super().wrap(map(_in_its_own, source))


def _in_its_own(line: tuple[int, str]) -> tuple[int, str]:
    is_code, html = line
    if not is_code:
        return line
    parts = TAG.split(html.removesuffix("\n"))  # text and tags in turns
    text = "".join(parts[::2])
    indent, newline = len(text) - len(text.lstrip(" ")), "\n" * html.endswith("\n")
    joints, first = _joints(text, ROOM - indent), 0
    for n in range(0, len(parts), 2):
        end = first + len(parts[n])
        for at in reversed([joint - first for joint in joints if first <= joint < end]):
            parts[n] = f"{parts[n][:at]}<wbr>{parts[n][at:]}"
        first = end
    inside = "".join(parts)
    return 1, f'<span class="code-line" style="--indent: {indent}">{inside}</span>{newline}'


def _joints(text: str, room: int) -> list[int]:
    """Return where a line may be broken, apart from its spaces: inside words longer than `room`."""
    words = [word.span() for word in re.finditer(r"\S+", text)]
    for joint in (OPENED, DOTS):
        words = [part for word in words for part in _split(text, word, joint, room)]
    return [start for start, _ in words if start and not text[start - 1].isspace()]


def _split(text: str, word: tuple[int, int], joint: re.Pattern, room: int) -> list[tuple[int, int]]:
    start, end = word
    if len(unescape(text[start:end])) <= room:
        return [word]
    inside = (found.start() for found in joint.finditer(text, start, end))
    return list(pairwise([start, *(at for at in inside if at > start), end]))


def breakable(html: str) -> str:
    """Return a page with places to break in the names of its inline code, and the same text.

    The minutes of a section stay in one line.
    """
    html = MINUTES.sub("&nbsp;", html)
    return INLINE.sub(lambda name: _in_parts(name[0]), html)


def _in_parts(name: str) -> str:
    return PARTS.sub("<wbr>", name) if len(name) > SHORT else name
