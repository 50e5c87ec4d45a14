"""Functions of the JavaScript of a picture, called in the V8 that lays out stills."""

import json
import struct

from lib.draw.parts import javascript, layout

_BITS = """const bytes = new DataView(new ArrayBuffer(8));
const hex = (x) => (bytes.setFloat64(0, x), [0, 4].map((at) =>
  bytes.getUint32(at).toString(16).padStart(8, "0")).join(""));
const float = (h) => ([0, 8].forEach((at) =>
  bytes.setUint32(at / 2, parseInt(h.slice(at, at + 8), 16))), bytes.getFloat64(0));
"""


def called(kind: str, expression: str, given=None, *, other: tuple[str, str] = ("", "")):
    """What an expression gives in the scope of a picture's files, where `given` is known too.

    Numbers that JSON cannot hold travel as 16 digits: `hex(x)` and `float(h)` there, and
    `hex_of(x)` and `float_of(h)` here. With `other`, (words, new words), the files are changed
    first: for a test that has to fail.
    """
    text = javascript.module(kind).replace("export ", "")
    assert other[0] in text
    text = text.replace(*other) if other[0] else text
    code = f"const given = {json.dumps(given)}; return JSON.stringify({expression});"
    return json.loads(layout._v8().eval(f"(() => {{\n{text}\n{_BITS}\n{code}\n}})()"))


def hex_of(number: float) -> str:
    """The 64 bits of a number as 16 digits."""
    return struct.pack(">d", number).hex()


def float_of(digits: str) -> float:
    """The number of 16 digits."""
    return struct.unpack(">d", bytes.fromhex(digits))[0]
