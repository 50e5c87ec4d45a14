"""A stored picture is of the code above it: nbval compares its text form, which has no caption."""

import nbformat
import pytest

from lib.course.tools.book import ROOT
from lib.course.tools.widgets import untold

CHAPTERS = sorted((ROOT / "chapters").glob("*.ipynb"))


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_what_the_code_says_stands_in_the_stored_picture(path):
    assert untold(nbformat.read(path, as_version=4)) == []


def test_a_caption_of_other_code_is_found():
    notebook = nbformat.read(CHAPTERS[0], as_version=4)
    (cell,) = (
        c for c in notebook.cells if "ranks are hypothetical" in c.source and c.get("outputs")
    )
    cell.source = cell.source.replace("ranks are hypothetical", "ranks are not measured")
    assert untold(notebook) == [(cell.id, "Values above 8 ranks are not measured.")]
