"""What chapter 1 says of a class: the memory of a student's processes, and what can be left out."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.course.stored_chapter import stored_chapter, text_of

# Adds up the memory of this process and of all that it started; a shared page counts in parts.
COUNTED = """
from pathlib import Path

def family(process):
    lists = [file.read_text() for file in Path(f"/proc/{process}/task").glob("*/children")]
    return [process, *(one for text in lists for child in text.split() for one in family(child))]

def gigabytes():
    rolled = [Path(f"/proc/{one}/smaps_rollup").read_text() for one in family("self")]
    return sum(int(text.split("Pss:")[1].split()[0]) for text in rolled) / 1e6

"""


def code_with(notebook, words):
    """Give the source of the one code cell with these words."""
    (cell,) = [c.source for c in notebook.cells if c.cell_type == "code" and words in c.source]
    return cell


def names(code, kind):
    """Give the names that a piece of code sets (ast.Store) or uses (ast.Load), arguments aside."""
    nodes = list(ast.walk(ast.parse(code)))
    arguments = {node.arg for node in nodes if isinstance(node, ast.arg)}
    found = [node for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, kind)]
    return {node.id for node in found} - arguments


def test_students_need_nothing_of_what_they_leave_out():
    """The line `slow = …`, the code of *See it* from `versions` on, and cells with slow and ask."""
    notebook = stored_chapter("01-data-parallel")
    end = [c.source.startswith("## Going further") for c in notebook.cells].index(True)
    code = [c.source for c in notebook.cells[:end] if c.cell_type == "code"]
    (see_it,) = [source for source in code if "versions = " in source]
    left_out = [see_it[see_it.index("versions = ") :], "slow = 0"]
    left_out += [s for s in code if s != see_it and names(s, ast.Load) & {"slow", "ask"}]
    assert len(left_out) == 4
    kept = [source for source in code if source not in left_out and source != see_it]
    missing = set.union(*(names(source, ast.Store) for source in left_out))
    missing -= set.union(*(names(source, ast.Store) for source in kept))
    used = set.union(*(names(source, ast.Load) for source in kept))
    assert {"slow", "ask", "recordings"} <= missing and not missing & used


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="Linux counts it there")
def test_a_students_processes_need_no_more_memory_than_the_chapter_counts(tmp_path):
    """Without slow motion, and with it: steps of *Build it* and *See it* have then been run."""
    notebook = stored_chapter("01-data-parallel")
    text = text_of(notebook)
    count = r"count ([\d.]+) GB of memory for each student, (\d+) GB for thirty"
    both, thirty = map(float, re.search(count, text).groups())
    four = float(re.search(r"need four processes and ([\d.]+) GB each", text)[1])
    assert round(30 * both) == thirty
    slow = code_with(notebook, "slow = World(4")
    parts = [code_with(notebook, "world, shape = World(4)"), code_with(notebook, "def average(")]
    parts += ["print(gigabytes())", slow[: slow.index("versions = ")]]
    parts += ["slow.run(chain_step, lambda model: average)", "print(gigabytes())"]
    script = tmp_path / "student.py"
    script.write_text("\n\n".join([COUNTED, *parts]))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    alone, together = map(float, done.stdout.split())
    assert 0.3 < alone < four and alone + 0.1 < together < both, (alone, together)
