"""The living side of a picture: one small widget that computes in the browser.

[Note: one text, stored once] A notebook stores a widget with all it needs to live again without a
kernel. Each picture's JavaScript is the shared hand (the files of HAND) and the files of its kind;
both are stored as models of their own, and a picture only points at them. Ten timelines cost a
notebook the text of one. It is stored packed, which makes it a third as long.
"""

import json
from functools import cache

import anywidget
import ipywidgets
import traitlets

from lib.draw.parts import javascript

SMALL = 8_000  # bytes of JSON that may be stored as they are; more are packed

# Finds the texts, joins them, and lets them draw. A page imports the same text once.
BOOT = """
const made = (globalThis.manyRanksMade ??= new Map());
async function textOf(part) {
  const bytes = Uint8Array.from(atob(part.get("packed")), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return await new Response(stream).text();
}
export default {
  async render({ model, el }) {
    const ids = model.get("code").map((id) => id.replace("IPY_MODEL_", ""));
    const parts = await Promise.all(ids.map((id) => model.widget_manager.get_model(id)));
    const text = (await Promise.all(parts.map(textOf))).join("\\n");
    if (!made.has(text)) {
      const url = URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
      made.set(text, import(url).finally(() => URL.revokeObjectURL(url)));
    }
    const { mount, picture, madeBy } = await made.get(text);
    return mount(picture, el, model, madeBy);
  },
};
"""


def packed(data: dict) -> dict:
    """Pack the data as they travel: small ones as they are, other ones as zlib in base64.

    A notebook is stored with the keys of all its dicts sorted. So data in which the order of names
    says something (the lines of curves have their colours by it) travel as a text.
    """
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    if len(text) <= SMALL and all(map(_is_sorted, data.values())):
        return data
    return {"packed": javascript.deflated(text)}


def _is_sorted(value) -> bool:
    """Whether sorting the keys of every dict in it would leave it as it is."""
    if isinstance(value, dict):
        return list(value) == sorted(value) and all(map(_is_sorted, value.values()))
    return not isinstance(value, list | tuple) or all(map(_is_sorted, value))


class Code(ipywidgets.Widget):
    """A text that several pictures point at."""

    packed = traitlets.Unicode().tag(sync=True)  # as javascript.deflated packs it


@cache
def _code(kind: str) -> tuple[Code, Code]:
    return _shared(), Code(packed=javascript.deflated(javascript.kind_text(kind)))


@cache
def _shared() -> Code:
    return Code(packed=javascript.deflated(javascript.hand()))


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
        refusal = ""
        if content.get("ask") and self._ask:
            try:
                self.data = packed(self._ask(content["ask"], content["state"]))
            except KeyboardInterrupt:
                refusal = "The run was interrupted."
            except Exception as wrong:
                refusal = f"{type(wrong).__name__}: {wrong}"
        self.send({"manyRanks": refusal})
