"""A cell that takes long says so in JupyterLab before it runs, and stores nothing of it."""

import nbformat

from lib.course.tools.run import KERNEL

NOTES = ".jp-Notebook .many-ranks-seconds"


def test_a_cell_that_takes_long_says_so_below_its_code(lab, folder):
    path = folder / "takes-long.ipynb"
    takes = {"many_ranks": {"seconds": 30}}
    long = nbformat.v4.new_code_cell("1 + 1", id="long0001", metadata=takes)
    cells = [nbformat.v4.new_code_cell("2 + 2", id="short001"), long]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": KERNEL}), path)
    page = lab.open(path.stem)
    page.locator(NOTES).wait_for()
    assert page.locator(NOTES).all_inner_texts() == ["takes about 30 s"]
    note, code = (
        page.locator(f".jp-CodeCell:nth-child(2) {part}").bounding_box()
        for part in (".many-ranks-seconds", ".jp-InputArea-editor")
    )
    assert code["y"] < note["y"] < code["y"] + code["height"] + 30
    lab.run_all(page)
    page.evaluate("() => jupyterapp.commands.execute('docmanager:save')")
    assert page.locator(NOTES).count() == 1
    saved = path.read_text("utf-8")
    assert '"text/plain"' in saved and "about 30 s" not in saved
    page.context.close()
