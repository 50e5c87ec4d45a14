"""Whatever an exercise of any chapter is called with, it answers with a verdict, never an error."""

import inspect
import math
from decimal import Decimal
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch

from lib import World
from lib.course.checks.choices import Choices
from lib.course.checks.numbers import Numbers
from lib.course.checks.verdict import Hints, Verdict

ROOT = Path(__file__).parents[2]


def exercises():
    """Every exercise of every chapter, with a name for the test."""
    for path in sorted((ROOT / "lib/course").glob("*/exercises.py")):
        module = import_module(f"lib.course.{path.parent.name}.exercises")
        for name, thing in vars(module).items():
            if isinstance(thing, Hints):
                yield pytest.param(thing, id=f"{path.parent.name}-{name}")


def raises(*_):
    raise ValueError("no idea")


def takes_nothing():
    return 1


def returns(value):
    def attempt(*_):
        return value

    return attempt


class NoSuchThing:
    """A class that is none of those asked for."""


class NoMethods(torch.autograd.Function):
    """An autograd function whose forward and backward are missing."""


class NotAStep(torch.optim.Optimizer):
    """An optimizer that makes no step."""

    def __init__(self, params, **options):
        super().__init__(params, options)

    def step(self):
        raise RuntimeError("no step")


VALUES = [
    None, ..., 3, -1, 0, 0.5, math.nan, math.inf, 10**400, 1j, True, "one", "", "1,5", b"x", (1, 5),
    [], [1, 2], [None], {}, {"a": 1}, {1: 2}, set(), object(), Decimal("1.5"), range(3),
    torch.ones(3), torch.tensor(3.5), torch.ones(0), np.float64(7.25), np.ones(2), np.bool_(True),
]  # fmt: skip
CALLABLES = [
    raises, takes_nothing, int, NoSuchThing, NoMethods, NotAStep, len, print,
    returns(3), returns("text"), returns([]), returns({"a": "b"}), returns(torch.ones(3)),
    returns((torch.ones(2), None)), returns(math.nan), returns([None, "0F0"]), returns(object),
]  # fmt: skip
SLOW = {"invent", "smallest"}  # they train, or run large sizes


def calls(exercise, world):
    """Give the arguments of calls that make no sense: each argument is nonsense once or more."""
    if isinstance(exercise, Numbers | Choices):
        names = list(exercise.answers if isinstance(exercise, Numbers) else exercise.right)
        first = (world,) if "world" in inspect.signature(exercise.check).parameters else ()
        nonsense = VALUES + CALLABLES if isinstance(exercise, Numbers) else VALUES[:18] + [raises]
        yield from ((first, dict.fromkeys(names, value)) for value in nonsense)
        yield first, {"no_such_name": 1}
        yield (*first, 1, 2, 3), {}
        return
    parameters = [p.name for p in inspect.signature(exercise.check).parameters.values()]
    good, is_slow = {"world": world}, exercise.name in SLOW
    for value in VALUES + (CALLABLES[:4] if is_slow else CALLABLES):
        yield (), {name: good.get(name, value) for name in parameters}
    for name in parameters:
        for value in VALUES if name == "world" else VALUES[:6]:
            other = {other: good.get(other, raises) for other in parameters}
            yield (), other | {name: value}
    yield (), {}
    yield tuple(VALUES[:9]), {}
    yield (), {"no_such_name": 1}


@pytest.mark.parametrize("exercise", exercises())
def test_nonsense_gets_a_verdict_that_is_not_solved(exercise, worlds, monkeypatch):
    world, count = worlds(4), 0
    if hasattr(exercise, "evidence"):  # it runs five programs each time
        monkeypatch.setattr(exercise, "evidence", lambda world: "", raising=False)
    for args, kwargs in calls(exercise, world):
        verdict = exercise.check(*args, **kwargs)
        assert isinstance(verdict, Verdict), (args, kwargs)
        assert not verdict.solved, (args, kwargs, verdict)
        assert "Traceback" not in repr(verdict), (args, kwargs, verdict)
        count += 1
    assert count > 20


def test_a_world_that_is_closed_is_told():
    write = import_module("lib.course.ranks.exercises").write
    world = World(1)
    world.close()
    assert "This World is closed." in write.check(takes_nothing, world).text
    assert "is not a World" in write.check(takes_nothing, World).text
