"""The reader's own copies of the chapters, which are made once and never overwritten.

The metadata of a copy has a digest of the cells that it was made from. From it follows whether the
reader has changed the copy, and whether the stored chapter has changed since.
"""

import hashlib
import json
import os
import shutil
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path

from lib.predict import readers_folder

STORED = "chapters"
FOLDER = readers_folder.FOLDER  # side by side: `../data` means the same in both
MARK = "many_ranks"  # the key in a copy's metadata of {"made_from": digest}


@dataclass(frozen=True, slots=True)
class Copy:
    """Represents a stored chapter and the reader's copy of it, which may not exist yet."""

    stored: Path
    path: Path

    @property
    def title(self) -> str:
        """Return its name in a sentence: "Chapter 0"."""
        return title(self.stored)

    @property
    def number(self) -> str:
        """Return the chapter's number: "00"."""
        return self.stored.stem.split("-")[0]

    @property
    def changed(self) -> bool:
        """Return True where the copy has anything that a new copy would not have."""
        copy = _read(self.path)
        return self.path.exists() and _made_from(copy) != _digest(copy)

    @property
    def newer(self) -> bool:
        """Return True where the stored chapter has changed since the copy was made."""
        made_from = _made_from(_read(self.path))
        return bool(made_from) and made_from != _digest(_read(self.stored))

    def make(self) -> bool:
        """Write the copy from the stored chapter; return False where that changes nothing."""
        notebook = _read(self.stored)
        notebook["metadata"][MARK] = {"made_from": _digest(notebook)}
        text = json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
        if self.path.exists() and self.path.read_bytes() == text.encode():
            return False
        self.path.parent.mkdir(exist_ok=True)
        unfinished = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        unfinished.write_text(text, encoding="utf-8", newline="\n")
        _trust(unfinished)
        os.replace(unfinished, self.path)  # a reader meanwhile sees all of it or nothing
        return True

    def again(self) -> Path | None:
        """Make the copy again; keep the reader's changes in a file, and return its name."""
        kept = None
        if self.changed:
            day, number = f"{self.path.stem}-kept-{time.strftime('%Y-%m-%d')}", 1
            kept = self.path.with_name(f"{day}.ipynb")
            while kept.exists():
                number += 1
                kept = self.path.with_name(f"{day}-{number}.ipynb")
            self.path.rename(kept)
        self.make()
        return kept


def title(path: Path) -> str:
    """Return the name of a file's chapter in a sentence: "Chapter 0"."""
    number = path.stem.split("-")[0]
    return f"Chapter {int(number)}" if number.isdecimal() else path.stem


def of(path: Path) -> Copy | None:
    """Return the chapter of a stored or copied notebook; None for any other notebook."""
    course = path.parent.parent
    copy = Copy(course / STORED / path.name, course / FOLDER / path.name)
    return copy if path in (copy.stored, copy.path) and copy.stored.is_file() else None


def prepare(course: Path) -> list[str]:
    """Make the copies that are missing, renew the unchanged ones; return sentences for the reader.

    Raises OSError where the folder cannot be written.
    """
    lines, folder = [], course / FOLDER
    if not any(folder.glob("*.ipynb")):  # a calibration may lie there already
        lines.append(f"Your own copies of the chapters are in {FOLDER}: what you do there is kept.")
    folder.mkdir(exist_ok=True)
    for stored in sorted((course / STORED).glob("*.ipynb")):
        copy = Copy(stored, folder / stored.name)
        if not _read(stored):
            name = f"{STORED}/{stored.name}"
            lines.append(f"{name} is no notebook that can be read: `git status` may say why, and "
                         f"`git checkout {name}` brings it back.")  # fmt: skip
        elif not copy.changed:
            copy.make()
        elif copy.newer:
            lines.append(f"{copy.title} has been revised since your copy was made. Your copy is "
                         f"as you left it; {_again(stored)}")  # fmt: skip
        elif not _read(copy.path):
            lines.append(f"{copy.path.relative_to(course)} is no notebook that can be read; "
                         f"{_again(stored)}")  # fmt: skip
    for extra in (course / STORED).iterdir():  # the images that chapters show
        if extra.is_dir() and not extra.name.startswith("."):
            shutil.copytree(extra, folder / extra.name, dirs_exist_ok=True)
    return lines


def _again(stored: Path) -> str:
    command = f"`make lab AGAIN={stored.stem.split('-')[0]}`"
    return f"{command} opens the chapter as it is stored now and keeps yours beside it."


def _read(path: Path) -> dict:
    """Return the notebook at `path`; an empty dict where none can be read."""
    try:
        notebook = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    whole = isinstance(notebook, dict) and isinstance(notebook.get("metadata"), dict)
    return notebook if whole and isinstance(notebook.get("cells"), list) else {}


def _made_from(copy: dict) -> str:
    mark = copy.get("metadata", {}).get(MARK)
    return mark.get("made_from", "") if isinstance(mark, dict) else ""


def _digest(notebook: dict) -> str:
    """Return a digest of cells and outputs, without the kernel's description of itself."""
    text = json.dumps(notebook.get("cells"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _trust(path: Path) -> None:
    """Mark a new copy as trusted, so that its pictures live; it has only the course's content."""
    import nbformat
    from nbformat.sign import NotebookNotary

    try:
        notary = NotebookNotary()
        notary.sign(nbformat.read(path, as_version=4))
        notary.store.close()
    except (OSError, sqlite3.Error):  # a home that cannot be written: stills are shown until a run
        pass
