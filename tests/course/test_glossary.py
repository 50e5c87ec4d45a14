"""The glossary: every entry is whole, and it covers what the chapters' tables of symbols have."""

import re

import pytest
import yaml

from lib.course import glossary
from lib.course.glossary import GlossaryError, entries, sections
from lib.course.glossary_marks import expression
from lib.course.tools.book import ROOT, chapters

every_chapter = pytest.mark.parametrize("chapter", chapters(), ids=lambda chapter: chapter.name)
every_entry = pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.anchor)
TALK = re.compile(r"\b(?:simply|just|magic|obviously|basically|wire|paper|chunk|told)\b", re.I)


def test_names_and_anchors_are_unique():
    for of in ("name", "anchor"):
        values = [getattr(entry, of) for entry in entries()]
        assert len(values) > 90 and len(set(values)) == len(values)


@every_entry
def test_a_definition_is_one_or_two_plain_sentences(entry):
    assert 12 <= len(entry.means.split()) <= 45, f"{len(entry.means.split())} words"
    assert re.fullmatch(r"\S.*[^.]\.", entry.means)
    assert 1 <= len(re.findall(r"[.:;]?[^.]\.(?:\s|$)", entry.means)) <= 2
    first = entry.means[0]
    assert first.isupper() or first == entry.name[0] or not first.isascii() or first.isdigit()
    assert not TALK.search(entry.means)


@every_entry
def test_a_word_stands_in_the_section_that_explains_it(entry):
    said = "|".join(map(expression, entry.spellings))
    for place in entry.places:
        assert not entry.chapters or place.number in entry.chapters
        if entry.spellings:
            assert re.search(said, place.text), f"{place.says} does not say it"


def listed_symbols(chapter):
    """What the first column of the chapter's table of symbols has, one by one."""
    table = re.search(r"^\| *(?:symbol|letter|word) *\|.*\n\|[-|]+\n((?:\|.*\n?)+)",
                      sections(chapter.file)[""].text, re.M)  # fmt: skip
    cells = [line.split("|")[1] for line in table[1].splitlines()]
    parts = [re.sub(r"\(.*?\)", "", cell) for cell in cells]
    return [part.strip() for cell in parts for part in re.split("[,;]", cell) if part.strip()]


@every_chapter
def test_the_table_of_symbols_is_covered(chapter):
    mine = [entry for entry in entries() if chapter.number in entry.chapters]
    words = {word for entry in mine for word in (*entry.spellings, entry.name.split(" (")[0])}
    symbols = {symbol for entry in mine for symbol in entry.symbols}
    listed = listed_symbols(chapter)
    assert len(listed) >= 6
    assert [part for part in listed if part not in words | symbols] == []
    actions = {"`2F0`", "`2F5`"}  # one example in each chapter on pipelines
    assert symbols - set(listed) - actions == set(), "the chapter's table has no such symbol"


@every_chapter
def test_a_letter_has_one_meaning_in_a_chapter(chapter):
    mine = [symbol for entry in entries() if chapter.number in entry.chapters
            for symbol in entry.symbols]  # fmt: skip
    assert len(mine) > 5 and {symbol for symbol in mine if mine.count(symbol) > 1} == set()


def test_headings_are_those_of_the_page_without_minutes():
    places = sections(chapters()[1].file)
    assert places[""].heading == "DP versus DDP"
    assert places["send-less-often-no-sync"].heading == "Send less often: no_sync (4 min)"
    assert places["the-problem"].says == "chapter 1, The problem"
    for chapter in chapters():
        assert "train-py-start-it-with" not in " ".join(sections(chapter.file)), "that is a comment"


def test_anchors_are_plain():
    anchors = {entry.name: entry.anchor for entry in entries()}
    assert anchors["all-reduce"] == "glossary-all-reduce"
    assert anchors["γ, ν"] == "glossary-gamma-nu"


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"where": "00#nowhere"}, "there is no place '00#nowhere'"),
        ({"in": [77], "where": None, "symbols": ["x"]}, "there is no place '77#'"),
        ({"means": None}, "the field `means` is unknown or missing"),
        ({"where": None}, "either `where` or `symbols`"),
        ({"colour": "red"}, "the field `colour` is unknown or missing"),
    ],
)
def test_what_is_not_there_is_refused(tmp_path, monkeypatch, changed, sentence):
    entry = {"name": "x", "means": "It is.", "where": "00#the-ring"} | changed
    entry = {field: value for field, value in entry.items() if value is not None}
    (tmp_path / "glossary.yml").write_text(yaml.safe_dump([entry]))
    monkeypatch.setattr(glossary, "FILE", str(tmp_path / "glossary.yml"))
    with pytest.raises(GlossaryError, match=re.escape(sentence)):
        entries.__wrapped__()


def test_the_page_is_the_last_of_the_book():
    book = yaml.safe_load((ROOT / "book.yml").read_text())
    assert book["subtrees"][-1]["entries"][-1]["file"] == glossary.FILE
