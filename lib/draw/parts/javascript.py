"""The JavaScript of pictures as text: a kind's files joined, for the browser and for the still.

Joined, the files share one scope, so all their top-level names differ. There is no build step.
"""

import base64
import json
import re
import zlib
from functools import cache
from pathlib import Path

from lib.draw.parts import style

JS = Path(__file__).parents[1] / "js"
# The files that every picture shares, what a file imports before it.
HAND = (
    "numbers", "colours", "marks", "meanings", "axes", "paint", "stylesheet", "motion",
    "controls", "fold", "mark_rows", "pointer", "keys", "kernel", "page_svg", "tools", "covers",
    "frame",
)  # fmt: skip
IMPORT = re.compile(r'^import \{[^}]*\} from "\./([\w-]+)\.js";\n', flags=re.MULTILINE)


def plain(text: str) -> str:
    """Return a module's text to be stored: without imports of our files, notes, indentation.

    Their notes are for who reads lib/draw/js, not for storage.
    """
    text = IMPORT.sub("", text)
    lines = (line.strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("//")) + "\n"


def sources(kind: str) -> list[Path]:
    """Return the files of one kind of picture, without those of HAND, in the order of imports."""
    path = JS / f"{kind}.js"
    if not path.is_file():
        raise ValueError(f"No picture is called {kind!r}: there is no lib/draw/js/{kind}.js.")
    files: dict[Path, None] = {}  # in the order in which they were added

    def add(file: Path) -> None:
        for name in IMPORT.findall(file.read_text("utf-8")):
            if name not in HAND and JS / f"{name}.js" not in files:
                add(JS / f"{name}.js")
        files[file] = None

    add(path)
    return list(files)


@cache
def hand() -> str:
    """Return the text that every picture shares: the palette, then the files of HAND."""
    palette = json.dumps(style.palette(), ensure_ascii=False, separators=(",", ":"))
    return f"const style = {palette};\n" + _joined(JS / f"{name}.js" for name in HAND)


@cache
def kind_text(kind: str) -> str:
    """Return the text of one kind of picture, with the name of the file that makes its data."""
    return f'export const madeBy = "{made_by(kind)}";\n' + _joined(sources(kind))


def made_by(kind: str) -> str:
    """Return the file whose function a chapter calls for one kind of picture."""
    return f"lib/draw/{ {'plan_steps': 'plans/steps'}.get(kind, kind) }.py"


def _joined(paths) -> str:
    return "".join(plain(path.read_text("utf-8")) for path in paths)


def module(kind: str) -> str:
    """Return the whole module of a kind of picture, as the browser imports it."""
    return hand() + "\n" + kind_text(kind)


def deflated(text: str) -> str:
    """Return a text as zlib in base64."""
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def inflated(packed: str) -> str:
    """Return the text that `deflated` has packed."""
    return zlib.decompress(base64.b64decode(packed)).decode()
