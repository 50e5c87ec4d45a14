"""Every folded solution can replace the whole cell of its exercise: it has the import too."""

import ast
import re
from collections import Counter

import nbformat
import pytest

from tests.course.stored_chapter import ROOT

CHECK = re.compile(r"\b([A-Za-z_]\w*)\.check\(")
# As `lib/course/site/lab/exercises.js` looks for it, in all cells of a chapter.
IMPORT = re.compile(r"^from (lib\.course\.\w+\.exercises) import (?:\(([^)]*)\)|(.*))$", re.M)
FOLDED = re.compile(
    r"<details><summary>(?:Solution|One answer|A solution)</summary>(.*?)</details>", re.S
)


def exercises():
    """Give each chapter's exercises: its code cells above, the cell, and the text around it."""
    for path in sorted((ROOT / "chapters").glob("*.ipynb")):
        cells = nbformat.read(path, as_version=4).cells
        for place, cell in enumerate(cells):
            name = CHECK.search(cell.source) if cell.cell_type == "code" else None
            if name:
                yield pytest.param(cells, place, id=f"{path.stem}-{name[1]}")


def solutions(cells, place: int) -> list[str]:
    """Give the folded programs beside a cell that check the exercise of this cell."""
    name = CHECK.search(cells[place].source)[1]
    around = [c.source for c in cells[place - 1 : place + 3] if c.cell_type == "markdown"]
    folded = "\n".join(FOLDED.findall("\n".join(around)))
    programs = re.findall(r"```python\n(.*?)```", folded, re.S)
    return [program for program in programs if name in CHECK.findall(program)]


def imported(source: str) -> set[str]:
    """Give the names of the exercises that these cells import where the buttons look for them."""
    found = IMPORT.findall(source)
    return {name for _, inside, line in found for name in re.findall(r"\w+", inside or line)}


def known_above(cells, place: int) -> dict:
    """Run what the cells above import and define, but none of their calls."""
    names = {"__name__": "__main__", "display": lambda *_: None}
    kinds = ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef
    for cell in cells[:place]:
        if cell.cell_type == "code" and not cell.source.startswith("%%"):
            body = [node for node in ast.parse(cell.source).body if isinstance(node, kinds)]
            exec(compile(ast.Module(body, []), "<above>", "exec"), names)
    return names


EXERCISES = list(exercises())
# It trains for half a minute; its chapter's test_exercises.py trains such an optimizer.
TRAINS = "11-lean-optimizers-smallest"


def test_every_chapter_has_exercises():
    counts = Counter(one.id[:2] for one in EXERCISES)
    assert len(counts) == len(list((ROOT / "chapters").glob("*.ipynb")))
    assert min(counts.values()) >= 3


@pytest.mark.parametrize(("cells", "place"), EXERCISES)
def test_a_printed_solution_replaces_the_whole_cell(cells, place):
    (solution,) = solutions(cells, place)
    setup = next(c.source for c in cells if c.cell_type == "code")
    name = CHECK.search(solution)[1]
    assert name in imported(solution) | imported(setup), "Check and Hint would go away."


@pytest.mark.parametrize(("cells", "place"), [one for one in EXERCISES if one.id != TRAINS])
def test_a_printed_solution_solves_its_exercise(cells, place, worlds):
    (solution,) = solutions(cells, place)
    names = known_above(cells, place) | {"world": worlds(4)}
    exec(compile(solution, "<solution>", "exec"), names)
    assert names[CHECK.search(solution)[1]].solved
