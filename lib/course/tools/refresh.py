"""`make refresh`: runs chapters and stores their outputs, so that two runs give the same bytes.

A file changes only if something changes that the tests compare (texts, tables, SVG). Pictures of
measured times differ from run to run. They are stored again with the next such change, or when you
ask for it (`FRESH=1`), so that a refresh that finds no change leaves every file as it was.

A cell that takes 5 seconds or more says so in its metadata, rounded; JupyterLab and the book show
it. It is stored when you ask for it (`TIMES=1`), and alone, since times near 5 seconds would make
two runs differ. Measure on a machine that has nothing else to do.
"""

import json
import math
import os
import sys
from pathlib import Path

from lib.course.tools.book import BookError, notebooks
from lib.course.tools.run import bar, execute
from lib.course.tools.widgets import VIEW, code, digest, tidy, untold

KEPT = {"kernelspec", "widgets"}  # the parts of a notebook's metadata that are stored
OURS = "many_ranks"  # the part of a cell's metadata that is ours
ROUND_SECONDS = (5, 10, 20, 30, 60, 120)  # what a cell may say that it takes
UNCOMPARED = ("image/png", "image/jpeg", VIEW)  # as in nbval


def stored(notebook) -> str:
    """Return the text of `notebook` as a file, without when, where or how often it ran."""
    import nbformat

    notebook.nbformat, notebook.nbformat_minor = 4, 5  # the first with cell ids
    notebook.metadata = nbformat.from_dict(
        {k: v for k, v in notebook.metadata.items() if k in KEPT}
    )
    for place, cell in enumerate(notebook.cells):
        cell.metadata.pop("execution", None)
        if "id" not in cell:
            cell["id"] = digest(f"{place}{cell.source}")[:8]
        for output in cell.get("outputs", []):
            output.pop("transient", None)
    tidy(notebook)
    text = nbformat.writes(notebook, version=4)
    text = json.dumps(json.loads(text), indent=1, ensure_ascii=False, sort_keys=True)
    return text + "\n"


def about(seconds: float, stored: int | None = None) -> int | None:
    """Return the seconds that a cell says it takes: rounded, and None where that is below 5.

    What is `stored` stays where it is wrong by no more than a factor of two, as times of different
    runs and machines are.
    """
    if stored and stored / 2 <= seconds <= 2 * stored:
        return stored
    if seconds < ROUND_SECONDS[0]:
        return None
    return min(ROUND_SECONDS, key=lambda one: abs(math.log(one / seconds)))


def say_seconds(cell, seconds: float) -> None:
    """Write into the metadata of `cell` how long it takes, if that is long."""
    said = about(seconds, cell.metadata.pop(OURS, {}).get("seconds"))
    if said:
        cell.metadata[OURS] = {"seconds": said}


def compared(notebook) -> list:
    """Return what tests compare of `notebook`, its source and its pictures' JavaScript."""
    cells = []
    for cell in notebook.cells:
        outputs = []
        if "nbval-ignore-output" not in cell.metadata.get("tags", []):
            for output in cell.get("outputs", []):
                shown = {k: v for k, v in output.get("data", {}).items() if k not in UNCOMPARED}
                plain = {k: output[k] for k in ("text", "name", "ename", "evalue") if k in output}
                outputs.append([output.output_type, sorted(output.get("data", {})), shown, plain])
        count = cell.get("execution_count")
        metadata = {k: v for k, v in cell.metadata.items() if k != OURS}
        cells.append([cell.cell_type, cell.source, metadata, count, outputs])
    return [
        *cells,
        sorted(notebook.metadata),
        [c.get("id") for c in notebook.cells],
        code(notebook),
    ]


def refresh(path: Path, *, fresh: bool = False, seconds: bool = False) -> str:
    """Run the notebook at `path`, store it if something changed, and return what was done.

    With `seconds` nothing else is stored than how long its cells take.
    """
    import nbformat

    before = path.read_text(encoding="utf-8")
    old = nbformat.reads(before, as_version=4)
    new = execute(path, bar(path.stem), timed=say_seconds if seconds else None)
    if seconds:
        for kept, run in zip(old.cells, new.cells, strict=True):
            kept.metadata = run.metadata
    text = stored(old if seconds else new)
    if text == before:
        return "as it was"
    same = compared(old) == compared(nbformat.reads(text, as_version=4)) and not untold(old)
    if same and not (fresh or seconds):
        return "as it was (FRESH=1 stores its pictures anew)"
    path.write_text(text, encoding="utf-8", newline="\n")
    return "stored"


def main(words: list[str]) -> int:
    """Refresh the chapters called in `words`, or all; return 1 at the first that stops."""
    os.environ["RANKS_DEVICE"] = "cpu"  # what is stored comes from ranks on the CPU
    asked = {word.removeprefix("--"): True for word in words if word in ("--fresh", "--seconds")}
    try:
        for path in notebooks([word for word in words if not word.startswith("--")]):
            print(f"{path.stem:<26} {refresh(path, **asked)}", flush=True)
    except BookError as wrong:
        print(wrong, file=sys.stderr)
        return 1
    except Exception as wrong:  # a cell's own error, a hang, a kernel that died
        print(f"{path.stem} stopped, and its file is as it was:\n{wrong}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
