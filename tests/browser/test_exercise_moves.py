"""Check keeps what was moved in a picture of its cell: it becomes the cell's text."""

import nbformat
import pytest

from lib.course.tools.run import KERNEL

SETUP = """from pathlib import Path
from lib.course import progress
progress.folder = Path.cwd"""
SHRINK = '''from lib.course.pipeline.exercises import shrink
from lib.draw import schedule

text = """"""
display(shrink.check(text))
schedule(shrink.start, par=shrink.par, limit=shrink.limit, text=text)'''
SOURCE = "() => jupyterapp.shell.currentWidget.content.widgets[1].model.sharedModel.getSource()"


@pytest.fixture
def exercise(lab, folder, request):
    """The page of exercise 4 of chapter 6, run once, and its bar."""
    path = folder / f"{request.node.name}.ipynb"
    cells = [
        nbformat.v4.new_code_cell(source, id=f"cell{n}") for n, source in enumerate([SETUP, SHRINK])
    ]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": KERNEL}), path)
    page = lab.open(path.stem)
    lab.run_all(page)
    page.locator("figure.mrom canvas").last.wait_for()
    yield page, page.get_by_role("group", name="Exercise shrink", exact=True)
    page.context.close()


def move(page, action):
    """Go to an action of rank 3 by keyboard, and move it to the right."""
    canvas, said = page.locator("figure.mrom canvas").last, page.locator(".mrom-announcement").last
    canvas.focus()
    page.keyboard.press("Home")
    for key, until in (
        ("ArrowDown", "rank 3"),
        ("ArrowLeft", "idle from 0"),
        ("ArrowRight", action),
    ):
        for _ in range(24):
            if until in said.inner_text():
                break
            page.keyboard.press(key)
            page.wait_for_timeout(50)
        assert until in said.inner_text()
    page.keyboard.press("]")
    page.wait_for_function("document.querySelector('figure.mrom').picture.state.edits.length === 1")


def quoted(page):
    return page.evaluate(SOURCE).split('"""')[1].strip()


def test_check_puts_moves_into_the_cell_and_asks_where_it_has_another_text(exercise):
    page, bar = exercise
    assert quoted(page) == ""
    check = bar.get_by_role("button", name="Check", exact=True)
    for action, row in (
        ("3W0", "3F0,3I0,3F1,3W0,3I1,3W1,3F2,3I2,3W2,3F3,3I3,3W3"),
        ("3W1", "3F0,3I0,3F1,3W0,3I1,3F2,3W1,3I2,3W2,3F3,3I3,3W3"),
    ):
        before = page.evaluate(SOURCE)
        move(page, action)
        check.click()
        page.wait_for_function(f"before => ({SOURCE})() !== before", arg=before)
        page.wait_for_function("() => !document.querySelector('.mr-bar [aria-disabled=true]')")
        assert quoted(page).splitlines()[3] == row, "the moves before are kept"
    before = quoted(page)
    move(page, "3W0")
    page.evaluate("""() => {
        const { sharedModel } = jupyterapp.shell.currentWidget.content.widgets[1].model;
        sharedModel.setSource(sharedModel.getSource().replace("3F0", "3F1"));
    }""")
    check.click()
    bar.get_by_text("The picture has moves that the text in the cell has not").wait_for()
    assert quoted(page) == before.replace("3F0", "3F1")
    assert page.evaluate("document.querySelector('figure.mrom').picture.state.edits.length") == 1
