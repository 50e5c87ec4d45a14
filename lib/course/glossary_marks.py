"""Finds the words and symbols of the glossary in the text of a chapter.

One regular expression for each chapter says what may be marked. JavaScript reads it as Python does,
so the book and JupyterLab mark the same; each of its groups is one spelling.
"""

import functools
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path

from lib.course.glossary import Entry, entries

MOST = 12  # marks in a section
# A match touches none of these: it is a whole word, and "all-gather" and "ZeRO++" are one word.
LETTERS = "0-9A-Za-z_À-ÖØ-öø-ɏͰ-Ͽ²³¹⁰-₟"
BEFORE, AFTER = f"(?<![{LETTERS}'’-])", f"(?![{LETTERS}+-])"
ENGLISH = {"a", "A", "I"}  # symbols that are words as well


@dataclass(frozen=True, slots=True)
class Pattern:
    """Represents what may be marked: group i of the expression is the entry `anchors[i]`."""

    expression: str
    anchors: tuple[str, ...]


@dataclass(slots=True)
class Section:
    """Represents one section while it is marked: each entry once, and at most `MOST` of them."""

    seen: set[str] = field(default_factory=set)
    left: int = MOST

    def marks(self, text: str, pattern: Pattern) -> list[tuple[int, int, str]]:
        """Return (begin, end, anchor) of what is marked in a text, and remember it."""
        found = []
        for match in re.finditer(pattern.expression, text):
            anchor = pattern.anchors[match.lastindex - 1]
            if self.left and anchor not in self.seen:
                self.seen.add(anchor)
                self.left -= 1
                found.append((*match.span(), anchor))
        return found


@functools.cache
def prose(number: str) -> Pattern:
    """Return what is marked in the sentences of a chapter: words, and Greek symbols."""
    greek = [(symbol, one) for symbol, one in _symbols(number) if symbol[0] >= "Ͱ"]
    return _pattern(_words(number) + greek)


@functools.cache
def tables(number: str) -> Pattern:
    """Return what is marked in the tables of a chapter: words and symbols of any letters."""
    return _pattern(_words(number) + _symbols(number))


def explained(number: str) -> dict[str, list[str]]:
    """Return, by heading, the anchors of what a chapter explains there, which is not marked."""
    headings = {}
    for one in entries():
        for place in one.places:
            if place.number == number:
                headings.setdefault(place.heading, []).append(one.anchor)
    return headings


def _words(number: str) -> list[tuple[str, Entry]]:
    return [(spelling, one) for one in entries() if number in one.chapters
            for spelling in one.spellings]  # fmt: skip


def _symbols(number: str) -> list[tuple[str, Entry]]:
    """Return the symbols of a chapter that are short and no English words."""
    return [(symbol, one) for one in entries() if number in one.chapters
            for symbol in one.symbols if symbol not in ENGLISH and len(symbol) < 4]  # fmt: skip


def _pattern(pairs: list[tuple[str, Entry]]) -> Pattern:
    """Join spellings, the longest first."""
    pairs = sorted(pairs, key=lambda pair: (-len(pair[0]), pair[0]))
    groups = "|".join(f"({expression(text) if one.spellings else text})" for text, one in pairs)
    anchors = tuple(one.anchor for _, one in pairs)
    return Pattern(f"{BEFORE}(?:{groups or '(?!)'}){AFTER}", anchors)


def expression(text: str) -> str:
    """Return the expression of a word with its plural, its hyphens and a capital."""
    parts = [re.sub(r"[.+*?()]", r"\\\g<0>", part) for part in re.split("[-_ ]", text)]
    word = r"[-_\s]".join(parts).replace("'", "['’]")
    if text[0].islower():
        word = f"[{text[0].upper()}{text[0]}]{word[1:]}"
    return f"{word}(?:e?s)?"


@functools.cache
def definitions(number: str = "") -> dict:
    """Return what JupyterLab shows: all entries, and what is marked in chapter `number`.

    An entry has the places that explain it as [name, notebook, heading's anchor in JupyterLab].
    """
    told = {}
    for one in entries():
        places = [[place.says, Path(place.file).name, place.heading.replace(" ", "-")]
                  for place in one.places_for(number)]  # fmt: skip
        told[one.anchor] = {"name": one.name, "means": one.plain, "more": one.more,
                            "places": places}  # fmt: skip
    if not number:
        return {"entries": told}
    patterns = {"prose": asdict(prose(number)), "tables": asdict(tables(number))}
    return {"entries": told, "explained": explained(number), "most": MOST, **patterns}
