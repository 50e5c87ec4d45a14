"""`make refresh`: runs chapters and stores their outputs, so that two runs give the same bytes.

What is compared by the tests (texts, tables, SVG) decides whether a file changes. Pictures of
measured times differ from run to run: they are stored anew with the first change that is compared,
or when you ask (`FRESH=1`), so that a refresh without news leaves every file as it was.
"""

import json
import sys
from pathlib import Path

from lib.course.book import BookError, notebooks
from lib.course.run import bar, execute
from lib.course.widgets import VIEW, code, digest, tidy

KEPT = {"kernelspec", "widgets"}  # of a notebook's metadata
UNCOMPARED = ("image/png", "image/jpeg", VIEW)  # as nbval


def stored(notebook) -> str:
    """The text of `notebook` as a file: nothing in it tells when, where or how often it ran."""
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


def compared(notebook) -> list:
    """What tests compare of `notebook`, its source, its pictures' JavaScript: no times."""
    cells = []
    for cell in notebook.cells:
        outputs = []
        if "nbval-ignore-output" not in cell.metadata.get("tags", []):
            for output in cell.get("outputs", []):
                shown = {k: v for k, v in output.get("data", {}).items() if k not in UNCOMPARED}
                plain = {k: output[k] for k in ("text", "name", "ename", "evalue") if k in output}
                outputs.append([output.output_type, sorted(output.get("data", {})), shown, plain])
        count = cell.get("execution_count")
        cells.append([cell.cell_type, cell.source, dict(cell.metadata), count, outputs])
    return [
        *cells,
        sorted(notebook.metadata),
        [c.get("id") for c in notebook.cells],
        code(notebook),
    ]


def refresh(path: Path, *, fresh: bool = False) -> str:
    """Runs the notebook at `path`, stores it where that brings news, and says which it was."""
    import nbformat

    before = path.read_text(encoding="utf-8")
    text = stored(execute(path, bar(path.stem)))
    if text == before:
        return "as it was"
    old = compared(nbformat.reads(before, as_version=4))
    if not fresh and old == compared(nbformat.reads(text, as_version=4)):
        return "as it was (FRESH=1 stores its pictures anew)"
    path.write_text(text, encoding="utf-8", newline="\n")
    return "stored"


def main(words: list[str]) -> int:
    """Refreshes the chapters called in `words`, or all; returns 1 at the first that stops."""
    fresh = "--fresh" in words
    try:
        for path in notebooks([word for word in words if word != "--fresh"]):
            print(f"{path.stem:<26} {refresh(path, fresh=fresh)}", flush=True)
    except BookError as wrong:
        print(wrong, file=sys.stderr)
        return 1
    except Exception as wrong:  # a cell's own error, a hang, a kernel that died
        print(f"{path.stem} stopped, and its file is as it was:\n{wrong}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
