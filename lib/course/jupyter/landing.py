"""What the page "The course" of JupyterLab shows, and where the reader stopped.

`last.json` in the reader's own folder holds for each chapter when the reader was last in it and
at which cell: {"03-fsdp": {"at": 1790000000, "cell": "b1"}}.
"""

import json
import os
import time
from pathlib import Path

import yaml

from lib.course import progress
from lib.course.tools import copies
from lib.course.tools.book import BookError, Chapter, chapters

FILE = "last.json"


def overview(course: Path) -> dict:
    """Return {title, last, chapters}: a dict for each chapter, and the name of the last one.

    Paths are relative to the course. Raises BookError or OSError where it is no course.
    """
    listed, places = chapters(course), _places(course)
    solved, exercises = progress.solved(), progress.exercises()
    shown = []
    for chapter in listed:
        copy = copies.of(course / chapter.file)
        file = copy.path if copy.path.exists() else copy.stored
        place = places.get(chapter.name, {})
        about = {name: getattr(chapter, name) for name in ("name", "minutes", "needs", "gives")}
        about |= {"number": int(chapter.number), "title": chapter.title, "changed": copy.changed}
        about |= {"path": file.relative_to(course).as_posix()}
        about |= {"opened": place.get("at"), "cell": place.get("cell")}
        about["exercises"] = exercises.get(chapter.name, [])
        about["solved"] = solved.get(chapter.name, [])
        shown.append(about)
    book = yaml.safe_load((course / "book.yml").read_text(encoding="utf-8"))
    title = (book.get("meta") or {}).get("title", "The course")
    return {"title": title, "chapters": shown, "last": _last(course, shown)}


def neighbours(course: Path, name: str) -> dict:
    """Return {previous, next} of a chapter, each {title, path}; the first and the last lack one."""
    try:
        listed = chapters(course)
        place = [chapter.name for chapter in listed].index(name)
    except (BookError, OSError, ValueError):  # not a course, or a chapter that is not in its book
        return {}
    found = {}
    if place > 0:
        found["previous"] = _pointer(course, listed[place - 1])
    if place + 1 < len(listed):
        found["next"] = _pointer(course, listed[place + 1])
    return found


def note(copy: copies.Copy, cell: str) -> None:
    """Remember that the reader is in this chapter, at the cell with this id; "" is its beginning.

    Raises OSError where the folder cannot be written.
    """
    folder = copy.path.parent
    places = _places(folder.parent)
    places[copy.path.stem] = {"at": int(time.time()), "cell": cell}
    unfinished = folder / f".{FILE}.{os.getpid()}"
    unfinished.write_text(json.dumps(places, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    os.replace(unfinished, folder / FILE)


def place(copy: copies.Copy) -> str:
    """Return the id of the cell where the reader stopped in a chapter; "" for a new one."""
    return _places(copy.path.parents[1]).get(copy.path.stem, {}).get("cell", "")


def _pointer(course: Path, chapter: Chapter) -> dict:
    copy = copies.of(course / chapter.file)
    file = copy.path if copy.path.exists() else copy.stored
    title = f"{copy.title}: {chapter.title}"
    return {"title": title, "path": file.relative_to(course).as_posix()}


def _last(course: Path, shown: list[dict]) -> str:
    """Return the name of the chapter that the reader was last in, "" for a new reader."""
    opened = [about for about in shown if about["opened"]]
    if opened:
        return max(opened, key=lambda about: about["opened"])["name"]
    changed = [about for about in shown if about["changed"]]
    newest = lambda about: (course / about["path"]).stat().st_mtime
    return max(changed, key=newest)["name"] if changed else ""


def _places(course: Path) -> dict:
    """Return what `last.json` holds; what cannot be read counts as nothing."""
    try:
        places = json.loads((course / copies.FOLDER / FILE).read_text(encoding="utf-8"))
        return {name: {"at": int(p["at"]), "cell": str(p["cell"])} for name, p in places.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}
