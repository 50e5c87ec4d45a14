"""`make refresh`: how long cells take, beside what `test_road.py` tries of it."""

import nbformat
import pytest

from lib.course.tools import refresh


@pytest.mark.parametrize(
    ("seconds", "stored", "said"),
    [(4.9, None, None), (5, None, 5), (8, None, 10), (24, None, 20), (1000, None, 120)]
    + [(5.1, 10, 10), (20, 10, 10), (4.9, 10, None), (21, 10, 20), (2.5, 5, 5), (2.4, 5, None)],
)
def test_a_stored_time_stays_until_it_is_wrong_by_a_factor_of_two(seconds, stored, said):
    assert refresh.about(seconds, stored) == said


@pytest.fixture
def path(tmp_path, monkeypatch):
    """A stored notebook of two cells, which then take 30 s and 1 s and print something else."""
    cells = [nbformat.v4.new_code_cell(source, id=source) for source in ("a", "b")]
    cells[1].metadata = {"many_ranks": {"seconds": 10}, "tags": ["kept"]}
    found = tmp_path / "chapter.ipynb"
    found.write_text(refresh.stored(nbformat.v4.new_notebook(cells=cells)), "utf-8")

    def execute(path, progress, timed):
        notebook = nbformat.read(path, as_version=4)
        for cell, seconds in zip(notebook.cells, (30, 1), strict=True):
            cell.outputs = [nbformat.v4.new_output("stream", text="new")]
            if timed:
                timed(cell, seconds)
        return notebook

    monkeypatch.setattr(refresh, "execute", execute)
    return found


def test_times_are_stored_alone_where_only_they_are_asked_for(path):
    assert refresh.refresh(path, seconds=True) == "stored"
    cells = nbformat.read(path, as_version=4).cells
    assert [cell.metadata for cell in cells] == [
        {"many_ranks": {"seconds": 30}},
        {"tags": ["kept"]},
    ]
    assert [cell.outputs for cell in cells] == [[], []]
    assert refresh.refresh(path, seconds=True) == "as it was"


def test_times_are_not_compared_and_stay_where_outputs_are_stored(path):
    """A cell that takes about 5 seconds would make two runs of `make refresh` differ."""
    before = nbformat.read(path, as_version=4)
    other = nbformat.read(path, as_version=4)
    other.cells[0].metadata["many_ranks"] = {"seconds": 60}
    assert refresh.compared(before) == refresh.compared(other)
    assert refresh.refresh(path) == "stored"
    cells = nbformat.read(path, as_version=4).cells
    assert [cell.metadata.get("many_ranks") for cell in cells] == [None, {"seconds": 10}]
    assert [cell.outputs[0].text for cell in cells] == ["new", "new"]
