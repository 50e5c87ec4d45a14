"""What the reader has solved is remembered, and costs nothing where it cannot be."""

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from lib.course import progress
from lib.course.checks.verdict import Hints
from tests.every import every

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The reader's own folder, which is not made yet."""
    monkeypatch.setattr(progress, "folder", lambda: tmp_path / "my-chapters")
    return tmp_path / "my-chapters"


def test_every_exercise_of_every_chapter_is_found_in_the_order_of_the_chapter():
    names = progress.exercises()
    assert names["00-ranks"] == ["predict", "write", "repair", "measure", "invent"]
    assert names["03-fsdp"] == ["predict", "write", "repair", "reshard", "choose"]
    assert names["06-pipeline-bubbles"][:3] == ["write", "repair", "predict"]
    assert names["09-recomputation"][-1] == "by_hand"
    modules = sorted((ROOT / "lib/course").glob("*/exercises.py"))
    assert len(names) == len(modules) and every(names.values())
    objects = 0
    for path in modules:
        module = import_module(f"lib.course.{path.parent.name}.exercises")
        objects += sum(isinstance(thing, Hints) for thing in vars(module).values())
    assert sum(map(len, names.values())) == objects


def test_the_exercises_are_found_without_torch():
    code = "import sys; from lib.course import progress; progress.exercises(); "
    code += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=120).returncode == 0


def test_what_is_solved_is_kept_in_its_order_and_once(folder):
    assert progress.solved() == {}
    for exercise in ("write", "predict", "write"):
        progress.remember("03-fsdp", exercise)
    progress.remember("00-ranks", "measure")
    assert progress.solved() == {"00-ranks": ["measure"], "03-fsdp": ["write", "predict"]}
    assert json.loads((folder / "progress.json").read_text()) == progress.solved()


@pytest.mark.parametrize("text", ["", "[]", '{"00-ranks": 3}', "\x00", '{"00-ranks": [[1]]}'])
def test_a_file_that_is_not_ours_counts_as_nothing_solved(folder, text):
    folder.mkdir()
    (folder / "progress.json").write_text(text)
    assert not progress.solved().get("00-ranks")
    progress.remember("00-ranks", "write")
    assert progress.solved() == {"00-ranks": ["write"]}


def test_a_folder_that_cannot_be_written_costs_nothing(folder):
    folder.write_text("a file in its place")
    progress.remember("00-ranks", "write")
    assert progress.solved() == {}


def test_kernels_that_write_at_once_lose_nothing(folder):
    code = """
import sys
from pathlib import Path
from lib.course import progress
progress.folder = lambda: Path(sys.argv[1])
for exercise in progress.exercises()[sys.argv[2]]:
    progress.remember(sys.argv[2], exercise)
"""
    some = list(progress.exercises())[:6]
    kernels = [
        subprocess.Popen([sys.executable, "-c", code, str(folder), chapter], cwd=ROOT)
        for chapter in some
    ]
    assert [kernel.wait(60) for kernel in kernels] == [0] * len(some)
    assert progress.solved() == {chapter: progress.exercises()[chapter] for chapter in some}
