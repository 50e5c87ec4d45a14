"""A check whose function does not end, in JupyterLab: a line says so, and no file keeps it."""

import nbformat

from lib.course.tools.run import KERNEL
from tests.browser.seen import SCREENSHOTS
from tests.browser.test_access import complaints
from tests.browser.test_exercise_slips import check

PART = ".many-ranks-progress"
SOURCE = """from lib.course.pipeline.exercises import write


def my_row(rank, stages, m):
    while True:
        pass


write.check(my_row)"""


def test_a_check_that_does_not_end_says_so_and_is_stopped_in_few_lines(lab, folder):
    path = folder / "long-check.ipynb"
    cells = [nbformat.v4.new_code_cell(SOURCE, id="cell0")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": KERNEL}), path)
    page = lab.open(path.stem)
    check(page, "write")
    shown = page.locator(PART)
    shown.get_by_text("now in my_row. Stop it with ■").wait_for()
    assert not shown.get_by_role("progressbar").count(), "it tells of no ranks"
    page.screenshot(path=SCREENSHOTS / "long-check.png")
    assert not complaints(page, PART)
    page.evaluate("() => void jupyterapp.commands.execute('notebook:interrupt-kernel')")
    page.locator(".jp-OutputArea-output").get_by_text("in `my_row`, cell In[1], line").wait_for()
    shown.wait_for(state="detached")
    page.evaluate("() => jupyterapp.commands.execute('docmanager:save')")
    (output,) = nbformat.read(path, as_version=4).cells[0].outputs
    assert output.output_type == "error" and "checks/" not in "".join(output.traceback)
    assert len("\n".join(output.traceback).splitlines()) == 2
    page.context.close()
