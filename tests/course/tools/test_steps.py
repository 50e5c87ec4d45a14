"""The steps of `make test`: what fails beside others is tried again alone, and told."""

import sys

import pytest

from lib.course.tools import commands, steps

FIRST_TIME = """
from pathlib import Path
def test_good(): pass
def test_race():
    seen = Path(__file__).with_suffix(".seen")
    first = not seen.exists()
    seen.write_text("")
    assert not first
"""
ALWAYS = "def test_wrong(): assert False"
MANY = "import pytest\n@pytest.mark.parametrize('n', range(11))\ndef test_many(n): assert False\n"


@pytest.fixture
def ran(tmp_path, monkeypatch):
    """`ran(text)` gives the Run of a step with these tests, beside a step that passes."""

    def of(text, beside=True):
        file, other = tmp_path / "test_mine.py", tmp_path / "test_other.py"
        file.write_text(text)
        other.write_text("def test_other(): pass")
        monkeypatch.setattr(steps, "BESIDE", ["tests", "other"] if beside else [])
        mine, others = (
            [commands.pytest("--rootdir", str(tmp_path), str(f))] for f in (file, other)
        )
        monkeypatch.setattr(steps, "STEPS", {"tests": mine, "other": others})
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(commands, "ROOT", tmp_path)
        run = steps.Run()
        run.steps(["tests", "other"])
        return run

    return of


def test_what_passes_alone_is_told_and_fails_nothing(ran, capfd):
    run = ran(FIRST_TIME)
    assert run.raced == ["test_mine.py::test_race"] and run.failed == []
    assert steps.summary(run.counts, 1.0) == "3 passed in 1.0s"
    assert "tests: 1 that failed beside others, alone" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("text", "beside", "summary"),
    [
        (ALWAYS, True, "1 passed, 1 failed in 1.0s"),
        (MANY, True, "1 passed, 11 failed in 1.0s"),  # more than FEW: not tried again
        (FIRST_TIME, False, "1 passed, 1 failed in 1.0s"),  # nothing ran beside it
        ("import nothing_of_this_name", True, "1 passed, 1 errors in 1.0s"),
    ],
)
def test_what_fails_alone_fails_the_run(ran, text, beside, summary):
    run = ran(text, beside)
    assert len(run.failed) == 1 and run.failed[0].startswith("The step 'tests' failed at: python ")
    assert not run.raced and steps.summary(run.counts, 1.0) == summary


def test_a_step_that_runs_alone_is_not_tried_again(tmp_path, monkeypatch):
    file = tmp_path / "test_mine.py"
    file.write_text(FIRST_TIME)
    mine = [commands.pytest("--rootdir", str(tmp_path), str(file))]
    monkeypatch.setattr(steps, "STEPS", {"tests": mine})
    monkeypatch.setattr(steps, "BESIDE", ["tests", "other"])
    monkeypatch.setattr(commands, "ROOT", tmp_path)
    run = steps.Run()
    run.steps(["tests"])
    assert len(run.failed) == 1 and not run.raced


INTERRUPTED = """
import os, signal
def test_first(): pass
def test_pressed(): os.kill(os.getpid(), signal.SIGINT)
def test_never(): pass
"""


def test_a_run_that_was_interrupted_fails_and_says_so(ran):
    run = ran(INTERRUPTED, beside=True)
    assert len(run.failed) == 1 and run.failed[0].endswith(" (exit status 2, interrupted)")
    assert run.counts["tests"] < 3 and not run.raced
    other = commands.call([sys.executable, "-c", "raise SystemExit(2)"], {})
    assert other.ended == " (exit status 2)", "what is no pytest may mean something else by it"


WAITS = """
import time
from pathlib import Path
def test_waits():
    end = time.monotonic() + 60
    while not Path("made").exists():
        assert time.monotonic() < end
        time.sleep(0.1)
"""
MAKES = "from pathlib import Path\ndef test_makes(): Path('made').touch()"


def test_what_is_left_runs_beside_what_began_earlier(tmp_path, monkeypatch):
    """The third of three steps is carried out in the lane that is free first."""
    texts = {"tests": "def test_good(): pass", "waits": WAITS, "makes": MAKES}
    made = {}
    for name, text in texts.items():
        file = tmp_path / f"test_{name}.py"
        file.write_text(text)
        made[name] = [commands.pytest("--rootdir", str(tmp_path), str(file))]
    monkeypatch.setattr(steps, "STEPS", made)
    monkeypatch.setattr(steps, "BESIDE", ["tests", "waits", "makes"])
    monkeypatch.setattr(steps, "LANES", 2)
    monkeypatch.setattr(commands, "ROOT", tmp_path)
    run = steps.Run()
    run.steps(["tests", "waits", "makes"])
    assert not run.failed and steps.summary(run.counts, 1.0) == "3 passed in 1.0s"


def test_a_cell_is_tried_again_with_the_cells_before_it():
    chapter = commands.pytest(*commands.NBVAL, "chapters")
    again = commands.alone(chapter, ["chapters/02.ipynb::Cell 3", "chapters/02.ipynb::Cell 9"])
    assert again == commands.pytest(*commands.NBVAL, "chapters/02.ipynb")
