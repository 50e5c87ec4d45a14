"""A method of a recipe, and the order in which kinds of methods are applied."""

from collections.abc import Callable
from dataclasses import dataclass

ORDER = ("tensor", "context", "pipeline", "data")  # of the kinds of methods


@dataclass(frozen=True)
class Method:
    """One method of a recipe, and the axes of the mesh along which it works.

    `wrap(run)` makes from `run.model` what computes from then on, and `optimizer(run, optimizer
    class, its arguments)` the optimizer of it. `refuse(run, methods)` returns why the method cannot
    work here, in a sentence, or "".
    """

    name: str
    kind: str
    axes: tuple[str, ...]
    wrap: Callable
    optimizer: Callable
    refuse: Callable = lambda run, methods: ""


def has(methods, kind: str) -> bool:
    """Return whether one of the methods is of this kind."""
    return any(method.kind == kind for method in methods)
