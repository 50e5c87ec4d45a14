"""The tables of data/sharded.yaml: what others published about sharded training, as printed."""

import functools
from decimal import ROUND_DOWN, ROUND_HALF_UP, Decimal
from pathlib import Path

import yaml

_FILE = Path(__file__).parents[3] / "data" / "sharded.yaml"


@functools.cache
def tables() -> dict:
    """Return the whole file; its keys are `conventions`, `models` and a source each."""
    return yaml.safe_load(_FILE.read_text(encoding="utf-8"))


def find(table: str, name: str) -> dict:
    """Return the entry of a table that has this name; capitals, spaces and dashes do not matter.

    Raises ValueError with the names that there are.
    """
    entries = tables()[table]
    for entry in entries:
        if _plain(name) in map(_plain, [entry["name"], *entry.get("also", [])]):
            return entry
    names = ", ".join(entry["name"] for entry in entries)
    raise ValueError(f"None of the {table} is called {name!r}. Choose one of {names}.")


def _plain(name: str) -> str:
    return "".join(letter for letter in str(name).lower() if letter.isalnum())


def printed_as(value: float, printed: float) -> str:
    """Tell how `value` was printed as `printed`: "rounded", "cut off" or "" if it was neither.

    The digits after the point are those that are printed: 1.88 has two, 120 none.
    """
    shown = Decimal(repr(printed)).normalize()
    digit = Decimal(1).scaleb(min(shown.as_tuple().exponent, 0))
    exact = Decimal(repr(float(value)))
    if exact.quantize(digit, ROUND_HALF_UP) == shown:
        return "rounded"
    return "cut off" if exact.quantize(digit, ROUND_DOWN) == shown else ""
