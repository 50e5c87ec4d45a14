"""The reader's copies of the chapters: made, kept, offered anew, and never overwritten."""

import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from jupyter_server.services.contents.largefilemanager import LargeFileManager
from nbformat.sign import NotebookNotary

from lib.course.jupyter import landing
from lib.course.tools import book, copies, lab, lab_server, run, widgets

ROOT = Path(__file__).parents[3]


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A course of two chapters whose copies are not made yet; it has keys of its own to sign."""
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    (tmp_path / "course/chapters/images").mkdir(parents=True)
    (tmp_path / "course/chapters/images/a.png").write_bytes(b"a")
    for number in (0, 1):
        store(tmp_path / f"course/chapters/0{number}-a.ipynb", f"print({number})")
    about = {"minutes": 5, "ranks": 2, "needs": "n", "gives": "g"}
    entries = [{"file": f"chapters/0{n}-a.ipynb", "title": "A", "meta": about} for n in (0, 1)]
    text = json.dumps({"root": "README", "subtrees": [{"entries": entries}]})
    (tmp_path / "course/book.yml").write_text(text)
    return tmp_path / "course"


def store(path, source):
    """A notebook of one cell, as `make refresh` or JupyterLab would write it."""
    cell = nbformat.v4.new_code_cell(source, id="one")
    made = nbformat.v4.new_notebook(cells=[cell], metadata={"kernelspec": dict(run.KERNEL)})
    nbformat.write(made, path)


def type_into(path, source):
    """What a reader does to a copy in JupyterLab."""
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[0].source = source
    nbformat.write(notebook, path)


def source(path):
    return nbformat.read(path, as_version=4).cells[0].source


def test_the_first_day_every_chapter_has_a_copy_that_is_trusted(course):
    """Case 30: `make lab` opened the stored chapter itself."""
    first, lines = lab.opened(course=course)
    assert first == "", "the page of the course opens first"
    assert lines == [
        "Your own copies of the chapters are in my-chapters: what you do there is kept."
    ]
    folder = course / copies.FOLDER
    assert sorted(path.name for path in folder.iterdir()) == ["00-a.ipynb", "01-a.ipynb", "images"]
    assert (folder / "images/a.png").read_bytes() == b"a"
    notary, copy = NotebookNotary(), nbformat.read(folder / "00-a.ipynb", as_version=4)
    assert notary.check_signature(copy), "its pictures live before anything is run"
    notary.store.close()
    stored = nbformat.read(course / "chapters/00-a.ipynb", as_version=4)
    assert copy.cells == stored.cells


def test_the_second_day_the_copy_is_as_the_reader_left_it(course):
    """Case 30: what a reader did is kept from one day to the next."""
    lab.opened(course=course)
    mine = course / "my-chapters/00-a.ipynb"
    type_into(mine, "mine")
    before = mine.read_bytes()
    os.remove(course / "my-chapters/01-a.ipynb")  # a copy that was deleted is made anew
    assert lab.opened(course=course) == ("", [])
    assert mine.read_bytes() == before
    assert source(course / "my-chapters/01-a.ipynb") == "print(1)"


def test_a_revised_chapter_is_offered_and_renews_what_nobody_changed(course):
    """Case 30: after `git pull` a changed copy stays, and a sentence says what to do."""
    lab.opened(course=course)
    folder = course / "my-chapters"
    type_into(folder / "00-a.ipynb", "mine")
    for number in (0, 1):
        store(course / f"chapters/0{number}-a.ipynb", "revised")
    (told,) = lab.opened(course=course)[1]
    assert told.startswith(
        "Chapter 0 has been revised since your copy was made. Your copy is as you"
    )
    assert "`make lab AGAIN=00`" in told
    assert (source(folder / "00-a.ipynb"), source(folder / "01-a.ipynb")) == ("mine", "revised")
    assert lab.opened(course=course)[1] == [told], "it is said until the reader decides"
    first, lines = lab.opened("0", course)
    assert first == "my-chapters/00-a.ipynb"
    assert lines[0] == "Chapter 0 starts again, as it is stored." and len(lines) == 2
    (kept,) = folder.glob("00-a-kept-*.ipynb")
    assert lines[1] == f"What you had is kept as my-chapters/{kept.name}."
    assert (source(folder / "00-a.ipynb"), source(kept)) == ("revised", "mine")
    assert lab.opened(course=course)[1] == []


def test_starting_again_never_overwrites_what_was_kept(course):
    """Case 30: three times on one day give three files; with nothing changed there is none."""
    lab.opened(course=course)
    folder = course / "my-chapters"
    for word in ("one", "two", "three"):
        type_into(folder / "01-a.ipynb", word)
        assert lab.opened("01", course)[0] == "my-chapters/01-a.ipynb"
    assert sorted(map(source, folder.glob("*-kept-*"))) == ["one", "three", "two"]
    assert lab.opened("01", course)[1] == ["Chapter 1 starts again, as it is stored."]
    assert len(list(folder.glob("*-kept-*"))) == 3
    with pytest.raises(book.BookError, match="There is no chapter '7'"):
        lab.opened("7", course)


@pytest.mark.parametrize(
    "text", ["", "half of a noteb", "{}", "[]", '{"metadata": [], "cells": 1}']
)
def test_a_copy_that_cannot_be_read_stays_and_is_told(course, text):
    """Case 30: a file that broke is the reader's too."""
    lab.opened(course=course)
    mine = course / "my-chapters/00-a.ipynb"
    mine.write_text(text)
    (told,) = lab.opened(course=course)[1]
    assert told.startswith(
        "my-chapters/00-a.ipynb is no notebook that can be read; `make lab AGAIN=00`"
    )
    assert mine.read_text() == text
    assert len(lab.opened("00", course)[1]) == 2 and source(mine) == "print(0)"


