"""Every cell of every chapter runs on GPUs, unchanged, and shows there what is stored.

`make test-gpu` runs this file on the GPUs that are there, `make test` on pretended ones. It leaves
a table of all cells in _build/cells-on-gpus.md: which ran, and which show what is stored.
"""

import os

import nbformat
import pytest
import torch

from lib.course.tools import book, run
from tests import on_gpus

pytestmark = [
    pytest.mark.skipif(
        not os.environ.get("RANKS_TEST_GPUS"), reason="for `make test-gpu`, or on pretended GPUs"
    ),
    pytest.mark.limit(600),  # of a whole chapter; each of its cells has a limit of its own
]

# The cells that show something else on GPUs: (chapter, the cell's id) -> why.
CLOCK = "it shows times of the machine on which it ran"
OTHER = {
    ("01-data-parallel", "f0e1d2c3"): CLOCK,
    ("02-communicating-less", "6ea28ba8"): CLOCK,
    ("03-fsdp", "lib00001"): "what attention keeps depends on the device",
    ("03-fsdp", "resh0001"): "what attention keeps depends on the device",
    ("03-fsdp", "wall0001"): CLOCK,
    ("04-tensor-parallel", "wall0001"): CLOCK,
    ("04-tensor-parallel", "whole003"): "what attention keeps depends on the device",
    ("05-tensor-grids", "grid0003"): "what attention keeps depends on the device",
    ("05-tensor-grids", "wall0001"): CLOCK,
    ("06-pipeline-bubbles", "abfbebdf"): "what attention keeps depends on the device",
    ("06-pipeline-bubbles", "f06a0004"): "what attention keeps depends on the device",
    ("06-pipeline-bubbles", "bcac3b14"): "on NCCL the messages that block are told before they do",
    ("06-pipeline-bubbles", "d60ffd57"): CLOCK,
    ("07-asynchronous-pipelines", "a2d32170"): CLOCK,
    ("07-asynchronous-pipelines", "cee0d0c2"): CLOCK,
    ("08-mixture-of-experts", "wall0001"): CLOCK,
    ("09-recomputation", "wall0001"): CLOCK,
    ("10-mixed-precision", "wall0001"): CLOCK,
    ("11-lean-optimizers", "wall0001"): CLOCK,
    ("12-sequence-parallel", "four0003"): "what attention keeps depends on the device",
}
# The cells that show something else on real GPUs besides.
ON_REAL_GPUS = {
    ("00-ranks", "4f922094"): "who waits for a partner in NCCL's making of a connection is ended",
    ("11-lean-optimizers", "shar0005"): "8-bit Adam is compared with the CPU's bits",
    ("11-lean-optimizers", "muon0006"): "8-bit Adam is compared with the CPU's bits",
}


def shown(cell) -> list:
    """Give what a cell shows as text: pictures and their numbers are of the run just made."""
    kept = []
    for output in cell.outputs:
        if output.output_type == "stream":
            kept.append((output.name, output.text))
        elif output.output_type == "error":
            kept.append((output.ename, output.evalue))
        else:
            kept.append(("text", output.data.get("text/plain", "")))
    return kept


def failed(cell) -> bool:
    announced = "raises-exception" in cell.metadata.get("tags", [])
    return not announced and any(output.output_type == "error" for output in cell.outputs)


def tell(chapter: str, made: list, wrong, other) -> None:
    """Keep the table of a chapter's cells."""

    def row(cell) -> str:
        same = (OTHER | ON_REAL_GPUS).get((chapter, cell.id), "NO") if cell.id in other else "yes"
        return f"| {cell.id} | {'NO' if cell.id in wrong else 'yes'} | {same} |"

    head = ["", "| cell | ran | shows what is stored, or why not |", "|---|---|---|"]
    good = len(made) - len(wrong)
    sums = f"{good} of {len(made)} cells ran, {len(made) - len(other)} show what is stored."
    on_gpus.tell("cells-on-gpus.md", f"## {chapter}", "", sums, *head, *map(row, made), "")


@pytest.mark.parametrize("chapter", book.chapters(), ids=lambda chapter: chapter.name)
def test_the_cells_of_a_chapter_on_gpus(chapter, monkeypatch):
    monkeypatch.delenv("RANKS_DEVICE", raising=False)
    path = book.ROOT / chapter.file
    stored = {cell.id: cell for cell in nbformat.read(path, as_version=4).cells}
    made = [cell for cell in run.execute(path, to_the_end=True).cells if cell.cell_type == "code"]
    wrong = {cell.id: shown(cell)[-1] for cell in made if failed(cell)}
    other = {cell.id: shown(cell) for cell in made if shown(cell) != shown(stored[cell.id])}
    tell(chapter.name, made, wrong, other)
    assert not wrong, f"{len(wrong)} of {len(made)} cells"
    real = torch.accelerator.current_accelerator().type == "cuda"
    known = OTHER | (ON_REAL_GPUS if real else {})
    listed = {cell for name, cell in known if name == chapter.name}
    differ = [f"{cell} shows:\n{told}\nand stored is:\n{shown(stored[cell])}"
              for cell, told in other.items() if cell not in listed]  # fmt: skip
    assert not differ, "\n\n".join(differ)
    if not real:
        assert other.keys() == listed, "these show what is stored, and are listed among the others"
