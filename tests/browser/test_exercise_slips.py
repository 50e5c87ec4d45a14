"""Slips in exercise cells: Check runs the cell, the error is seen, a sentence says what helps."""

import nbformat
import pytest

from lib.course.tools.run import KERNEL
from tests.browser.seen import SCREENSHOTS
from tests.browser.test_access import complaints
from tests.browser.test_exercise_bar import RUN, bar_of

SETUP = """import torch
from pathlib import Path
from lib.course import progress
progress.folder = Path.cwd
if torch is None:
    never_bound = 1"""
HEAD = "from lib.course.lean_optimizers.exercises import "
MISSPELT = (
    HEAD
    + """write


def my_sm3(rows, columns, gradient):
    nu = trch.minimum(rows[:, None], columns[None]) + gradient**2
    return nu, nu.amax(1), nu.amax(0)


write.check(my_sm3)"""
)
COMMA = HEAD + "predict\n\npredict.check(adam=1,5, adafactor=2)"
IN_VAIN = HEAD + "repair\n\nrepair.check(never_bound)"
MEANT = "trch is defined neither here nor above. Did you mean torch?"
POINT = "1,5 is not one number: a comma separates the arguments of a call."
OFFER = "Run the cells above, then check"


@pytest.fixture
def page(lab, folder):
    """A page with three exercises whose cells show the report of an earlier attempt."""
    sources = [SETUP, IN_VAIN, MISSPELT, COMMA]
    cells = [nbformat.v4.new_code_cell(source, id=f"cell{n}") for n, source in enumerate(sources)]
    for cell in cells[1:]:
        cell.outputs = [nbformat.v4.new_output("stream", text="An earlier report.")]
    notebook = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": KERNEL})
    nbformat.write(notebook, folder / "11-slips.ipynb")
    page = lab.open("11-slips")
    yield page
    page.context.close()


def check(page, exercise):
    """Presses Check; gives the exercise's bar."""
    bar = bar_of(page, exercise)
    bar.get_by_role("button", name="Check", exact=True).click()
    return bar


def shown(page, place, text):
    """Waits for a text in a cell's output, which holds nothing of an earlier report."""
    outputs = page.locator(".jp-Cell").nth(place).locator(".jp-OutputArea-output")
    outputs.get_by_text(text).first.wait_for()
    assert "An earlier report" not in " ".join(outputs.all_inner_texts())


def test_a_slip_is_run_and_explained(page):
    """The cells above are offered once at most, and never for a name that none of them binds."""
    page.evaluate(RUN, 0)
    bar = check(page, "write")
    bar.get_by_text(MEANT).wait_for()
    shown(page, 2, "NameError")
    assert not bar.get_by_role("button", name=OFFER).count()
    page.screenshot(path=SCREENSHOTS / "exercise-slip.png")
    assert not complaints(page, ".mr-bar")

    bar = check(page, "predict")
    bar.get_by_text(POINT).wait_for()
    shown(page, 3, "SyntaxError")

    bar = check(page, "repair")
    bar.get_by_text("never_bound is not known to the kernel yet.").wait_for()
    bar.get_by_role("button", name=OFFER).click()
    shown(page, 1, "name 'never_bound' is not defined")
    for _ in range(2):
        check(page, "repair")
        page.wait_for_function(
            "() => !document.querySelector('[aria-label=\"Exercise repair\"] [aria-disabled=true]')"
        )
        assert not page.get_by_role("button", name="Run the cells above").count()


def test_the_sentence_comes_with_shift_enter_too_and_goes_with_the_slip(page):
    bar = bar_of(page, "predict")
    bar.wait_for()
    page.evaluate(RUN, 3)
    bar.get_by_text(POINT).wait_for()
    source = "jupyterapp.shell.currentWidget.content.widgets[3].model.sharedModel"
    page.evaluate(f"text => {source}.setSource(text)", COMMA.replace("1,5", "1.5"))
    page.evaluate(RUN, 3)
    bar.get_by_text(POINT).wait_for(state="detached")


def test_a_keyword_of_a_check_is_no_name_of_a_cell_above(lab, folder):
    """In a fresh kernel; `adam` above needs what no cell has run yet."""
    sources = ["import os as helper", "def adam(x):\n    return helper.path.join(x)"]
    sources += [HEAD + "predict\n\npredict.check(adam=12, adafactor=2)"]
    cells = [nbformat.v4.new_code_cell(source, id=f"cell{n}") for n, source in enumerate(sources)]
    notebook = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": KERNEL})
    nbformat.write(notebook, folder / "11-keywords.ipynb")
    page = lab.open("11-keywords")
    bar = check(page, "predict")
    shown(page, 2, "Not yet")
    assert not bar.get_by_role("button", name=OFFER).count()
    page.context.close()
