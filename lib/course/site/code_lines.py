"""Lines of code in the book: what goes on of a long one stands further in than the line itself."""

import re
from collections.abc import Iterable, Iterator

from pygments.formatters import HtmlFormatter

TAG = re.compile("<[^>]*>")


class CodeLines(HtmlFormatter):
    """Puts each line into an element that knows its indentation, for pages.css to wrap it by."""

    def wrap(self, source: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
        """Yield the lines as Pygments does, each in an element of its own."""
        return super().wrap(map(_in_its_own, source))


def _in_its_own(line: tuple[int, str]) -> tuple[int, str]:
    is_code, html = line
    if not is_code:
        return line
    text = TAG.sub("", html)
    indent, end = len(text) - len(text.lstrip(" ")), "\n" * html.endswith("\n")
    inside = html.removesuffix("\n")
    return 1, f'<span class="code-line" style="--indent: {indent}">{inside}</span>{end}'
