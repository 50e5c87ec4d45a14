"""The buttons below an exercise in JupyterLab: Check, Hint, what is missing, and what is solved."""

import json

import nbformat
import pytest

from lib.course.lean_optimizers.exercises import predict
from lib.course.tools.run import KERNEL
from tests.browser.seen import SCREENSHOTS
from tests.browser.test_access import complaints

SETUP = """from pathlib import Path
from lib.course import progress
progress.folder = Path.cwd
from math import pi as limit

def check(x):  # no check of an exercise, whatever its name
    return never_defined(x)
write = None  # the exercise's cell imports its own"""
PREDICT = """from lib.course.lean_optimizers.exercises import predict

predict.check(adam=None, adafactor=None, sm3=None, sm3_with_momentum=None)"""
ATTEMPT = """import torch


def my_sm3(rows, columns, gradient):
    nu = torch.minimum(rows[:, None], columns[None]) + gradient**2
    return nu, nu.amax(1), nu.amax(0)"""
WRITE = """from lib.course.lean_optimizers.exercises import write

write.check(my_sm3 if limit else None)"""
SOURCES = [SETUP, PREDICT, ATTEMPT, WRITE]
ATTEMPTED = """source => jupyterapp.shell.currentWidget.content.widgets[2].model.sharedModel
    .setSource(source)"""
COUNTS = (
    "() => [...jupyterapp.shell.currentWidget.content.widgets].map(c => c.model.executionCount)"
)
RUN = """async (place) => {
    jupyterapp.shell.currentWidget.content.activeCellIndex = place;
    await jupyterapp.commands.execute("notebook:run-cell");
}"""


