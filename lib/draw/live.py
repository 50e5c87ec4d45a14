"""The living side of a picture: one small widget that computes in the browser.

[Note: one text, stored once] A notebook stores a widget with all it needs to live again without a
kernel. Each picture's JavaScript is the shared hand (js/paint.js and its like) and the file of its
kind; both are stored as models of their own, and a picture only points at them. Ten timelines cost
a notebook the text of one.
"""

import base64
import json
import re
import zlib
from functools import cache
from pathlib import Path

import anywidget
import ipywidgets
import traitlets

from lib.draw import style

JS = Path(__file__).parent / "js"
HAND = ("paint", "axes", "dress", "controls", "frame")  # shared by every picture
SMALL = 8_000  # bytes of JSON that are stored as they are; more are packed

# Finds the texts, joins them, and lets them draw. A page imports the same text once.
BOOT = """
const made = (globalThis.manyRanksMade ??= new Map());
export default {
  async render({ model, el }) {
    const ids = model.get("code").map((id) => id.replace("IPY_MODEL_", ""));
    const parts = await Promise.all(ids.map((id) => model.widget_manager.get_model(id)));
    const text = parts.map((part) => part.get("text")).join("\\n");
    if (!made.has(text)) {
      const url = URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
      made.set(text, import(url).finally(() => URL.revokeObjectURL(url)));
    }
    return (await made.get(text)).mount(el, model);
  },
};
"""


def plain(text: str) -> str:
    """A module's text to be joined and stored: without imports of our files, notes, indentation.

    Joined, the files share one scope. Their notes are for who reads lib/draw/js, not for storage.
    """
    text = re.sub(r"^import \{[^}]*\} from \"\./[\w-]+\.js\";[^\n]*\n", "", text, flags=re.M)
    lines = (line.strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("//")) + "\n"


def sources(kind: str) -> list[Path]:
    """The files of one kind of picture: those it names in `// needs: a b`, then its own."""
    path = JS / f"{kind}.js"
    if not path.is_file():
        raise ValueError(f"No picture is called {kind!r}: there is no lib/draw/js/{kind}.js.")
    needs = re.search(r"^// needs: ([\w -]+)$", path.read_text("utf-8"), flags=re.M)
    return [*(JS / f"{name}.js" for name in (needs[1].split() if needs else ())), path]


@cache
def hand() -> str:
    """The text that every picture shares: the palette, then the files of HAND."""
    palette = json.dumps(style.palette(), ensure_ascii=False, separators=(",", ":"))
    return f"const style = {palette};\n" + _joined(JS / f"{name}.js" for name in HAND)


@cache
def kind_text(kind: str) -> str:
    """The text of one kind of picture."""
    return _joined(sources(kind))


def _joined(paths) -> str:
    return "".join(plain(path.read_text("utf-8")) for path in paths)


def module(kind: str) -> str:
    """The whole module of a kind of picture, as the browser imports it."""
    return hand() + "\n" + kind_text(kind)


def packed(data: dict) -> dict:
    """The data as they travel: small ones as they are, large ones as zlib in base64."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    if len(text) <= SMALL:
        return data
    return {"packed": base64.b64encode(zlib.compress(text.encode(), 9)).decode()}


class Code(ipywidgets.Widget):
    """A text that several pictures point at."""

    text = traitlets.Unicode().tag(sync=True)


@cache
def _code(kind: str) -> tuple[Code, Code]:
    return _shared(), Code(text=kind_text(kind))


@cache
def _shared() -> Code:
    return Code(text=hand())


class Live(anywidget.AnyWidget):
    """A living picture: its kind's code, its data, and the kernel's answer where one is asked."""

    _esm = BOOT
    code = traitlets.Tuple().tag(sync=True, **ipywidgets.widget_serialization)
    data = traitlets.Dict().tag(sync=True)
    asks = traitlets.Bool(False).tag(sync=True)  # whether there is anything to ask the kernel

    def __init__(self, kind: str, data: dict, ask=None):
        super().__init__(code=_code(kind), data=packed(data), asks=ask is not None)
        self._ask = ask
        self.on_msg(self._hear)

    def _hear(self, _, content, buffers) -> None:
        """Answer a greeting, or run what is asked and show what comes of it, or why not."""
        said = ""
        if content.get("ask") and self._ask:
            try:
                self.data = packed(self._ask(content["ask"], content["state"]))
            except Exception as wrong:
                said = f"{type(wrong).__name__}: {wrong}"
        self.send({"manyRanks": said})
