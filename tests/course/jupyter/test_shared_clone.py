"""A clone that a class shares: its readers may read it, and keep what they do at home."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.course.tools.test_road import ROOT, call

# Runs a command in the folder $0, which is mounted read-only for it alone.
_MOUNT = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && cd "$0" && exec "$@"'


def read_only(folder, *words):
    """The words that run a command in a folder which it cannot write, even as root."""
    return ["unshare", "-m", "sh", "-c", _MOUNT, str(folder), *words]


# What a reader does who starts the course and runs the first cells of a chapter.
FIRST_CELLS = """
import sys
from pathlib import Path
import nbformat
from lib.course.tools import lab, run
from lib.predict import readers_folder, stored_calibrations
course = readers_folder.course()
print(*lab.at_home(course), *lab.opened("", course)[1], sep="\\n")
path = course / "my-chapters/00-ranks.ipynb"
notebook = nbformat.read(path, as_version=4)
notebook.cells = notebook.cells[:8]
notebook.cells.append(nbformat.v4.new_code_cell(
    "import lib, os; print(lib.__file__, sorted(os.listdir('..')))"))
nbformat.write(notebook, path)
done = run.execute(path)
print(done.cells[-1].outputs[0].text, stored_calibrations.path(2))
"""


@pytest.fixture
def reader(tmp_path):
    """The environment of a reader, with a home of their own."""
    if not shutil.which("unshare") or call(*read_only(tmp_path, "true")).returncode:
        pytest.skip("only root can mount a folder read-only, and only on Linux")
    home = tmp_path / "home"
    home.mkdir()
    environ = {"HOME": str(home), "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    return environ | {"RANKS_DEVICE": "cpu", "PYDEVD_DISABLE_FILE_VALIDATION": "1"}


def test_a_chapter_runs_from_a_clone_that_is_read_only(reader):
    """The copies could not be made, and JupyterLab opened the stored chapters."""
    words = read_only(ROOT, sys.executable, "-c", FIRST_CELLS)
    done = call(*words, env=reader, timeout=300)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    course = Path(reader["HOME"]) / "many-ranks"
    assert said[0] == f"What you do is kept in {course}, with links to the course in {ROOT}."
    assert said[1].startswith("Your own copies of the chapters are in my-chapters")
    listed = ["README.md", "book.yml", "chapters", "data", "lib", "my-chapters"]
    assert said[-2] == f"{ROOT / 'lib/__init__.py'} {listed}"
    assert said[-1].strip() == str(course / "my-chapters/this-machine-2-ranks.yaml")
    assert (course / "my-chapters/images").is_dir()


def test_an_environment_that_is_ready_is_used_as_it_is(reader, tmp_path):
    """setup.sh installed anew where a clone had another path, and pip failed."""
    clone = tmp_path / "clone"
    (clone / "lib/course/tools").mkdir(parents=True)
    shutil.copy(ROOT / "lib/course/tools/setup.sh", clone / "lib/course/tools")
    setup = read_only(clone, "sh", "lib/course/tools/setup.sh")
    done = call(*setup, env=reader)
    assert done.returncode == 1
    assert done.stderr == (
        f"{clone} cannot be written and has no .venv that is ready: its owner calls "
        "`make lab` once, or you clone the course into a folder of yours.\n"
    )
    (clone / ".venv/bin").mkdir(parents=True)
    (clone / ".venv/.ready").write_text("of another path")
    python = clone / ".venv/bin/python"
    python.write_text("#!/bin/sh\nexit 0\n")
    python.chmod(0o755)
    done = call(*setup, env=reader)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
