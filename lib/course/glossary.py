"""Reads data/glossary.yml: the words and symbols of the course, and where each is explained."""

import functools
import json
import re
import unicodedata
from dataclasses import dataclass

import yaml
from docutils.nodes import make_id

from lib.course.tools.book import ROOT, pages

FILE = "data/glossary.yml"
FIELDS = {"name", "also", "where", "in", "symbols", "formula", "unit", "means"}
CHAPTER = re.compile(r"chapters/(\d\d)-.*\.ipynb")
MINUTES = re.compile(r" \(\d+ min\)$")


class GlossaryError(ValueError):
    """Raised where data/glossary.yml names something that is not there."""


@dataclass(frozen=True, slots=True)
class Place:
    """Describes the section of a chapter that explains an entry."""

    file: str  # relative to the root: "chapters/00-ranks.ipynb"
    heading: str  # as it stands there: "The problem (3 min)"
    text: str  # up to the next heading

    @property
    def number(self) -> str:
        """Return the chapter's number, "00"."""
        return CHAPTER.fullmatch(self.file)[1]

    @property
    def says(self) -> str:
        """Return its name: "chapter 0, The ring"."""
        return f"chapter {int(self.number)}, {MINUTES.sub('', self.heading)}"


@dataclass(frozen=True, slots=True)
class Entry:
    """Describes one word, or the symbols that chapters explain together."""

    name: str
    means: str
    places: tuple[Place, ...]
    chapters: tuple[str, ...]  # the numbers of those that use it in this meaning
    spellings: tuple[str, ...]  # of a word
    symbols: tuple[str, ...]  # as the tables of symbols write them
    formula: str
    unit: str

    @property
    def anchor(self) -> str:
        """Return its anchor on the glossary's page: "glossary-all-reduce", "glossary-beta"."""
        letters = unicodedata.normalize("NFKD", self.name)
        greek = ("GREEK" in unicodedata.name(letter, "") for letter in letters)
        words = (unicodedata.name(x).split()[-1] if y else x for x, y in zip(letters, greek))
        return make_id(f"glossary-{''.join(words)}")

    @property
    def plain(self) -> str:
        """Return what it means, without Markdown."""
        return self.means.replace("`", "")

    @property
    def more(self) -> str:
        """Return its formula and its unit as sentences, "" where it has none."""
        parts = {"Formula": self.formula, "Unit": self.unit}
        return " ".join(f"{name}: {text}." for name, text in parts.items() if text)

    def places_for(self, number: str) -> tuple[Place, ...]:
        """Return where a reader of that chapter finds it explained: there, if that is one place."""
        here = tuple(place for place in self.places if place.number == number)
        return here or self.places


def sections(file: str) -> dict[str, Place]:
    """Return the places of a chapter by the anchors of their headings, without the minutes.

    The top of the page, with its table of symbols, has the anchor "".
    """
    notebook = json.loads((ROOT / file).read_text(encoding="utf-8"))
    cells = [cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "markdown"]
    text = "\n\n".join("".join(cell) for cell in cells)
    text = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    parts = re.split(r"^#{1,6} +(.+)$", text, flags=re.M)[1:]
    places = {}
    for number, (heading, rest) in enumerate(zip(parts[::2], parts[1::2])):
        heading = re.sub(r"[`*]", "", heading).strip()
        anchor = make_id(MINUTES.sub("", heading)) if number else ""
        places[anchor] = Place(file, heading, rest)
    return places


@functools.cache
def entries() -> tuple[Entry, ...]:
    """Return all entries, symbols first, each in the order of the alphabet.

    Raises GlossaryError where the file names a field, a chapter or a heading that does not exist.
    """
    found = [CHAPTER.fullmatch(page["file"]) for page in pages()]
    places = {match[1]: sections(match[0]) for match in found if match}
    listed = yaml.safe_load((ROOT / FILE).read_text(encoding="utf-8"))
    made = [_entry(one, places) for one in listed]
    return tuple(sorted(made, key=lambda one: (not one.symbols, one.name.lower(), one.name)))


def _entry(one: dict, places: dict[str, dict[str, Place]]) -> Entry:
    name = one.get("name")
    if wrong := (set(one) - FIELDS) or ({"name", "means"} - set(one)):
        raise GlossaryError(f"{FILE}, {name}: the field `{wrong.pop()}` is unknown or missing.")
    if ("where" in one) == ("symbols" in one):
        raise GlossaryError(f"{FILE}, {name}: an entry has either `where` or `symbols`.")
    numbers = [f"{number:02}" for number in one.get("in", map(int, places))]
    symbols = one.get("symbols", ())
    where = [f"{number}#" for number in numbers] if symbols else [one["where"]]
    found = []
    for place in where:
        number, _, anchor = place.partition("#")
        if anchor not in places.get(number, {}):
            raise GlossaryError(f"{FILE}, {name}: there is no place {place!r}.")
        found.append(places[number][anchor])
    spellings = () if symbols else (name, *one.get("also", ()))
    return Entry(name, one["means"], tuple(found), tuple(numbers), spellings, tuple(symbols),
                 one.get("formula", ""), one.get("unit", ""))  # fmt: skip
