"""What the kernel answers the bar below an exercise, and what it remembers."""

from types import SimpleNamespace

import IPython
import pytest

from lib.course import exercise_bar, progress
from lib.course.lean_optimizers import exercises

MODULE = "lib.course.lean_optimizers.exercises"
RIGHT = dict(exercises.predict.answers)


@pytest.fixture
def shell(monkeypatch):
    """A notebook's shell that knows `world`, whose cells are as Python wants them."""
    made = SimpleNamespace(user_ns={"world": 1}, transform_cell=lambda source: source)
    monkeypatch.setattr(exercise_bar, "get_ipython", lambda: made)
    monkeypatch.setattr(IPython, "get_ipython", lambda: made)
    return made


@pytest.mark.parametrize(
    ("sources", "names"),
    [
        (["write.check(attempt, world)"], ["attempt", "write"]),
        (["def attempt(x): return x + y", "write = 1\nwrite.check(attempt, world)"], ["y"]),
        (["from a import b as c, d\nimport e.f\nc(d, e, print)"], []),
        (["def attempt(x, *rest, k=1): return [z for z in rest], x, k\nattempt(1)"], []),
        (["class A(B):\n    def f(self): return self"], ["B"]),
        (["this is no Python"], []),
    ],
)
def test_the_names_that_cells_lack_are_told(shell, sources, names):
    above = ["attempt = write = y = B = 1"]
    assert exercise_bar.missing(sources, above) == {"names": names}
    assert exercise_bar.missing(sources, [])["names"] == [], "no cell above would help"


BINDINGS = [
    "{} = 1", "a, (*{}, b) = 1, [2]", "{}: int = 1", "import {}", "import a.b as {}",
    "from a import (\n    b,\n    {},\n)", "def {}(): ...", "class {}: ...", "for {} in (): ...",
    "with open('a') as {}: ...", "if (({} := 1)): ...", "if True:\n    {} = 1", "{} += 1",
]  # fmt: skip
NO_BINDINGS = [
    "{}", "a.{} = 1", "# {} = 1", "'{} = 1'", "def a({}): {} = 1", "lambda {}: 1",
    "class A:\n    {} = 1", "[{} for {} in ()]", "this is no Python\n{} = 1", "f({}=1)",
]  # fmt: skip


@pytest.mark.parametrize("binding", BINDINGS + NO_BINDINGS)
def test_the_cells_above_are_offered_only_for_a_name_that_they_bind(shell, binding):
    """A misspelt name would be missing still, however often they run."""
    names = exercise_bar.missing(["weights + weghts"], [binding.replace("{}", "weights")])["names"]
    assert names == (["weights"] if binding in BINDINGS else [])


@pytest.mark.parametrize(
    ("source", "above", "text"),
    [
        ("trch.cat([])", ["import torch"],
         "`trch` is defined neither here nor above. Did you mean `torch`?"),
        ("def f(weights): return weghts", [],
         "`weghts` is defined neither here nor above. Did you mean `weights`?"),
        ("wrld.size", [], "`wrld` is defined neither here nor above. Did you mean `world`?"),
        ("trch.cat([])", ["import torch", "trch = torch"], ""),
        ("unlike.anything", ["import torch"], ""),
        ("p.check(sent=1,5, devices=2)", [],
         "`1,5` is not one number: a comma separates the arguments of a call. "
         "Write `1.5` with a point."),
        ("p.check(\n    devices=2,\n    sent=3 * -0,05,\n)", [],
         "`0,05` is not one number: a comma separates the arguments of a call. "
         "Write `0.05` with a point."),
        ("p.check(sent=1,500, devices=2)", [],
         "`1,500` is not one number: a comma separates the arguments of a call. "
         "Write `1.500` with a point, or `1_500` for thousands."),
        ("p.check(sent=1,500,000)", [],
         "`1,500,000` is not one number: a comma separates the arguments of a call. "
         "Write `1_500_000`."),
        ("p.check(shape=(1,5), devices=2, 3)", [], ""),
        ("world.check(shape=(1,5))", [], ""),
        ("p.check(sent=1,5", [], ""),
    ],
)  # fmt: skip
def test_a_slip_that_ends_in_an_error_gets_a_sentence(shell, source, above, text):
    assert exercise_bar.advice([source], above) == {"text": text}


def test_hints_come_one_by_one_and_reach_the_page_as_json(shell, monkeypatch):
    monkeypatch.setattr(exercises.repair, "shown", 0)
    monkeypatch.setattr(exercises.repair, "solved", False)
    hints = exercises.repair.hints
    for number in (1, 2, 3, 3):
        answer = exercise_bar.hint(MODULE, "repair")
        assert answer == {"solved": False, "shown": list(hints[:number]), "hints": 3}
        assert answer._repr_mimebundle_()["application/json"] == answer
    assert exercise_bar.state(MODULE, "repair") == answer


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The reader's own folder, which is not made yet."""
    monkeypatch.setattr(progress, "folder", lambda: tmp_path / "my-chapters")
    return tmp_path / "my-chapters"


def test_what_is_solved_in_the_readers_copy_is_remembered(shell, folder, monkeypatch):
    copy = folder / "11-lean-optimizers.ipynb"
    monkeypatch.setenv("JPY_SESSION_NAME", str(copy))
    exercises.predict.check(adam=1)
    assert progress.solved() == {} and not exercises.predict.solved
    verdict = exercises.predict.check(**RIGHT)
    assert verdict.solved and exercises.predict.solved
    assert progress.solved() == {"11-lean-optimizers": ["predict"]}


@pytest.mark.parametrize(
    "path",
    ["", "chapters/11-lean-optimizers.ipynb", "my-chapters/03-fsdp-kept-2026-11-26.ipynb",
     "my-chapters/07-asynchronous-pipelines-kept.ipynb", "my-chapters/mine.ipynb"],
)  # fmt: skip
def test_nothing_is_remembered_outside_a_copy(shell, folder, monkeypatch, path):
    monkeypatch.setenv("JPY_SESSION_NAME", path and str(folder.parent / path))
    assert exercises.predict.check(**RIGHT).solved
    assert not folder.exists()


def test_nothing_is_remembered_outside_a_notebook(folder, monkeypatch):
    """A program that is started from a cell, such as a test, inherits the name of its notebook."""
    monkeypatch.setenv("JPY_SESSION_NAME", str(folder / "11-lean-optimizers.ipynb"))
    assert exercises.predict.check(**RIGHT).solved
    assert not folder.exists()
