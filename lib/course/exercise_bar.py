"""Answers the bar that JupyterLab shows below an exercise: missing names, hints, and solved or not.

`lib/course/site/lab/exercises.js` asks, beside the cells and without a trace in the notebook.
"""

import ast
import builtins
from importlib import import_module

from IPython import get_ipython


class Answer(dict):
    """Holds what the bar is told, which reaches it as JSON."""

    def _repr_mimebundle_(self, **_) -> dict:
        return {"application/json": dict(self), "text/plain": ""}


def missing(sources: list[str]) -> Answer:
    """Return the names that cells use, and that neither they nor the kernel define."""
    used, known = [], {*dir(builtins), *get_ipython().user_ns}
    for source in sources:
        try:
            tree = ast.parse(get_ipython().transform_cell(source))
        except SyntaxError:  # the cell says so itself when it runs
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                used.append(node.id)
            known |= _defined(node)
    return Answer(names=[name for name in dict.fromkeys(used) if name not in known])


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
