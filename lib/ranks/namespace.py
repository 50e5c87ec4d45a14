"""The names of a rank: what `%%ranks` cells make there, and who else sees them."""

import ast
import builtins
import functools
import sys
import types


def renew() -> None:
    """Give this process a `__main__` of its own, which holds the names of `%%ranks` cells."""
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = module


def names() -> dict:
    """Give the names that live on this rank between calls."""
    return sys.modules["__main__"].__dict__


def run_cell(source: str, filename: str, given: dict) -> None:
    """Run a cell's text in this rank's names and print the value of its last line, if any."""
    here = names()
    here.update(given)
    for value in list(here.values()):
        lend(value)
    tree, last = ast.parse(source, filename), None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = ast.Expression(tree.body.pop().value)
    exec(compile(tree, filename, "exec"), here)
    value = eval(compile(last, filename, "eval"), here) if last else None
    if value is not None:
        print(repr(value))


def lend(step) -> None:
    """Let a function from the notebook see this rank's names where it brought none of its own."""
    while isinstance(step, functools.partial):
        step = step.args[0] if step.args and callable(step.args[0]) else step.func
    theirs = getattr(step, "__globals__", None)
    if theirs is None or theirs is names() or theirs.get("__name__") != "__main__":
        return
    lent = theirs.setdefault("__lent__", set())
    for name, value in names().items():
        if not name.startswith("__") and (name not in theirs or name in lent):
            theirs[name] = value
            lent.add(name)
