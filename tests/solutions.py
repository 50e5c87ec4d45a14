"""nbval's last cells of a chapter: its folded solutions, in the kernel that ran the chapter.

`make test` gives pytest `-p tests.solutions`. Behind the cells of a notebook come then its
exercises, each with its folded solution in the place of the reader's work, and the cells that use
what a solution defines, since a reader goes on after it. They find the names as the whole chapter
has left them; where one of those has another value by then, the cells that made it run again.
"""

import ast
import re
import symtable
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from nbval.plugin import IPyNbCell, IPyNbFile

SOLUTION = re.compile(
    r"<details><summary>(?!A whole script)[^<]*</summary>(?:(?!</details>).)*?"
    r"```python\n(.*?)```.*?</details>",
    re.S,
)
SOLVED = ("Solved", "The sums are right")  # how a verdict begins


def exercises(notebook) -> Iterator[tuple[int, str, str]]:
    """(place of the cell, its folded solution, its last line: the check) of each exercise.

    The solution stands in the text before the cell or in the text after it.
    """
    for place, cell in enumerate(notebook.cells):
        if "exercise" in cell.metadata.get("tags", []):
            around = notebook.cells[place - 1], *notebook.cells[place + 1 : place + 2]
            sides = [SOLUTION.findall(c.source) for c in around if c.cell_type == "markdown"]
            folded = next((side for side in sides if side), [])
            assert len(folded) == 1, f"one solution is folded by {cell.source.splitlines()[0]!r}"
            yield place, folded[0], ast.unparse(ast.parse(cell.source).body[-1])


def solved(notebook) -> dict[int, str]:
    """The place of each exercise -> what a reader runs there who takes the folded solution."""
    sources = {}
    for place, solution, check in exercises(notebook):
        body = ast.parse(notebook.cells[place].source).body
        imports = [ast.unparse(node) for node in body if isinstance(node, ast.ImportFrom)]
        ends = "" if ".check(" in solution else check
        sources[place] = "\n".join([*imports, solution, ends])
    return sources


class Names(NamedTuple):
    """The names to which a cell gives a value, changes in place, and reads; not what it imports."""

    made: set
    changed: set
    read: set


def names(source: str) -> Names:
    made, changed, read = set(), set(), set()
    tables = [symtable.symtable(source, "cell", "exec")]
    for table in tables:
        tables += table.get_children()
        for symbol in table.get_symbols():
            outermost = table.get_type() == "module"
            if outermost and symbol.is_assigned() and not symbol.is_imported():
                made.add(symbol.get_name())
            if symbol.is_referenced() and (outermost or symbol.is_global()):
                read.add(symbol.get_name())
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute | ast.Subscript):
            ends = getattr(node, "attr", "") == "close"  # a World
            if ends or isinstance(node.ctx, ast.Store):
                changed |= {n.id for n in ast.walk(node.value) if isinstance(n, ast.Name)}
    return Names(made, changed, read)


def once_more(sources: dict[int, str], solutions: dict[int, str]) -> list[int]:
    """The places of the cells that run after the last one, in their order.

    `sources` are those of all code cells by place, and `solutions` stand in for some of them.
    """
    cells = {
        place: names(source)
        for place, source in (sources | solutions).items()
        if not source.startswith("%%")
    }
    given, kept = set(), set()
    for place, cell in cells.items():
        if place in solutions or cell.read & given:
            kept.add(place)
            given |= cell.made | cell.changed
    makers = {}
    for place, cell in cells.items():
        for name in cell.made | cell.changed:
            makers.setdefault(name, []).append(place)

    def missing(place: int, name: str) -> int | None:
        """The cell that gives a name the value that it has at `place`, if it has another now."""
        before = [maker for maker in makers.get(name, []) if maker < place]
        if not before or before[-1] in kept:
            return None
        is_last = before[-1] == makers[name][-1]
        return None if is_last and not kept & set(before) else before[-1]

    while more := {missing(p, name) for p in kept for name in cells[p].read} - {None}:
        kept |= more
    return sorted(kept)


class Again(IPyNbCell):
    """A cell that runs once more; that of an exercise has to be solved."""

    def runtest(self):
        super().runtest()
        if self.options["solved"]:
            said = [out.get("text") or out.get("data", {}).get("text/plain", "")
                    for out in self.test_outputs]  # fmt: skip
            if not "".join(said).startswith(SOLVED):
                self.raise_cell_error("The folded solution does not solve it", "".join(said))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    report = yield
    if isinstance(collector, IPyNbFile) and report.passed:
        report.result += _again(collector)
    return report


def _again(chapter: IPyNbFile) -> Iterator[Again]:
    code = {place: c for place, c in enumerate(chapter.nb.cells) if c.cell_type == "code"}
    solutions = solved(chapter.nb)
    for place in once_more({place: cell.source for place, cell in code.items()}, solutions):
        number = list(code).index(place)
        cell = code[place].copy()
        cell.update(source=solutions.get(place, cell.source), outputs=[])
        told = dict.fromkeys(("skip", "check"), False)
        raises = "raises-exception" in cell.metadata.get("tags", [])
        options = told | {"check_exception": raises, "solved": place in solutions}
        name = f"Solution of cell {number}" if place in solutions else f"Cell {number} once more"
        yield Again.from_parent(chapter, name=name, cell_num=number, cell=cell, options=options)
