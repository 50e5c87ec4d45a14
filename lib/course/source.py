"""`source(...)` shows the text of a function or class of the library in a cell."""

import inspect
import textwrap
from pathlib import Path

_ROOT = Path(__file__).parents[2]


class Source:
    """Holds the text of a function, class or module, and the file that contains it."""

    def __init__(self, where: str, text: str):
        self.where, self.text = where, text

    def __repr__(self) -> str:
        return f"# {self.where}\n{self.text}"

    def _repr_mimebundle_(self, include=None, exclude=None):
        marked = f"From `{self.where}`:\n\n```python\n{self.text}\n```"
        return {"text/plain": repr(self), "text/markdown": marked}


def source(*things) -> Source:
    """Return the text of functions, classes or modules of one file of the library.

    Raises TypeError for a thing that has no text of its own, or is outside of lib/.
    """
    pairs = [_one(thing) for thing in things]
    files = [file for file, _ in pairs]
    if len(set(files)) != 1:
        raise TypeError(
            "source() shows one or more things from one file. Call it once for each file."
        )
    return Source(files[0], "\n\n\n".join(text for _, text in pairs))


def _one(thing) -> tuple[str, str]:
    try:
        file = Path(inspect.getsourcefile(inspect.unwrap(thing))).resolve()
        text = textwrap.dedent(inspect.getsource(thing)).rstrip()
    except (TypeError, OSError):
        raise TypeError(
            f"{thing!r} has no text to show. Pass a function, a class or a module."
        ) from None
    if not file.is_relative_to(_ROOT / "lib"):
        name = getattr(thing, "__name__", repr(thing))
        raise TypeError(f"{name} is not in lib/, and source() shows only the library's own text.")
    return file.relative_to(_ROOT).as_posix(), text
