"""Answers the bar that JupyterLab shows below an exercise: names, slips, hints, solved or not.

`lib/course/site/lab/exercises.js` asks, beside the cells and without a trace in the notebook.
"""

import ast
import builtins
import difflib
import re
from importlib import import_module

from IPython import get_ipython

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.ListComp)
_SCOPES += (ast.SetComp, ast.DictComp, ast.GeneratorExp)
_COMMA = re.compile(r"=[^,=()\[\]{}\n]*?(?<![\w.])(\d+(?:,\d+)+)")  # in a call: `sent=3 * 1,5`
_BY_COMMA = ("positional argument follows keyword argument", "leading zeros")


class Answer(dict):
    """Holds what the bar is told, which reaches it as JSON."""

    def _repr_mimebundle_(self, **_) -> dict:
        return {"application/json": dict(self), "text/plain": ""}


def missing(sources: list[str], above: list[str]) -> Answer:
    """Return the names that cells use, and that the kernel would know had the cells above run."""
    bound = set().union(*map(_bound, above))
    return Answer(names=[name for name in _unknown(sources)[0] if name in bound])


def advice(sources: list[str], above: list[str]) -> Answer:
    """Return a sentence on a decimal comma or a misspelt name in cells; "" where there is none.

    A name that a cell above binds is not misspelt.
    """
    return Answer(text=next(filter(None, map(_comma, sources)), "") or _misspelt(sources, above))


def _misspelt(sources: list[str], above: list[str]) -> str:
    names, known = _unknown(sources)
    known |= set().union(*map(_bound, above))
    candidates = sorted(name for name in known if not name.startswith("_"))
    for name in names:
        if name not in known and (close := difflib.get_close_matches(name, candidates, 1, 0.7)):
            return f"`{name}` is defined neither here nor above. Did you mean `{close[0]}`?"
    return ""


def _unknown(sources: list[str]) -> tuple[list[str], set[str]]:
    """Return the names that cells use and nothing defines, and those that are known."""
    used, known = [], {*dir(builtins), *get_ipython().user_ns}
    for source in sources:
        for node in ast.walk(_tree(source)):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                used.append(node.id)
            known |= _defined(node)
    return [name for name in dict.fromkeys(used) if name not in known], known


def _tree(source: str) -> ast.Module:
    """Return a cell as a tree, which is empty where the cell is no Python."""
    try:
        return ast.parse(get_ipython().transform_cell(source))
    except SyntaxError:  # the cell says so itself when it runs
        return ast.Module([], [])


def _bound(source: str) -> set[str]:
    """Return the names that a cell binds for the cells below: none of a function's own."""
    names, nodes = set(), [_tree(source)]
    while nodes:
        node = nodes.pop()
        names |= _defined(node)
        nodes += [] if isinstance(node, _SCOPES) else ast.iter_child_nodes(node)
    return names


def _comma(source: str) -> str:
    """Return a sentence where a cell is no Python since a number in a call has a comma."""
    try:
        ast.parse(get_ipython().transform_cell(source))
    except SyntaxError as error:
        number = _COMMA.search(source)
        if number and (error.msg or "").startswith(_BY_COMMA):
            return _without_comma(number[1])
    return ""


def _without_comma(number: str) -> str:
    whole, *parts = number.split(",")
    why = f"`{number}` is not one number: a comma separates the arguments of a call."
    if len(parts) > 1:
        return f"{why} Write `{'_'.join([whole, *parts])}`."
    point = f"{why} Write `{whole}.{parts[0]}` with a point"
    return f"{point}, or `{whole}_{parts[0]}` for thousands." if len(parts[0]) == 3 else f"{point}."


def _defined(node: ast.AST) -> set[str]:
    """Return the names that one node of a program defines, in any scope."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.alias):
        return {(node.asname or node.name).split(".")[0]}
    if isinstance(node, ast.arg):
        return {node.arg}
    if isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
        return {node.name}
    return {node.id} if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else set()


def state(module: str, name: str) -> Answer:
    """Return whether the last verdict on an exercise was solved, and the hints that were shown."""
    exercise = getattr(import_module(module), name)
    shown = list(exercise.hints[: exercise.shown])
    return Answer(solved=exercise.solved, shown=shown, hints=len(exercise.hints))


def hint(module: str, name: str) -> Answer:
    """Show the next hint of an exercise; return its state."""
    getattr(import_module(module), name).next_hint()
    return state(module, name)
