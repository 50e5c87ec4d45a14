"""The progress of a long call in JupyterLab: it comes, it goes, and no file keeps anything of it."""

import nbformat
import pytest

from lib.course.tools.run import KERNEL
from tests.browser.seen import SCREENSHOTS
from tests.browser.test_access import complaints

PART = ".many-ranks-progress"
DEFINITIONS = """
import time, torch, torch.distributed as dist
from lib import World
world = World(2)
def train(pause):
    for step in range(2):
        print(f"step {step}: loss {2.5 - step:.3f}")
        time.sleep(pause * dist.get_rank() / 2)
    dist.all_reduce(torch.ones(1))
"""
PRINTED = "".join(f"rank {r} │ step {s}: loss {2.5 - s:.3f}\n" for r in range(2) for s in range(2))


@pytest.fixture
def page(lab, folder):
    made = [DEFINITIONS, 'print("before"); world.run(train, 8);']
    cells = [nbformat.v4.new_code_cell(cell, id=f"cell-{i}") for i, cell in enumerate(made)]
    notebook = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": dict(KERNEL)})
    nbformat.write(notebook, folder / "progress.ipynb")
    page = lab.open("progress")
    yield page
    page.evaluate("() => jupyterapp.shell.currentWidget.sessionContext.shutdown()")
    page.context.close()


def test_the_progress_of_a_long_call_comes_and_goes(page, lab, folder):
    def saved() -> list:
        page.evaluate("() => jupyterapp.commands.execute('docmanager:save')")
        return nbformat.read(folder / "progress.ipynb", as_version=4).cells[1].outputs

    page.evaluate("() => void jupyterapp.commands.execute('notebook:run-all-cells')")
    shown = page.locator(PART)
    shown.get_by_text("Rank 0 waits in all_reduce; rank 1 is running.").wait_for()
    shown.locator("pre", has_text="rank 1 │ step 1: loss 1.500").wait_for()
    assert shown.inner_text().startswith("0 of 2 ranks are done, ")
    assert shown.locator("xpath=ancestor::*[contains(@class, 'jp-Cell ')]//pre").count() == 2
    assert [output.text for output in saved()] == ["before\n"]
    page.screenshot(path=SCREENSHOTS / "progress.png")
    assert not complaints(page, PART)
    shown.wait_for(state="detached")
    stream = {"output_type": "stream", "name": "stdout", "text": "before\n" + PRINTED}
    page.wait_for_function(
        "() => jupyterapp.shell.currentWidget.sessionContext.session.kernel.status === 'idle'"
    )
    assert saved() == [stream]


def test_the_stop_button_takes_the_progress_away(page):
    page.evaluate("() => void jupyterapp.commands.execute('notebook:run-all-cells')")
    page.locator(PART).wait_for()
    page.evaluate("() => jupyterapp.commands.execute('notebook:interrupt-kernel')")
    page.locator(PART).wait_for(state="detached", timeout=5000)
    page.get_by_text("KeyboardInterrupt: stopped.").wait_for()
