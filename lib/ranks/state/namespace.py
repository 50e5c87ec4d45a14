"""The names of a rank: what `%%ranks` cells make there, and who else sees them."""

import ast
import builtins
import functools
import sys
import types

from lib.ranks.state.ambient import ambient


def renew() -> None:
    """Give this process a `__main__` of its own, which holds the names of `%%ranks` cells."""
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = module


def names() -> dict:
    """Give the names that live on this rank between calls."""
    return sys.modules["__main__"].__dict__


def take(given: dict) -> None:
    """Put names of the notebook among this rank's own."""
    names().update(given)


def run_cell(source: str, filename: str) -> None:
    """Run a cell's text in this rank's names and print the value of its last line, if any."""
    here = names()
    for value in list(here.values()):
        lend(value)
    tree, last = ast.parse(source, filename), None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = ast.Expression(tree.body.pop().value)
    exec(compile(tree, filename, "exec"), here)
    value = eval(compile(last, filename, "eval"), here) if last else None
    if value is not None:
        print(repr(value))
    ambient.keep()


def lend(step) -> None:
    """Let a function from the notebook see this rank's names where it brought none of its own."""
    if isinstance(step, functools.partial):
        for part in (step.func, *filter(callable, step.args)):
            lend(part)
        return
    theirs = getattr(step, "__globals__", None)
    if theirs is None or theirs is names() or theirs.get("__name__") != "__main__":
        return
    lent = theirs.setdefault("__lent__", set())
    for name, value in names().items():
        if not name.startswith("__") and (name not in theirs or name in lent):
            theirs[name] = value
            lent.add(name)