def test_a_stored_chapter_that_cannot_be_read_is_told(course):
    """Case 30: the marks of a merge, for example."""
    (course / "chapters/01-a.ipynb").write_text("<<<<<<< HEAD")
    first, lines = lab.opened(course=course)
    assert first == "" and len(lines) == 2
    assert lines[1].startswith("chapters/01-a.ipynb is no notebook that can be read: `git status`")


def test_a_course_that_cannot_be_written_opens_as_it_is_stored(course, monkeypatch):
    """Case 30: a reader of somebody else's checkout is told so, and can read."""

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    first, (told,) = lab.opened(course=course)
    assert first == "chapters/00-a.ipynb"
    assert "my-chapters cannot be written (Permission denied)." in told
    assert lab.greeting({"port": 1}, first, display=False).split("\n")[1] == "Chapter 0 is at"


def test_a_chapter_that_starts_again_opens_at_its_beginning(course):
    lab.opened(course=course)
    copy = copies.of(course / "chapters/01-a.ipynb")
    landing.note(copy, "one")
    assert lab.opened("1", course)[0] == "my-chapters/01-a.ipynb"
    assert landing.place(copy) == ""


def test_a_copy_runs_as_the_chapter_does(course):
    """Case 30: `import lib` and the paths beside a chapter are the same in a copy."""
    stored = course / "chapters/00-a.ipynb"
    names = ("images/a.png", "../book.yml", "01-a.ipynb")
    code = f"from pathlib import Path\nimport lib\n[Path(name).exists() for name in {names}]"
    store(stored, code)
    copies.prepare(course)
    outputs = [run.execute(path).cells[0].outputs for path in (stored, copies.of(stored).path)]
    assert outputs[0] == outputs[1]
    assert outputs[0][0].data["text/plain"] == "[True, True, True]"


def test_git_does_not_see_the_copies():
    """Case 30: `git status` stays clean when a reader works."""
    call = [
        "git",
        "-c",
        "safe.directory=*",
        "check-ignore",
        "--no-index",
        f"{copies.FOLDER}/00.ipynb",
    ]
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, timeout=60)
    if done.returncode == 128:
        pytest.skip("this tree is no git checkout")
    assert done.stdout.strip() == f"{copies.FOLDER}/00.ipynb"


def test_only_chapters_of_a_course_have_copies(course):
    copies.prepare(course)
    inside = course / "my-chapters/00-a.ipynb"
    assert copies.of(inside) == copies.of(course / "chapters/00-a.ipynb")
    for other in ("my-chapters/00-a-kept-2026-11-22.ipynb", "elsewhere/00-a.ipynb", "00-a.ipynb"):
        assert copies.of(course / other) is None


class Contents:
    def __init__(self, root):
        self.root_dir = str(root)


def test_a_browser_s_numbers_are_given_back_as_the_file_has_them(tmp_path):
    """Case 30: browsers write 1.0 as 1, so that a save changed lines that nobody had changed."""

    def content(**states):
        return {"cells": [], "metadata": {"widgets": {widgets.STATE: {"state": states}}}}

    stored = content(a={"x": [1.0, 2.5, 1e-9, True]}, b={"x": 1.0}, c={"x": True})
    (tmp_path / "a.ipynb").write_text(json.dumps(stored))
    new = content(a={"x": [1, 2.5, 1e-9, True]}, b={"x": 2}, c={"x": 1}, d={"x": 1})
    lab_server.as_stored({"content": new}, "/a.ipynb", Contents(tmp_path))
    states = new["metadata"]["widgets"][widgets.STATE]["state"]
    assert repr(states["a"]) == "{'x': [1.0, 2.5, 1e-09, True]}"
    assert [repr(states[name]["x"]) for name in "bcd"] == ["2", "1", "1"]
    lab_server.as_stored({"content": "a text"}, "a.ipynb", Contents(tmp_path))
    lab_server.as_stored({"content": new}, "none.ipynb", Contents(tmp_path))


def test_files_that_the_course_keeps_for_itself_are_in_no_list(tmp_path):
    manager = LargeFileManager(root_dir=str(tmp_path))
    lab_server.leave_out(manager)
    for name in ("last.json", "progress.json", "notes.json"):
        (tmp_path / name).write_text("{}")
    assert [file["name"] for file in manager.get("")["content"]] == ["notes.json"]
    assert manager.get("progress.json")["content"] == "{}"


def test_make_lab_hands_on_the_chapter_to_start_again(tmp_path):
    """Case 30: `make lab AGAIN=04` reaches the command, with the user's words after it."""
    makefile = ROOT / "Makefile"
    call = ["make", "-f", str(makefile), "-n", "lab", "AGAIN=04", "ARGS=--port 9"]
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert "-m lib.course.tools.lab --again 04 --port 9" in done.stdout
    words = [sys.executable, "-m", "lib.course.tools.lab", "--again", "nowhere"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stderr.startswith("There is no chapter 'nowhere'")
