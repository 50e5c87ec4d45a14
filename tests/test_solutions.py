"""nbval runs the folded solutions behind a chapter's cells, and notices one that solves nothing."""

import os
import subprocess
import sys
from pathlib import Path

import nbformat.v4 as v4
import pytest

from lib.course.tools.commands import NBVAL
from tests.solutions import names, once_more, solved

ROOT = Path(__file__).parents[1]
CHECK = 'print("Solved." if double(2) == 4 else "Not solved yet.")'
FOLDED = "<details><summary>Solution</summary>\n\n```python\n{}\n```\n\n</details>"


def chapter(solution: str, later: str = "one = 1"):
    """A notebook with one exercise, its solution, and a cell after it; the exercise reads `two`."""
    cells = [
        v4.new_code_cell("two = 2"),
        v4.new_markdown_cell(f"Double a number.\n\n{FOLDED.format(solution)}"),
        v4.new_code_cell(f"def double(x):\n    return x\n\n\n{CHECK}"),
        v4.new_code_cell(later),
    ]
    cells[2].metadata["tags"] = ["exercise"]
    cells[2].outputs = [v4.new_output("stream", text="Not solved yet.\n")]
    for number, cell in enumerate((cells[0], *cells[2:]), 1):
        cell.execution_count = number
    return v4.new_notebook(cells=cells)


@pytest.mark.parametrize(
    ("solution", "tried"),
    [
        ("def double(x):\n    return two * x", ["Cell 0 once more", "Solution of cell 1"]),
        ("def double(x):\n    return x + two + 1", None),
    ],
    ids=["right", "wrong"],
)
def test_nbval_runs_a_solution_with_the_names_that_the_reader_has(tmp_path, solution, tried):
    """A later cell gives `two` another value: the cell that made it runs again."""
    path = tmp_path / "chapter.ipynb"
    path.write_text(v4.writes(chapter(solution, later="two = 3")), "utf-8")
    words = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *NBVAL, str(path)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(words, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=120)
    assert (ran.returncode == 0) == (tried is not None), ran.stdout
    assert ":Cell 2 PASSED" in ran.stdout, "the chapter's own cells pass"
    if tried:
        assert [f"{name} PASSED" in ran.stdout for name in tried] == [True, True], ran.stdout
    else:
        assert "The folded solution does not solve it" in ran.stdout
        assert "Not solved yet." in ran.stdout


def test_a_solution_stands_in_the_place_of_the_readers_work():
    notebook = chapter("def double(x):\n    return two * x")
    notebook.cells[2].source = "from math import pi\n" + notebook.cells[2].source
    assert solved(notebook) == {
        2: "from math import pi\ndef double(x):\n    return two * x\n\n"
        + "print('Solved.' if double(2) == 4 else 'Not solved yet.')"
    }


# the cells by place, those that are solved, and which run once more
RUNS = {
    "alone": ({0: "a = 1", 1: "b = a"}, {1: "b = a"}, [1]),
    "with what uses it": ({0: "a = 1", 1: "b = a", 2: "c = b", 3: "d = a"}, {1: "b = a"}, [1, 2]),
    "after what has changed": ({0: "a = []", 1: "b = a", 2: "a[0] = 1"}, {1: "b = a"}, [0, 1]),
    "after it was closed": ({0: "w = W()", 1: "w.run()", 2: "w.close()"}, {1: "w.run()"}, [0, 1]),
    "in order": (
        {0: "a = 1", 1: "b = a", 2: "a = 2", 3: "c = a"}, {1: "b = a", 3: "c = a"}, [0, 1, 2, 3],
    ),
    "not an import": ({0: "import a", 1: "b = a", 2: "import a"}, {1: "b = a"}, [1]),
    "no magic": ({0: "%%rank 0\na = 2", 1: "b = 1"}, {1: "b = 1"}, [1]),
}  # fmt: skip


@pytest.mark.parametrize(("sources", "solutions", "run"), RUNS.values(), ids=RUNS)
def test_what_runs_once_more(sources, solutions, run):
    assert once_more(sources, solutions) == run


def test_names_of_a_cell():
    cell = names("import a\nb = c\nb.x = d[0]\ndef f():\n    return g\ne.close()")
    assert cell.made == {"b", "f"} and cell.changed == {"b", "e"}
    assert cell.read == {"b", "c", "d", "e", "g"}
