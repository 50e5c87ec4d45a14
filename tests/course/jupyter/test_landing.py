"""What the page of the course knows: chapters, progress, and where the reader stopped."""

import json
import os

import nbformat
import pytest

from lib.course.jupyter import landing
from lib.course.tools import book, copies

ABOUT = {"minutes": 5, "ranks": 2, "needs": "n", "gives": "g"}


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A course of three chapters with the reader's copies."""
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    folder = tmp_path / "course"
    (folder / "chapters").mkdir(parents=True)
    entries = []
    for number, title in enumerate(("Ranks", "DDP", "FSDP")):
        file = f"chapters/0{number}-a.ipynb"
        cell = nbformat.v4.new_code_cell(title, id="one")
        nbformat.write(nbformat.v4.new_notebook(cells=[cell]), folder / file)
        entries.append({"file": file, "title": title, "meta": ABOUT})
    text = {"root": "README", "meta": {"title": "A book"}, "subtrees": [{"entries": entries}]}
    (folder / "book.yml").write_text(json.dumps(text))
    copies.prepare(folder)
    return folder


@pytest.fixture(autouse=True)
def progress(monkeypatch):
    """What is solved, as another file remembers it."""
    names = {"01-a": ["write", "predict", "repair"]}
    monkeypatch.setattr(landing.progress, "exercises", lambda: names)
    monkeypatch.setattr(landing.progress, "solved", lambda: {"01-a": ["predict"]})


def copy(course, number):
    return copies.of(course / f"chapters/0{number}-a.ipynb")


def test_every_chapter_is_shown_with_what_is_solved(course):
    shown = landing.overview(course)
    assert (shown["title"], shown["last"]) == ("A book", "")
    assert [chapter["title"] for chapter in shown["chapters"]] == ["Ranks", "DDP", "FSDP"]
    assert shown["chapters"][1] == {
        "name": "01-a",
        "number": 1,
        "title": "DDP",
        "minutes": 5,
        "needs": "n",
        "gives": "g",
        "path": "my-chapters/01-a.ipynb",
        "changed": False,
        "opened": None,
        "cell": None,
        "exercises": ["write", "predict", "repair"],
        "solved": ["predict"],
    }
    assert shown["chapters"][0]["exercises"] == shown["chapters"][0]["solved"] == []


def test_a_chapter_whose_copy_is_not_there_is_opened_as_it_is_stored(course):
    os.remove(copy(course, 2).path)
    assert landing.overview(course)["chapters"][2]["path"] == "chapters/02-a.ipynb"
    assert landing.neighbours(course, "01-a")["next"]["path"] == "chapters/02-a.ipynb"


def test_what_is_no_course_is_refused(course, tmp_path):
    with pytest.raises(OSError):
        landing.overview(tmp_path)
    os.remove(course / "chapters/01-a.ipynb")
    with pytest.raises(book.BookError, match="there is no such file"):
        landing.overview(course)


def test_the_last_chapter_is_the_one_that_the_reader_was_in(course, monkeypatch):
    for now, number, cell in ((100, 2, "one"), (200, 1, "two"), (150, 0, "three")):
        monkeypatch.setattr(landing.time, "time", lambda now=now: now + 0.5)
        landing.note(copy(course, number), cell)
    shown = landing.overview(course)
    assert shown["last"] == "01-a"
    found = [(chapter["opened"], chapter["cell"]) for chapter in shown["chapters"]]
    assert found == [(150, "three"), (200, "two"), (100, "one")]
    assert landing.place(copy(course, 2)) == "one"
    landing.note(copy(course, 2), "")
    assert landing.place(copy(course, 2)) == ""


def test_without_a_note_the_last_chapter_is_the_copy_that_was_changed_last(course):
    """Whoever began before places were remembered goes on where something was done."""
    for number, when in ((0, 3000), (1, 1000), (2, 2000)):
        path = copy(course, number).path
        if number:
            notebook = nbformat.read(path, as_version=4)
            notebook.cells[0].source = "mine"
            nbformat.write(notebook, path)
        os.utime(path, (when, when))
    shown = landing.overview(course)
    assert shown["last"] == "02-a"
    assert [chapter["changed"] for chapter in shown["chapters"]] == [False, True, True]


@pytest.mark.parametrize("text", ["", "[]", '{"01-a": 3}', '{"01-a": {"at": "x", "cell": 1}}'])
def test_a_note_that_cannot_be_read_is_a_new_beginning(course, text):
    (course / "my-chapters" / landing.FILE).write_text(text)
    assert landing.place(copy(course, 1)) == "" and landing.overview(course)["last"] == ""
    landing.note(copy(course, 1), "one")
    assert landing.place(copy(course, 1)) == "one"


def test_a_chapter_leads_to_those_beside_it_and_to_no_other(course):
    ways = [landing.neighbours(course, f"0{number}-a") for number in range(3)]
    assert [list(way) for way in ways] == [["next"], ["previous", "next"], ["previous"]]
    assert ways[1]["next"] == {"title": "Chapter 2: FSDP", "path": "my-chapters/02-a.ipynb"}
    assert ways[1]["previous"] == {"title": "Chapter 0: Ranks", "path": "my-chapters/00-a.ipynb"}
    assert landing.neighbours(course, "07-a") == landing.neighbours(course.parent, "00-a") == {}
