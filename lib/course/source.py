"""`source(...)`: the library's own text, as it stands in `lib/`, never retyped."""

import inspect
import textwrap
from pathlib import Path

_ROOT = Path(__file__).parents[2]


class Source:
    """The text of a function, class or module, with the file it stands in."""

    def __init__(self, where: str, text: str):
        self.where, self.text = where, text

    def __repr__(self) -> str:
        return f"# {self.where}\n{self.text}"

    def _repr_mimebundle_(self, include=None, exclude=None):
        marked = f"From `{self.where}`:\n\n```python\n{self.text}\n```"
        return {"text/plain": repr(self), "text/markdown": marked}


def source(*things) -> Source:
    """The text of functions, classes or modules of one file of the library, to be shown in a cell.

    Raises TypeError for what has no text of its own, or stands outside this repository.
    """
    found = [_one(thing) for thing in things]
    if len({where for where, _ in found}) != 1:
        raise TypeError(
            "source() shows one or more things of one file: call it once for each file."
        )
    return Source(found[0][0], "\n\n\n".join(text for _, text in found))


def _one(thing) -> tuple[str, str]:
    try:
        file = Path(inspect.getsourcefile(inspect.unwrap(thing))).resolve()
        text = textwrap.dedent(inspect.getsource(thing)).rstrip()
    except (TypeError, OSError):
        raise TypeError(
            f"{thing!r} has no text to show: name a function, a class or a module."
        ) from None
    if not file.is_relative_to(_ROOT / "lib"):
        name = getattr(thing, "__name__", repr(thing))
        raise TypeError(f"{name} is not in lib/: you have its text where you wrote it.")
    return file.relative_to(_ROOT).as_posix(), text
