"""Looks at what a check is called with, and says in a sentence what does not fit.

A check's signature says what it takes: a `Callable` is a function of the reader's, a `type[...]` a
class, a `str` is text, and `world` is a World that is open.
"""

import inspect
from collections.abc import Callable
from types import UnionType
from typing import get_args, get_origin

from lib.course.checks.read_number import is_missing
from lib.ranks.world import World


class NotBegun(Exception):
    """Raised where an argument is still None; its text says what is missing."""


def name_of(attempt) -> str:
    """Return the name of a reader's function or class, as it stands in a sentence."""
    return getattr(attempt, "__name__", "your function")


def refusal(check: Callable, name: str, args: tuple, kwargs: dict) -> str:
    """Return why `check` cannot be called so; the text is empty where it can.

    `name` is the exercise's. Raises NotBegun where a function, a class or a text is not there yet.
    """
    signature = inspect.signature(check)
    try:
        bound = signature.bind(None, *args, **kwargs).arguments
    except TypeError as error:
        return f"{name}.check cannot be called so: {error}. {_usage(signature, name)}"
    for key, value in list(bound.items())[1:]:
        parameter = signature.parameters[key]
        if parameter.kind is parameter.VAR_KEYWORD:
            continue
        kinds = _kinds(parameter.annotation)
        if key == "world":
            text = _no_world(value)
        elif type(None) in kinds and is_missing(value):
            continue
        else:
            text = next((_misfit(key, value, kind) for kind in kinds if kind is not None), "")
        if text:
            return text
    return ""


def _kinds(annotation) -> tuple:
    """Return the types that an annotation allows."""
    return get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)


def _misfit(key: str, value, kind) -> str:
    """Return a sentence where a value is not of a kind; kinds that say nothing allow everything."""
    origin = get_origin(kind) or kind
    if origin is Callable:
        if is_missing(value):
            raise NotBegun("There is no function yet.")
        hint = "Give the name of your function, without parentheses."
        return "" if callable(value) else f"{_said(value)} is not a function. {hint}"
    if origin is type:
        (base,) = get_args(kind)
        if is_missing(value):
            raise NotBegun("There is no class yet.")
        fits = isinstance(value, type) and issubclass(value, base)
        hint = f"Give a class that inherits from {base.__name__}, without parentheses."
        return "" if fits else f"{_said(value)} is no such class. {hint}"
    if kind is str:
        if is_missing(value):
            raise NotBegun("There is no text yet.")
        return "" if isinstance(value, str) else f"{_said(value)} is not text. Put it in quotes."
    if isinstance(kind, type) and kind not in (inspect.Parameter.empty, type(None)):
        fits = isinstance(value, kind)
        return (
            "" if fits else f"`{key}` must be of type {kind.__name__}, not {type(value).__name__}."
        )
    return ""


def _no_world(world) -> str:
    if not isinstance(world, World):
        return f"{_said(world)} is not a World. Make one with `world = World(4)`, and pass `world`."
    return "" if world.is_open else "This World is closed. Make a new one: `world = World(4)`."


def _said(value) -> str:
    """Return a value in a few words, at the beginning of a sentence or inside it."""
    if isinstance(value, str | int | float | complex | None):
        return repr(value)[:40]
    return f"`{value.__name__}`" if hasattr(value, "__name__") else f"A {type(value).__name__}"


def _usage(signature: inspect.Signature, name: str) -> str:
    """Return how the check is called."""
    parameters = list(signature.parameters.values())[1:]
    word = {inspect.Parameter.VAR_KEYWORD: "name=..., name=..."}
    words = [word.get(parameter.kind, parameter.name) for parameter in parameters]
    return f"Write {name}.check({', '.join(words)})."
