"""Chapters as a reader works through them: exercises open, solved, and the planted bugs."""

import ast
import io
import re
from pathlib import Path

import nbformat
import pytest
from PIL import Image, ImageChops

from lib.course.run import execute
from lib.draw import collective

ROOT = Path(__file__).parents[1]
CHAPTERS = sorted((ROOT / "chapters").glob("*.ipynb"))
SOLUTION = re.compile(r"<details><summary>[^<]*</summary>.*?```python\n(.*?)```.*?</details>", re.S)

every_chapter = pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)


def read(path):
    return nbformat.read(path, as_version=4)


def exercises(notebook):
    """(place of the cell, its folded solution, its last line: the check) of each exercise."""
    for place, cell in enumerate(notebook.cells):
        if "exercise" in cell.metadata.get("tags", []):
            folded = SOLUTION.findall(notebook.cells[place - 1].source)
            assert len(folded) == 1, f"one solution is folded above {cell.source.splitlines()[0]!r}"
            yield place, folded[0], ast.unparse(ast.parse(cell.source).body[-1])


def shown(cell):
    """What a cell shows, as text."""
    plain = [out.get("text") or out.get("data", {}).get("text/plain", "") for out in cell.outputs]
    return "".join(plain)


@pytest.fixture(scope="module", params=CHAPTERS, ids=lambda path: path.stem)
def solved(request, tmp_path_factory):
    """The chapter with each exercise's cell replaced by its solution and its check, executed."""
    notebook = read(request.param)
    for place, solution, check in exercises(notebook):
        cell = notebook.cells[place]
        imports = [n for n in ast.parse(cell.source).body if isinstance(n, ast.ImportFrom)]
        ends = "" if ".check(" in solution else check
        cell.source = "\n".join([*map(ast.unparse, imports), solution, ends])
    path = tmp_path_factory.mktemp("solved") / request.param.name
    nbformat.write(notebook, path)
    return execute(path)


def test_every_folded_solution_passes_its_checker(solved):
    places = [place for place, _, _ in exercises(solved)]
    assert 3 <= len(places) <= 5
    for place in places:
        assert shown(solved.cells[place]).startswith(("Solved", "The sums are right")), shown(
            solved.cells[place]
        )


@every_chapter
def test_an_unsolved_exercise_says_what_to_do(path):
    notebook = read(path)
    for place, _, _ in exercises(notebook):
        text = shown(notebook.cells[place])
        assert text.startswith(("Not solved yet", "Not yet")), text
        assert "hint()" in text, text


@every_chapter
def test_an_exercise_has_hints(path):
    import importlib

    tree = "\n".join(c.source for c in read(path).cells if c.cell_type == "code")
    module, names = re.search(r"from (lib\.course\.exercises_\w+) import ([\w, ]+)", tree).groups()
    for name in names.split(", "):
        exercise = getattr(importlib.import_module(module), name)
        assert exercise.hints and exercise.name == name and exercise.task
        assert f"{name}.check(" in tree


# --- chapter 0


def cell_of(notebook, words):
    (cell,) = [c for c in notebook.cells if c.cell_type == "code" and words in c.source]
    return cell


@pytest.fixture(scope="module")
def ranks():
    return read(ROOT / "chapters" / "00-ranks.ipynb")


def test_the_ring_that_shipped_is_found_out(ranks):
    text = shown(cell_of(ranks, "def their_ring"))
    assert "The sums are right, the traffic is not." in text
    assert "It moves 2 times the bytes of par." in text  # n/2, on 4 ranks
    assert "message 0 of rank 0 goes to rank 1 with 4,000 bytes" in text


def test_six_ways_to_all_reduce_equal_their_formulas(ranks):
    from lib.predict import traffic

    lines = shown(cell_of(ranks, "halving_doubling, two_level")).splitlines()[1:]
    assert [line.split()[0] for line in lines] == list(traffic.ALGORITHMS)
    for line in lines:
        name, rounds, formula, sent, paper = line.replace(",", "").split()
        counted = traffic.all_reduce(name, 4, 250_000)
        assert int(rounds) == int(formula) == counted.rounds
        assert int(sent) == int(paper) == max(counted.sent)


def test_three_lost_ranks_are_told_and_the_ranks_live(ranks):
    text = shown(cell_of(ranks, "def attempt"))
    assert "rank 2 raised AssertionError: no data left" in text
    assert "ranks 0, 1 and 3 were left waiting in all_reduce" in text
    assert "rank 0 waits for ever" in text and "they wait for each other" in text
    assert text.count("The ranks keep what you made on them.") == 3
    after = ranks.cells[ranks.cells.index(cell_of(ranks, "def attempt")) + 2]
    assert after.source == "%%ranks\nmine" and "rank 3 │ tensor([1000., 2000.])" in shown(after)


def test_the_training_time_is_the_published_one(ranks):
    assert "one device: 95 years, 1,024 devices: 33.9 days" in shown(
        cell_of(ranks, "training_days")
    )


def test_the_first_picture_comes_before_any_code_and_is_what_draw_draws(ranks):
    first = ranks.cells[0]
    assert first.cell_type == "markdown"
    (name,) = re.findall(r"!\[[^\]]+\]\((images/[\w-]+\.png)\)", first.source)
    drawn = io.BytesIO(collective("all_reduce").png())
    pictures = [Image.open(file).convert("L") for file in (ROOT / "chapters" / name, drawn)]
    assert pictures[0].size == pictures[1].size
    difference = ImageChops.difference(*pictures).resize((64, 16))
    assert difference.getextrema()[1] < 24  # letters may differ by a hair between versions