@pytest.fixture
def chapter(lab, folder):
    """A page with a short chapter 11 that nobody has run, and the path of its file."""
    path = folder / "11-lean-optimizers.ipynb"
    cells = [nbformat.v4.new_code_cell(source, id=f"cell{n}") for n, source in enumerate(SOURCES)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": KERNEL}), path)
    page = lab.open(path.stem)
    yield page, path
    page.context.close()


def bar_of(page, exercise):
    return page.get_by_role("group", name=f"Exercise {exercise}", exact=True)


def test_an_exercise_is_checked_hinted_and_remembered_by_buttons(lab, chapter):
    page, path = chapter
    bar = bar_of(page, "predict")
    bar.wait_for()
    hint = bar.get_by_role("button", name="Hint")
    hint.focus()
    for number in (1, 2, 3):
        page.keyboard.press("Enter")
        bar.get_by_text(f"Hint {number} of 3: ").wait_for()
    assert bar.get_by_role("listitem").all_inner_texts()[0].endswith(predict.hints[0])
    bar.get_by_role("button", name="No more hints").wait_for()
    assert page.evaluate("() => jupyterapp.shell.currentWidget.content.mode") == "command"
    assert page.evaluate(COUNTS) == [None] * 4, "a hint leaves no trace in the notebook"

    bar = bar_of(page, "write")
    bar.get_by_role("button", name="Check", exact=True).click()
    bar.get_by_text("limit is not known to the kernel yet. Run the cells above first.").wait_for()
    page.screenshot(path=SCREENSHOTS / "exercise-bar-missing.png")
    assert page.evaluate(COUNTS) == [None] * 4
    bar.get_by_role("button", name="Run the cells above, then check").click()
    bar.get_by_text("✓ Solved", exact=True).wait_for()
    assert page.evaluate(COUNTS) == [1, 2, 4, 5], "the attempt is defined anew before its check"
    assert json.loads((path.parent / "progress.json").read_text()) == {path.stem: ["write"]}
    assert not bar_of(page, "predict").get_by_text("Solved").count()

    bar.get_by_role("button", name="Check", exact=True).focus()
    assert not nbformat.read(path, as_version=4).cells[-1].get("outputs")
    page.keyboard.press("Control+s")
    page.wait_for_function("() => !jupyterapp.shell.currentWidget.context.model.dirty")
    assert nbformat.read(path, as_version=4).cells[-1].outputs, "Ctrl+S saves, from a button too"

    for attempt, mark in ((ATTEMPT.replace("+ gradient", "- gradient"), "✓ Solved earlier"),
                          (ATTEMPT, "✓ Solved")):  # fmt: skip
        page.evaluate(ATTEMPTED, attempt)
        bar.get_by_role("button", name="Check", exact=True).click()
        bar.get_by_text(mark, exact=True).wait_for()

    page.evaluate("() => jupyterapp.shell.collapseLeft()")
    for dark in (False, True):
        lab.turn(page, dark=dark)
        said = complaints(page, ".mr-bar")
        assert not said, said
        for width in (360, 640, 1200):
            page.set_viewport_size({"width": width, "height": 900})
            hints = bar_of(page, "predict").get_by_role("listitem").first.bounding_box()
            assert hints["x"] + hints["width"] <= width, "a hint is cut off"
            page.screenshot(path=SCREENSHOTS / f"exercise-bar-{width}-{dark}.png")
    lab.turn(page, dark=False)
    page.evaluate("() => jupyterapp.commands.execute('docmanager:save')")
    after = nbformat.read(path, as_version=4)
    assert [cell.source for cell in after.cells] == SOURCES
    assert "mr-bar" not in path.read_text() and "Hint 1" not in path.read_text()


FUNCTION = """import torch

from lib.course.lean_optimizers.exercises import write


def my_sm3(rows, columns, gradient): ...


limit = 3
write.check(my_sm3 if limit else None)"""
WHOLE = f"from lib.course.lean_optimizers.exercises import write\n\n\n{ATTEMPT}\n\n\n" + (
    "limit = 3\nwrite.check(my_sm3 if limit else None)"
)
FAR = "from math import pi as limits"
REPAIR = "from lib.course.lean_optimizers.exercises import repair\n\nrepair.check(limits)"
NUMBERS = "predict.check(adam=1, adafactor=2, sm3=3, sm3_with_momentum=4)"


def test_a_solution_pasted_over_the_whole_cell_is_checked_all_the_same(lab, folder):
    """Check puts back the imports and the call that the pasted text lacks, and nothing else."""
    path = folder / "11-pasted.ipynb"
    sources = [SETUP.partition("\nfrom math")[0], PREDICT, FUNCTION, FAR, REPAIR]
    cells = [nbformat.v4.new_code_cell(source, id=f"cell{n}") for n, source in enumerate(sources)]
    cells[-1].outputs = [nbformat.v4.new_output("stream", text="Not solved yet.")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": KERNEL}), path)
    page = lab.open(path.stem)
    source = "place => jupyterapp.shell.currentWidget.content.widgets[place].model.sharedModel"
    page.evaluate(RUN, 0)
    for exercise, place, pasted in (("predict", 1, NUMBERS), ("write", 2, ATTEMPT)):
        bar = bar_of(page, exercise)
        bar.wait_for()
        page.evaluate(f"([place, text]) => ({source})(place).setSource(text)", [place, pasted])
        page.wait_for_timeout(600)  # longer than the bars wait for further typing
        bar.get_by_role("button", name="Check", exact=True).click()
        page.locator(".jp-Cell").nth(place).locator(".jp-OutputArea-output").first.wait_for()
    bar.get_by_text("✓ Solved", exact=True).wait_for()
    refused = bar_of(page, "repair")
    refused.get_by_role("button", name="Check", exact=True).click()
    refused.get_by_text("first. What the cell shows below is of an earlier run.").wait_for()
    now = [page.evaluate(f"place => ({source})(place).getSource()", place) for place in (1, 2)]
    head = "from lib.course.lean_optimizers.exercises import predict"
    assert now == [f"{head}\n\n\n{NUMBERS}", WHOLE]
    page.context.close()


DEFINED = """if True:
    (first, second), *rest = (1, 2), 3"""


def test_a_cell_that_misses_a_name_of_a_cell_above_says_so(lab, folder):
    """As after a restart; what no cell defines is a slip, of which Python's own message tells."""
    path = folder / "restarted.ipynb"
    sources = [DEFINED, "second + 1", "third + 1"]
    cells = [nbformat.v4.new_code_cell(source, id=f"cell{n}") for n, source in enumerate(sources)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": KERNEL}), path)
    page = lab.open(path.stem)
    bar = page.get_by_role("group", name="A name is missing")
    page.evaluate(RUN, 2)
    page.locator(".jp-Cell").nth(2).get_by_text("NameError").first.wait_for()
    page.evaluate(RUN, 1)
    bar.get_by_text("A cell above defines second, but this kernel does not know it.").wait_for()
    assert bar.count() == 1
    assert not complaints(page, ".mr-bar")
    page.evaluate("() => jupyterapp.shell.collapseLeft()")
    for width in (360, 640, 1200):
        page.set_viewport_size({"width": width, "height": 700})
        page.screenshot(path=SCREENSHOTS / f"missing-name-{width}.png")
    bar.get_by_role("button", name="Run the cells above, then this one").click()
    page.locator(".jp-Cell").nth(1).get_by_text("3", exact=True).wait_for()
    bar.wait_for(state="detached")
    assert page.evaluate(COUNTS) == [3, 4, 1]
    page.evaluate("() => jupyterapp.commands.execute('docmanager:save')")
    assert "mr-bar" not in path.read_text()
    page.context.close()
