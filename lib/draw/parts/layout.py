"""Where everything of a still lies: the JavaScript of its living twin is asked, in an embedded V8.

A kind's `layout(state, width)` is pure, so what it gives for the first state is the still. V8 comes
with the package mini-racer, is started when the first still is drawn, and has threads of its own.
"""

import ctypes
import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from functools import cache
from threading import Lock

from lib.draw.parts import javascript
from lib.draw.parts.marks import Mark, Still
from lib.draw.parts.style import Shade

# Lays out the first state of a picture; where it is wanted, what marks tell becomes text.
_STILL = """globalThis.pictures = {};
globalThis.still = (kind, data, width, words) => {
  const given = JSON.parse(data), shape = pictures[kind](given);
  const laid = shape.layout(shape.state, width), { marks, height, width: used = width } = laid;
  const { heading = given.heading, caption = given.caption } = laid;
  const about = (mark) => (typeof mark.about === "function" ? mark.about() : mark.about);
  const seen = marks.filter((mark) => !mark.isKey);
  const told = seen.map((mark) => ({ ...mark, about: words ? about(mark) : "" }));
  return JSON.stringify([told, used, height, heading || "", caption || ""]);
}; 0"""


def still(kind: str, data: dict, width: float, *, words: bool) -> Still:
    """Lay out a picture of that kind on a page of `width` pixels, as it is before it is touched.

    `words` are what its marks tell: pixels do without. Raises RuntimeError in a process that was
    forked from one with a V8.
    """
    as_text = json.dumps(json.dumps(data, allow_nan=False))
    with _lock:
        _know(kind)
        text = _v8().eval(f"still({json.dumps(kind)}, {as_text}, {width}, {json.dumps(words)})")
    marks, used, height, heading, caption = json.loads(text)
    return Still([_mark(one) for one in marks], round(used), round(height), heading, caption)


def _mark(told: dict) -> Mark:
    """A mark as JavaScript has it; what only moves or answers in a browser is left out."""
    kept = {name: told[name] for name in _FIELDS if told.get(name) is not None}
    for name in ("fill", "edge"):
        if name in kept:
            kept[name] = Shade(*kept[name])
    if "points" in kept:
        kept["points"] = tuple(map(tuple, kept["points"]))
    return Mark(**kept)


_FIELDS = [field.name for field in fields(Mark)]

# --- V8, once in a process

_lock = Lock()
_forked = False  # whether this process is the copy of one that had a V8


@cache
def _v8():
    """The V8 of this process, until its end.

    It is made in a thread beside: in the notebook's it would wait for the notebook's event loop. It
    is never freed: mini-racer 0.14.1 crashes when it frees a V8 that has worked, and hangs when
    Python, at its end, does it.
    """
    if _forked:
        raise RuntimeError(
            "This process was forked from one that had drawn a picture, and what lays pictures "
            "out does not live on in such a copy: draw the picture in the process that forked, or "
            'start this one with multiprocessing\'s "spawn".'
        )
    from py_mini_racer import MiniRacer  # 75 MB that only stills need

    with ThreadPoolExecutor(1) as beside:
        made = beside.submit(MiniRacer).result()
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(made))
    made.eval(_STILL)
    os.register_at_fork(after_in_child=_forget)
    return made


@cache
def _know(kind: str) -> None:
    """Load the files of a kind, in a scope of their own: one V8 serves all kinds."""
    text = re.sub(r"^export ", "", javascript.module(kind), flags=re.M)
    _v8().eval(f"pictures[{json.dumps(kind)}] = (() => {{\n{text}\nreturn picture;\n}})(); 0")


def _forget() -> None:
    """In a copy of this process: the threads of its V8 stayed behind, and maybe held the lock."""
    global _forked, _lock
    _forked, _lock = True, Lock()
    _v8.cache_clear()
    _know.cache_clear()
