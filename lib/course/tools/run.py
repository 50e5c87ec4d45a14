"""`make run`: runs every chapter, from the first cell to the last, without a browser."""

import os
import subprocess
import sys
import time
from pathlib import Path

from lib.course.tools.book import BookError, notebooks

CELL_SECONDS = 120  # a cell that takes longer has hung
KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}


def execute(path: Path, progress=None, *, to_the_end: bool = False, timed=None):
    """Run the notebook at `path` in its own folder, and return it with its outputs.

    `progress(done, cells)` is called after each cell, and `timed(cell, seconds)`. Raises nbclient's
    CellExecutionError where a cell fails without the tag `raises-exception` (unless `to_the_end`:
    the cells after it run, and its error is among its outputs), and CellTimeoutError where one
    hangs.
    """
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    notebook.metadata["kernelspec"] = dict(KERNEL)
    cells = sum(cell.cell_type == "code" for cell in notebook.cells)
    done, began = 0, 0.0

    def begin(**_) -> None:
        nonlocal began
        began = time.perf_counter()

    def step(cell, **_) -> None:
        nonlocal done
        done += 1
        if progress:
            progress(done, cells)
        if timed:
            timed(cell, time.perf_counter() - began)

    # Under this variable ipykernel does not capture what children print; a reader does not have it.
    environ = {key: word for key, word in os.environ.items() if key != "PYTEST_CURRENT_TEST"}
    client = NotebookClient(
        notebook,
        timeout=CELL_SECONDS,
        allow_errors=to_the_end,
        record_timing=False,
        coalesce_streams=True,
        on_cell_execute=begin,
        on_cell_executed=step,
        resources={"metadata": {"path": str(path.parent)}},
    )
    # stdout and stderr of the kernel's process are its log; what cells print comes as messages
    client.execute(env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return notebook


def bar(name: str, stream=sys.stderr):
    """Return a progress bar for one chapter; None where `stream` is not a terminal."""
    if not stream.isatty():
        return None

    def show(done: int, cells: int) -> None:
        filled = 24 * done // max(cells, 1)
        line = f"\r{name:<26} {'█' * filled}{'·' * (24 - filled)} {done}/{cells} cells"
        stream.write(line if done < cells else "\r" + " " * len(line) + "\r")
        stream.flush()

    return show


def one(path: Path) -> tuple[bool, int, float]:
    """Run one notebook and print its row; return whether it ran, its cells and its seconds."""
    name, began, cells, wrong = path.stem, time.perf_counter(), 0, None
    try:
        notebook = execute(path, bar(name))
        cells = sum(cell.cell_type == "code" for cell in notebook.cells)
    except Exception as error:  # a cell's own error, a hang, a kernel that died: all are the row
        wrong = error
    seconds = time.perf_counter() - began
    print(f"{name:<26} {cells or '-':>5} {seconds:>8.1f}  {'no' if wrong else 'ok'}", flush=True)
    if wrong:
        print(f"\n{name} stopped:\n{wrong}", file=sys.stderr, flush=True)
    return wrong is None, cells, seconds


def main(names: list[str]) -> int:
    """Run the chapters called `names`, or all; return 1 where one did not reach its end."""
    try:
        paths = notebooks(names)
    except BookError as wrong:
        print(wrong, file=sys.stderr)
        return 1
    print(f"{'chapter':<26} {'cells':>5} {'seconds':>8}  ok", flush=True)
    rows = [one(path) for path in paths]
    good, cells, seconds = (sum(column) for column in zip(*rows))
    print(f"{good} of {len(rows)} ran to the end: {cells} cells in {seconds:.1f} s")
    return 0 if good == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
