"""Outputs of a stage, prepared for sending: tensors in nested tuples, lists and dicts.

The form of an output is its nesting and the shapes and dtypes of its tensors. It is sent as text
and read as a Python literal, never as a pickle, because a message must not be able to run code.
"""

import ast
from typing import NamedTuple

import torch

_CONSTANTS = (type(None), bool, int, float, str)
_TENSOR = b"tensor"  # stands for a tensor in a structure; no constant is of type bytes


class Parcel(NamedTuple):
    """Holds the output of a stage: its `tensors`, and the `structure` in which each has a place."""

    structure: object
    tensors: list[torch.Tensor]

    @property
    def form(self) -> tuple:
        """Return the structure, and the shape and dtype of each tensor."""
        return self.structure, [(tuple(t.shape), t.dtype) for t in self.tensors]

    def whole(self):
        """Put the tensors back into their structure."""
        return _fill(self.structure, iter(self.tensors))


def parcel(y, stage: int) -> Parcel:
    """Take the output of a stage apart; raise TypeError where it cannot be sent."""
    tensors: list[torch.Tensor] = []
    return Parcel(_apart(y, tensors, stage), tensors)


def differentiable(form) -> list[bool]:
    """Return which tensors of a form can have a gradient."""
    return [dtype.is_floating_point or dtype.is_complex for _, dtype in form[1]]


def to_text(form, *more) -> str:
    """Return a form as text, together with the values in `more`."""
    structure, kinds = form
    return repr((structure, [(shape, str(dtype)[6:]) for shape, dtype in kinds], *more))


def from_text(text: str) -> tuple:
    """Return the form that `to_text` wrote, and the values that came with it."""
    structure, kinds, *more = ast.literal_eval(text)
    return (structure, [(shape, getattr(torch, dtype)) for shape, dtype in kinds]), *more


def _apart(y, tensors, stage):
    if isinstance(y, torch.Tensor):
        tensors.append(y)
        return _TENSOR
    if type(y) in (tuple, list):
        return type(y)(_apart(part, tensors, stage) for part in y)
    if type(y) is dict:
        return {key: _apart(part, tensors, stage) for key, part in y.items()}
    if type(y) in _CONSTANTS and (not isinstance(y, float) or abs(y) < float("inf")):
        return y
    raise TypeError(
        f"Stage {stage} returned {_an(y)}, but only tensors, numbers and strings, alone or in "
        "tuples, lists and dicts, can go from one stage to the next. Let the stage return one of "
        "these."
    )


def _an(y) -> str:
    name = repr(y) if isinstance(y, float) else type(y).__name__
    return f"{'an' if name[0].lower() in 'aeio' else 'a'} {name}"


def _fill(structure, tensors):
    if structure == _TENSOR:
        return next(tensors)
    if type(structure) in (tuple, list):
        return type(structure)(_fill(part, tensors) for part in structure)
    if type(structure) is dict:
        return {key: _fill(part, tensors) for key, part in structure.items()}
    return structure
