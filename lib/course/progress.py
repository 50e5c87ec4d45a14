"""The exercises that the reader has solved, kept in the reader's own folder.

`progress.json` there holds for each chapter the names of its solved exercises, in the order in
which they were solved: {"03-fsdp": ["predict", "write"]}.
"""

import fcntl
import json
import os
import re
import sys
from functools import cache
from pathlib import Path

from lib.course.tools.book import ROOT, chapters
from lib.predict import readers_folder

FILE = "progress.json"
_IMPORTED = re.compile(r"^from lib\.course\.\w+\.exercises import (?:\(([^)]*)\)|(.*))$", re.M)
_CHECKED = re.compile(r"\b(\w+)\.check\(")


def folder() -> Path:
    """Return the reader's own folder, in which the copies of the chapters are too."""
    return readers_folder.folder()


@cache
def exercises() -> dict[str, list[str]]:
    """Return the names of each chapter's exercises, in the order of its stored notebook."""
    return {chapter.name: _checked(ROOT / chapter.file) for chapter in chapters()}


def solved() -> dict[str, list[str]]:
    """Return the names of each chapter's solved exercises, in the order in which they were solved.

    A chapter without one is left out. What cannot be read counts as not solved.
    """
    try:
        names = json.loads((folder() / FILE).read_text(encoding="utf-8"))
        return {
            chapter: [name for name in names[chapter] if name in known]
            for chapter, known in exercises().items()
            if names.get(chapter)
        }
    except (OSError, ValueError, TypeError, AttributeError):  # no file, or one that is not ours
        return {}


def here(exercise: str) -> str:
    """Return the chapter in whose copy this kernel works, if it has the exercise; else "".

    JupyterLab tells a kernel the notebook for which it was started. Tests, `make refresh` and
    `make run` have no such kernel, and the stored chapters are not the reader's own.
    """
    path = Path(os.environ.get("JPY_SESSION_NAME", ""))
    shell = sys.modules.get("IPython") and sys.modules["IPython"].get_ipython()
    if not shell or path.parent.resolve() != folder().resolve():
        return ""
    return path.stem if exercise in exercises().get(path.stem, ()) else ""


def remember(chapter: str, exercise: str) -> None:
    """Note that an exercise of a chapter is solved; nothing happens where that cannot be written.

    Kernels that write at once wait for one another, so none of them loses what another has noted.
    """
    file = folder() / FILE
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(file.with_name(f".{FILE}.lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            names = solved()
            if exercise in names.setdefault(chapter, []):
                return
            names[chapter].append(exercise)
            unfinished = file.with_name(f".{FILE}.{os.getpid()}")
            text = json.dumps(names, indent=1, sort_keys=True) + "\n"
            unfinished.write_text(text, encoding="utf-8")
            os.replace(unfinished, file)  # who reads meanwhile sees all of it or nothing
    except OSError:  # an exercise never fails because its memory does
        pass


def _checked(notebook: Path) -> list[str]:
    """Return the exercises that the code of a notebook checks, in order."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    imported = set(re.findall(r"\w+", " ".join(map(" ".join, _IMPORTED.findall(code)))))
    return list(dict.fromkeys(name for name in _CHECKED.findall(code) if name in imported))
