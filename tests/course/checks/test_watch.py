"""A check that runs the reader's function for long: what is told of it, and how it is stopped."""

import re
import time

import pytest

from lib.course.checks.watch import Watch
from tests.ranks.kernel.test_progress import OVER, watched

DEFINITIONS = """
import time
from lib.course.pipeline.exercises import write
def my_row(rank, stages, m):
    while True:
        time.sleep(0.01)
def short(rank, stages, m):
    return []
"""


notebook = watched(DEFINITIONS)


def test_a_function_that_does_not_end_is_told_and_stopped_in_few_lines(notebook):
    began = time.monotonic()
    stop = notebook.manager.interrupt_kernel
    shown, told = notebook.watch("write.check(my_row)", stop)
    (when, first), last = told[0], told[-1][1]
    assert 1.9 < when - began < 20
    assert re.fullmatch(
        r"The check has been running for \d+ s, now in `my_row`\. "
        r"Stop it with ■ if it should have ended\.",
        first["text"],
    )
    assert last == OVER, "nothing stays"
    assert re.fullmatch(
        r"KeyboardInterrupt: stopped after \d+ s in `my_row`, cell In\[1\], line 5:\n"
        r"    time\.sleep\(0\.01\)",
        shown,
    )


def test_a_short_check_tells_nothing_also_when_the_cell_goes_on(notebook):
    shown, told = notebook.watch("print(write.check(short)); time.sleep(3)")
    assert not told and shown.startswith("Not yet.")


def test_what_is_not_the_readers_code_is_not_said_to_be_so(notebook):
    source = (
        "def library():\n    import lib.course.checks.watch as w\n    return w._stopped(None, 4)"
    )
    assert notebook.cell(source + "\nprint(library())") == (
        "stopped after 4 s in the check itself, not in your code.\n"
    )


def test_a_script_that_is_interrupted_shows_where_it_was():
    """Its functions are in no cell, so nothing is said of whose code was stopped."""
    with pytest.raises(KeyboardInterrupt, match="^pressed$"), Watch():
        raise KeyboardInterrupt("pressed")
