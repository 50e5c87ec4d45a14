"""The check of one step of SM3-II for a matrix: the accumulator, and the cover of rows and columns.

    nu[i, j]    = min(rows[i], columns[j]) + gradient[i, j]²
    rows[i]     = max over j of nu[i, j]
    columns[j]  = max over i of nu[i, j]

Source: Anil and others 2019, "Memory-Efficient Adaptive Optimization" (arXiv 1901.11150),
algorithm SM3-II.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lib.course.checks.arguments import name_of
from lib.course.checks.difference import difference
from lib.course.checks.verdict import Hints, Verdict

SIZES, STEPS = ((2, 3), (5, 4), (1, 6)), 3
NAMES = ("nu", "rows", "columns")


def _smaller(rows: Tensor, columns: Tensor) -> Tensor:
    return torch.minimum(rows[:, None], columns[None])


def _right(rows: Tensor, columns: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    nu = _smaller(rows, columns) + gradient**2
    return nu, nu.amax(1), nu.amax(0)


def _sm3_i(rows, columns, gradient):
    rows, columns = rows + (gradient**2).amax(1), columns + (gradient**2).amax(0)
    return _smaller(rows, columns), rows, columns


def _forgotten(rows, columns, gradient):
    nu = gradient**2
    return nu, nu.amax(1), nu.amax(0)


def _not_squared(rows, columns, gradient):
    nu = _smaller(rows, columns) + gradient.abs()
    return nu, nu.amax(1), nu.amax(0)


def _larger(rows, columns, gradient):
    nu = torch.maximum(rows[:, None], columns[None]) + gradient**2
    return nu, nu.amax(1), nu.amax(0)


def _summed(rows, columns, gradient):
    nu = _smaller(rows, columns) + gradient**2
    return nu, nu.sum(1), nu.sum(0)


def _averaged(rows, columns, gradient):
    nu = _smaller(rows, columns) + gradient**2
    return nu, nu.mean(1), nu.mean(0)


def _swapped(rows, columns, gradient):
    nu = _smaller(rows, columns) + gradient**2
    return nu, nu.amax(0), nu.amax(1)


_MISTAKES = {
    _sm3_i: "This is SM3-I: SM3-II adds the gradient's square to the smaller one before it takes "
    "maxima.",
    _forgotten: "What `rows` and `columns` held before is forgotten.",
    _not_squared: "The gradient has to be squared.",
    _larger: "Both bounds hold, so the smaller one is the better: take the minimum.",
    _summed: "A bound of each entry of a row is the largest of them, not their sum.",
    _averaged: "A bound of each entry of a row is the largest of them, not their mean.",
    _swapped: "`rows` and `columns` have changed places: `nu.amax(1)` has a number for each row.",
}


def _matrices(size: tuple[int, int]) -> list[Tensor]:
    draw = torch.Generator("cpu").manual_seed(sum(size))
    return [torch.randn(size, generator=draw, dtype=torch.float64) for _ in range(STEPS)]


@dataclass
class SM3Step(Hints):
    """Compares a function (rows, columns, gradient) -> (nu, rows, columns) with SM3-II.

    rows [n], columns [m], gradient [n, m] -> nu [n, m], rows [n], columns [m], float64 on the CPU.
    """

    task: str = "Fill in the body of `my_sm3`: return nu, and the new rows and columns."

    def check(self, attempt: Callable) -> Verdict:
        """Take a few steps with matrices of several sizes, each from the right state."""
        name = name_of(attempt)
        with torch.device("cpu"):
            for size in SIZES:
                state = torch.zeros(size[0]).double(), torch.zeros(size[1]).double()
                for step, gradient in enumerate(_matrices(size), 1):
                    given = [*state, gradient]
                    try:
                        result = attempt(*(tensor.clone() for tensor in given))
                    except Exception as error:  # the reader's code may raise anything
                        return self._not_yet(f"`{name}` fails: {type(error).__name__}: {error}")
                    if result is None or result is ...:
                        return self._open(f"`{name}` returns nothing", self.task)
                    if wrong := _difference(result, _right(*given)):
                        why = _reason(result, given)
                        return self._not_yet(
                            f"With a gradient of {list(size)}, in step {step}, {wrong}. {why}"
                        )
                    state = _right(*given)[1:]
        sizes = ", ".join(f"{n} x {m}" for n, m in SIZES)
        return Verdict(True, f"Solved. Right in {STEPS} steps with matrices of {sizes}.")


def _difference(result, right) -> str:
    """Return which of the three tensors differs first, and how; it is empty where none does."""
    if not isinstance(result, list | tuple) or len(result) != len(right):
        return difference(result, right)
    texts = (difference(*trio) for trio in zip(result, right, NAMES, strict=True))
    return next(filter(None, texts), "")


def _reason(result, given) -> str:
    """Return the sentence on the mistake that leads to this very result; empty if none is known."""
    same = (why for wrong, why in _MISTAKES.items() if not _difference(result, wrong(*given)))
    return next(same, "")
