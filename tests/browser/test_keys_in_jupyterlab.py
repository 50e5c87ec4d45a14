"""Keys that mean JupyterLab's notebook also mean it where a picture has the keyboard."""

import nbformat
import pytest

from lib.course.tools.run import KERNEL

SOURCES = [
    'from lib.draw import guess\nguess("How many numbers?")',
    'from lib.draw import schedule\nschedule("gpipe", 2, 2)',
    "3",
]
RUN_ALL = """async () => {
    const { content, sessionContext } = jupyterapp.shell.currentWidget;
    await sessionContext.ready;
    await jupyterapp.commands.execute("notebook:run-all-cells");
    content.activeCellIndex = 0;
}"""
STATE = """() => {
    const { content } = jupyterapp.shell.currentWidget, held = document.activeElement;
    const at = content.widgets.findIndex(({ node }) => node.contains(held));
    return [content.widgets.map((cell) => cell.model.executionCount), content.activeCellIndex,
        content.mode, held.closest(".mrom") ? "picture" : `cell ${at}`];
}"""


@pytest.fixture
def page(lab, folder, request):
    path = folder / f"{request.node.name}.ipynb"  # a kernel belongs to the name
    cells = [nbformat.v4.new_code_cell(source, id=f"cell{n}") for n, source in enumerate(SOURCES)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": KERNEL}), path)
    page = lab.open(path.stem)
    page.evaluate(RUN_ALL)
    page.locator(".jp-OutputArea .mrom").last.wait_for()
    yield page
    page.context.close()


def state_of(page, counts):
    """Wait until the cells have run as often as said, and give where the keyboard is."""
    page.wait_for_function(
        "counts => jupyterapp.shell.currentWidget.content.widgets.every((cell, n) =>"
        "cell.model.executionCount === counts[n])",
        arg=counts,
    )
    return page.evaluate(STATE)[1:]


def test_shift_enter_goes_on_after_a_guess(page):
    box = page.locator(".mrom").get_by_role("textbox")
    box.fill("16")
    box.press("Enter")
    page.get_by_role("button", name="Guess again").wait_for()
    assert page.evaluate(STATE)[3] == "picture"
    page.keyboard.press("Shift+Enter")
    assert state_of(page, [4, 2, 3]) == [1, "command", "cell 1"]
    page.keyboard.press("Shift+Enter")
    assert state_of(page, [4, 5, 3]) == [2, "command", "cell 2"]


def test_a_picture_lets_its_cell_be_run_and_be_left(page):
    picture = page.locator(".jp-Notebook .jp-Cell").nth(1).locator(".mrom canvas").last
    picture.click()
    assert page.evaluate(STATE)[3] == "picture"
    page.keyboard.press("Control+Enter")
    assert state_of(page, [1, 4, 3]) == [1, "command", "cell 1"]
    for _ in range(2):
        picture.focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Escape")  # the tooltip,
        page.keyboard.press("Escape")  # the mark,
        page.keyboard.press("Escape")  # the picture
        assert page.evaluate(STATE)[1:] == [1, "command", "cell 1"]
    page.keyboard.press("ArrowDown")
    assert page.evaluate(STATE)[1] == 2, "keys are JupyterLab's again"
    picture.focus()
    page.locator(".jp-InputPrompt").nth(1).click()
    assert page.evaluate(STATE)[1:] == [1, "command", "cell 1"]
    assert page.evaluate(STATE)[0] == [1, 4, 3]
    picture.focus()
    page.keyboard.press("Alt+Enter")
    assert state_of(page, [1, 5, None, 3])[0] == 2, "a new cell stands below"
