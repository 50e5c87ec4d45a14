"""Where the reader's own files are, in a clone of one's own and in one that a class shares."""

import os
from pathlib import Path

import pytest

from lib.predict import readers_folder


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A clone that can be written; nothing in the environment names another folder."""
    monkeypatch.delenv("RANKS_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    made = tmp_path / "clone"
    for name in ("chapters", "data", "lib"):
        (made / name).mkdir(parents=True)
    for name in ("README.md", "book.yml"):
        (made / name).write_text(name)
    monkeypatch.setattr(readers_folder, "CLONE", made)
    return made


def test_what_can_be_written_keeps_the_reader_s_files(clone):
    assert readers_folder.course() == clone
    assert readers_folder.folder() == clone / "my-chapters"


@pytest.mark.parametrize("has_own", [False, True])
def test_a_clone_that_cannot_be_written_leaves_them_at_home(clone, monkeypatch, has_own):
    """os.access is told what it says of a read-only clone, since root may write everywhere."""
    if has_own:  # the owner's
        (clone / "my-chapters").mkdir()
    refused = clone / "my-chapters" if has_own else clone
    monkeypatch.setattr(os, "access", lambda path, how: path != refused)
    assert readers_folder.course() == Path.home() / "many-ranks"


def test_the_environment_may_name_another_folder(clone, monkeypatch):
    monkeypatch.setenv("RANKS_HOME", "~/mine")
    assert readers_folder.folder() == Path.home() / "mine/my-chapters"


def test_a_folder_is_linked_to_the_clone_and_follows_it(clone, tmp_path, monkeypatch):
    home = tmp_path / "deep/home"
    readers_folder.link(home)
    (home / "my-chapters").mkdir()
    assert sorted(path.name for path in home.iterdir()) == sorted(
        [*readers_folder.LINKED, "my-chapters"]
    )
    assert (home / "my-chapters/../book.yml").read_text() == "book.yml"
    moved = clone.rename(tmp_path / "moved")
    monkeypatch.setattr(readers_folder, "CLONE", moved)
    readers_folder.link(home)
    assert (home / "book.yml").resolve() == moved / "book.yml"


def test_a_folder_of_other_things_is_left_alone(clone, tmp_path):
    (tmp_path / "home/data").mkdir(parents=True)
    with pytest.raises(FileExistsError, match="data is there already, and no link"):
        readers_folder.link(tmp_path / "home")
