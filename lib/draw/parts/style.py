"""One palette, one type size: the same operation has the same colour in every picture.

Each family (what is computed, what is communicated) falls in even steps of lightness, so that its
members differ in grey; their hues stay apart for the three kinds of colour blindness. Both are
tested. Whatever waits is hatched, what is idle is paper.
"""

from typing import NamedTuple

FONT = "DejaVu Sans"  # comes with matplotlib: the same letters on every machine
SIZE = 13  # px, the one type size
WIDTH = 640  # px, of every picture that can use it
LINE = 17  # px from one line of text to the next
LETTER = 7.6  # px, the width of a letter on average


class Shade(NamedTuple):
    """One colour, on light paper and on dark."""

    light: str
    dark: str


PAPER = Shade("#ffffff", "#14171a")
INK = Shade("#1b1f23", "#e8eaed")
FAINT = Shade("#6b7178", "#9aa1a9")  # lines of the axes, and waiting
GRID = Shade("#d9dce0", "#3a4047")

COMPUTE = {
    "step": Shade("#4b2c8a", "#845fc4"),
    "forward": Shade("#1f5fa8", "#5a89d8"),
    "backward for weights": Shade("#218e7c", "#4cb19d"),
    "backward for input": Shade("#62a2e7", "#82bafe"),
    "backward": Shade("#8dc4f1", "#9fd3fe"),
    "compute": Shade("#dde0e5", "#e1e4e9"),
}
COMM = {
    "message": Shade("#7b2050", "#b55783"),
    "reduce_scatter": Shade("#745b00", "#a4862e"),
    "all_reduce": Shade("#d05c02", "#fb7d2a"),
    "all_to_all": Shade("#d481af", "#f09ac9"),
    "all_gather": Shade("#f4ab1a", "#febe56"),
    "broadcast": Shade("#f2e271", "#f6e676"),
}
# What memory holds, in the order in which it is stacked, from the ground up.
MEMORY = {
    "parameters": Shade("#2e4372", "#4a67ab"),
    "gradients": Shade("#7a4a8c", "#a077b4"),
    "optimizer": Shade("#b0655c", "#c98a80"),
    "activations": Shade("#5fae85", "#7fc29b"),
    "buffers": Shade("#dcb97a", "#e3c68d"),
    "other": Shade("#dfe2e6", "#e6e8ec"),
}
# Operations that share a colour: short letters of schedules, the two ends of a message, relatives.
_SAME = {
    "F": "forward",
    "B": "backward",
    "I": "backward for input",
    "W": "backward for weights",
    "optimizer": "step",
    "send": "message",
    "recv": "message",
    "to_host": "message",
    "to_device": "message",
    "scatter": "broadcast",
    "gather": "all_gather",
    "reduce": "all_reduce",
    "barrier": "message",
}
# Whose piece it is, in pictures of collectives: four hues from the families above, by rank.
_PIECES = (COMPUTE["forward"], COMM["all_reduce"], COMPUTE["backward for weights"],
           COMM["all_gather"], COMM["message"], COMPUTE["backward"], COMM["all_to_all"],
           COMM["reduce_scatter"])  # fmt: skip


def family(op: str) -> str:
    """Return the name whose colour an operation has: "send" is a message, "F" is forward."""
    op = _SAME.get(op, op)
    return op if op in COMPUTE or op in COMM else "compute"


def colour(op: str) -> Shade:
    """Return the colour of an operation; one that has none of its own is drawn as plain compute."""
    name = family(op)
    return COMPUTE.get(name) or COMM[name]


def memory(kind: str) -> Shade:
    """Return the colour of a kind of memory; one that is not known is drawn as other."""
    return MEMORY.get(kind, MEMORY["other"])


def piece(rank: int) -> Shade:
    """Return the colour of what came from a rank."""
    return _PIECES[rank % len(_PIECES)]


def on(shade: Shade) -> Shade:
    """Return the colour of letters on a shade: whichever of black and white stands out more."""
    return Shade(*("#000000" if _light(c) > 0.18 else "#ffffff" for c in shade))


def _light(colour: str) -> float:
    """Relative luminance of #rrggbb, as WCAG defines it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), parts))


def amount(number: float, unit: str) -> str:
    """Write a number in three digits with its prefix: amount(2.5e6, "B") is "2.5 MB"."""
    if not unit:
        return f"{number:,g}"
    if not number:
        return f"0 {unit}"
    steps = {1e12: "T", 1e9: "G", 1e6: "M", 1e3: "k", 1: "", 1e-3: "m", 1e-6: "µ", 1e-9: "n"}
    scale = next((s for s in steps if abs(number) >= 0.9995 * s), 1e-9)
    return f"{number / scale:.3g} {steps[scale]}{unit}"


def palette() -> dict:
    """Return all of this file that the browser's side of a picture needs, as JSON can hold it."""
    return {
        "paper": PAPER, "ink": INK, "faint": FAINT, "grid": GRID, "compute": COMPUTE, "comm": COMM,
        "memory": MEMORY,
        "same": _SAME, "pieces": _PIECES, "size": SIZE, "line": LINE, "letter": LETTER,
        "width": WIDTH, "font": f"system-ui, '{FONT}', sans-serif",
    }  # fmt: skip
