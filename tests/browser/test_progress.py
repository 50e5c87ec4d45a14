"""The progress of a long call in JupyterLab: it comes, it goes, and no file keeps it."""

import nbformat
import pytest

from lib.course.tools.run import KERNEL
from tests.browser.seen import SCREENSHOTS
from tests.browser.test_access import complaints

PART = ".many-ranks-progress"
DEFINITIONS = """
import os, time, torch, torch.distributed as dist
from lib import World
world = World(2)
def train(go):
    for step in range(2):
        print(f"step {step}: loss {2.5 - step:.3f}")
    while dist.get_rank() == 1 and not os.path.exists(go):
        time.sleep(0.05)
    dist.all_reduce(torch.ones(1))
"""
PRINTED = "".join(f"rank {r} │ step {s}: loss {2.5 - s:.3f}\n" for r in range(2) for s in range(2))


@pytest.fixture
def page(lab, folder):
    made = [DEFINITIONS, 'print("before"); world.run(train, "go");']
    cells = [nbformat.v4.new_code_cell(cell, id=f"cell-{i}") for i, cell in enumerate(made)]
    notebook = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": dict(KERNEL)})
    nbformat.write(notebook, folder / "progress.ipynb")
    page = lab.open("progress")
    yield page
    page.evaluate("() => jupyterapp.shell.currentWidget.sessionContext.shutdown()")
    page.context.close()


IDLE = "() => jupyterapp.shell.currentWidget.sessionContext.session.kernel.status === 'idle'"


def test_the_progress_of_a_long_call_comes_and_goes(page, folder):
    def order(name) -> None:
        page.evaluate("name => void jupyterapp.commands.execute(name)", name)

    def saved() -> list:
        page.evaluate("() => jupyterapp.commands.execute('docmanager:save')")
        return nbformat.read(folder / "progress.ipynb", as_version=4).cells[1].outputs

    order("notebook:run-all-cells")
    shown = page.locator(PART)
    shown.wait_for(timeout=120_000)  # a World starts
    shown.get_by_text("Rank 0 waits in all_reduce; rank 1 is running.").wait_for()
    shown.locator("pre", has_text="rank 1 │ step 1: loss 1.500").wait_for()
    assert shown.inner_text().startswith("0 of 2 ranks are done, ")
    assert [output.text for output in saved()] == ["before\n"]
    page.screenshot(path=SCREENSHOTS / "progress.png")
    assert not complaints(page, PART)
    (folder / "go").touch()
    shown.wait_for(state="detached")
    page.wait_for_function(IDLE)
    stream = {"output_type": "stream", "name": "stdout", "text": "before\n" + PRINTED}
    assert saved() == [stream]

    (folder / "go").unlink()
    order("notebook:run-cell")  # the last one
    shown.wait_for()
    order("notebook:interrupt-kernel")
    page.get_by_text("KeyboardInterrupt: stopped.").wait_for()
    shown.wait_for(state="detached")
    assert [output.output_type for output in saved()] == ["stream", "error"]
