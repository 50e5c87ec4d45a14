"""A clone that a class shares: its readers may read it, and keep what they do at home."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.course.tools.test_road import ROOT, call

NOBODY = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
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
def reader():
    """The environment and the home of a user to whom this tree is read-only."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("only root can become a user who may not write this tree")
    home = Path(tempfile.mkdtemp(dir="/tmp"))
    os.chown(home, 65534, 65534)
    environ = {"HOME": str(home), "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    environ |= {"RANKS_DEVICE": "cpu", "PYDEVD_DISABLE_FILE_VALIDATION": "1", "TMPDIR": str(home)}
    look = [*NOBODY, sys.executable, "-c", "import lib, torch"]
    if subprocess.run(look, env=environ, cwd="/", capture_output=True).returncode:
        pytest.skip("this tree lies where other users may not look")
    yield environ, home
    shutil.rmtree(home)


def test_a_chapter_runs_from_a_clone_that_is_read_only(reader):
    """The copies could not be made, and JupyterLab opened the stored chapters."""
    environ, home = reader
    done = call(*NOBODY, sys.executable, "-c", FIRST_CELLS, env=environ, cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    course = home / "many-ranks"
    assert said[0] == f"What you do is kept in {course}, with links to the course in {ROOT}."
    assert said[1].startswith("Your own copies of the chapters are in my-chapters")
    listed = ["README.md", "book.yml", "chapters", "data", "lib", "my-chapters"]
    assert said[-2] == f"{ROOT / 'lib/__init__.py'} {listed}"
    assert said[-1].strip() == str(course / "my-chapters/this-machine-2-ranks.yaml")
    assert (course / "my-chapters/images").is_dir()


def test_an_environment_that_is_ready_is_used_as_it_is(reader):
    """setup.sh installed anew where a clone had another path, and pip failed."""
    environ, home = reader
    clone = Path(tempfile.mkdtemp(dir="/tmp"))
    clone.chmod(0o755)
    try:
        (clone / "lib/course/tools").mkdir(parents=True)
        shutil.copy(ROOT / "lib/course/tools/setup.sh", clone / "lib/course/tools")
        setup = [*NOBODY, "sh", "lib/course/tools/setup.sh"]
        done = call(*setup, cwd=clone, env=environ)
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
        done = call(*setup, cwd=clone, env=environ)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    finally:
        shutil.rmtree(clone)
