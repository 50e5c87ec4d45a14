"""The check of an Adam that corrects the bias of its moments, each parameter by its own steps.

With g the t-th gradient of a parameter, counted for this parameter alone,

    m = b1 m + (1 - b1) g          v = b2 v + (1 - b2) g²
    w = w - lr · (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)

Source: Kingma and Ba 2014, "Adam: A Method for Stochastic Optimization" (arXiv 1412.6980),
algorithm 1.
"""

from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

from lib.course.checks.arguments import name_of
from lib.course.checks.difference import difference
from lib.course.checks.verdict import Hints, Verdict

RATE, BETAS, EPS, STEPS = 0.1, (0.9, 0.999), 1e-8, 6
# parameter -> its shape, and the steps in which it has a gradient
PARAMETERS = {"weight": ((3, 2), (1, 2, 3, 4, 5, 6)), "late": ((4,), (3, 4, 6))}


def _gradients() -> dict[str, list[Tensor | None]]:
    """Draw the gradients of each parameter by step; None where it has none."""
    draw = torch.Generator("cpu").manual_seed(0)
    return {
        name: [
            torch.randn(shape, generator=draw, dtype=torch.float64, device="cpu")
            if step in steps
            else None
            for step in range(1, STEPS + 1)
        ]
        for name, (shape, steps) in PARAMETERS.items()
    }


def _corrected(gradients, first: bool = True, second: bool = True, by_calls: bool = False) -> list:
    """Return a parameter after each step, from ones; the options leave a part of Adam out."""
    weight = torch.ones_like(next(g for g in gradients if g is not None))
    m, v, seen, results = torch.zeros_like(weight), torch.zeros_like(weight), 0, []
    for call, gradient in enumerate(gradients, 1):
        if gradient is not None:
            seen += 1
            m = BETAS[0] * m + (1 - BETAS[0]) * gradient
            v = BETAS[1] * v + (1 - BETAS[1]) * gradient**2
            t = call if by_calls else seen
            m_hat = m / (1 - BETAS[0] ** t) if first else m
            v_hat = v / (1 - BETAS[1] ** t) if second else v
            weight = weight - RATE * m_hat / (v_hat.sqrt() + EPS)
        results.append(weight)
    return results


_MISTAKES = (
    (
        {"first": False, "second": False},
        f"The first step is {(1 - BETAS[0]) / sqrt(1 - BETAS[1]):.2f} times as long as it should "
        "be. How large are m and v after one gradient g, beside g and g²?",
    ),
    ({"first": False}, "The second moment is corrected and the first is not."),
    ({"second": False}, "The first moment is corrected and the second is not."),
    (
        {"by_calls": True},
        "The correction counts the calls of `step`. This parameter had its first gradient in call "
        "3, when its moments were still 0: t has to count the gradients of each parameter.",
    ),
)


@dataclass
class AdamRepair(Hints):
    """Compares the weights after each step of a reader's Adam with those of the paper's."""

    task: str = "Repair `MyAdam`: divide each moment by 1 minus its beta to the power of t."

    def check(self, attempt: type[torch.optim.Optimizer] | None = None) -> Verdict:
        """Take six steps with two parameters, one of which has a gradient in three of them."""
        if attempt is None or attempt is ...:
            return self._open("there is no optimizer", self.task)
        gradients, who = _gradients(), name_of(attempt)
        with torch.device("cpu"):
            try:
                results = _stepped(attempt, gradients)
            except Exception as error:  # the reader's code may raise anything
                return self._not_yet(f"`{who}` fails: {type(error).__name__}: {error}")
        if all(bool((weight == 1).all()) for own in results.values() for weight in own):
            return self._open(f"`{who}` changes no weight", self.task)
        for step in range(STEPS):
            for name, own in results.items():
                right = _corrected(gradients[name])[step]
                if wrong := difference(own[step], right, f"`{name}`", 1e-7):
                    why = _reason(own, gradients[name], step)
                    return self._not_yet(f"After step {step + 1}, {wrong}. {why}")
        return Verdict(True, f"Solved. Both parameters are right after each of {STEPS} steps.")


def _stepped(attempt, gradients) -> dict[str, list[Tensor]]:
    """Return each parameter after each step of the attempt."""
    parameters = {
        name: torch.nn.Parameter(torch.ones(shape, dtype=torch.float64))
        for name, (shape, _) in PARAMETERS.items()
    }
    optimizer = attempt(parameters.values(), lr=RATE, betas=BETAS, eps=EPS)
    results = {name: [] for name in parameters}
    for step in range(STEPS):
        for name, parameter in parameters.items():
            gradient = gradients[name][step]
            parameter.grad = None if gradient is None else gradient.clone()
        optimizer.step()
        for name, parameter in parameters.items():
            results[name].append(parameter.detach().clone())
    return results


def _reason(own: list[Tensor], gradients, step: int) -> str:
    """Return the sentence on the mistake that leads to these very weights; empty if none does."""
    if gradients[step] is None:
        return "It had no gradient, so it has to stay as it is, and so have its moments."
    for options, why in _MISTAKES:
        if not difference(own[step], _corrected(gradients, **options)[step], "it", 1e-7):
            return why
    return ""
