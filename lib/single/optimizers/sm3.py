"""SM3: one number for each slice of a parameter bounds Adagrad's sums of squares from above.

A cover is a set of slices S_r in which every weight i lies at least once: for a matrix its rows and
its columns, for a tensor of more dims all slices of each dim. Each slice keeps one number μ(r).

    SM3-I    μ(r) ← μ(r) + max of g(j)² over j in S_r      ν(i) = min of μ(r) over the r of i
    SM3-II   ν(i) = min of μ(r) over the r of i + g(i)²    μ(r) ← max of ν(j) over j in S_r
    both     θ(i) ← θ(i) − η · g(i) / √ν(i),  where 0 / 0 is 0

[Note: bounds]
Adagrad divides by the root of γ(i), the sum of all g(i)². Both kinds keep γ(i) ≤ ν(i), so they
never step further than Adagrad; SM3-II's ν is never larger than SM3-I's, and so nearer to it. Like
Adagrad's, the sums only grow: there is no decay rate, and the steps become shorter.

[Note: momentum]
In practice there is momentum, an average of g / √ν, as in the authors' implementation
(google-research/sm3). It has as many numbers as the parameter, so SM3 with momentum keeps half of
what Adam keeps, and a little more; only without it are there n + m numbers.

Source: Anil, Gupta, Koren and Singer 2019, "Memory-Efficient Adaptive Optimization" (arXiv
1901.11150), algorithms SM3-I and SM3-II.
"""

import torch
from torch import Tensor

from lib.predict.arguments import real
from lib.single.optimizers.adam import decay
from lib.single.optimizers.listwise import ListwiseOptimizer

VERSIONS = ("I", "II")


class SM3(ListwiseOptimizer):
    """SM3: θ ← θ − η · g / √ν, where ν is the least of the numbers of the slices of a weight.

    `version` is "I" or "II". With `momentum` β a parameter keeps as many numbers as it has beside
    those of its slices: m ← β m + (1 − β) g / √ν, θ ← θ − η m. The slices' numbers are the states
    `accumulator_0` [n, 1], `accumulator_1` [1, m] and so on; those of a vector are its elements.
    """

    def __init__(self, params, lr: float = 0.1, momentum: float = 0.9, *, version: str = "II"):
        if version not in VERSIONS:
            raise ValueError(f"SM3 has the versions {' and '.join(VERSIONS)}, not {version!r}.")
        options = {"lr": real(lr, "lr"), "momentum": decay(momentum, "momentum")}
        super().__init__(params, options | {"version": version})

    def update(self, group: dict, parameters: list[Tensor]) -> None:
        """Update these parameters by their gradients."""
        self.move(group, parameters, parameters, [parameter.grad for parameter in parameters])

    def move(self, group: dict, keys: list, weights: list[Tensor], gradients: list[Tensor]) -> None:
        """Update `weights`, tensors of the parameters `keys`, by these gradients."""
        states = [self._state(*pair, group["momentum"]) for pair in zip(keys, weights)]
        covers = [
            [state[f"accumulator_{dim}"] for dim in range(max(weight.dim(), 1))]
            for state, weight in zip(states, weights)
        ]
        bounds = torch._foreach_mul(gradients, gradients)
        if group["version"] == "I":
            most = self.over_whole(keys, [maxima(square) for square in bounds])
            for cover, largest, bound in zip(covers, most, bounds):
                torch._foreach_add_(cover, list(largest))
                bound.copy_(least(cover))
        else:
            for cover, bound in zip(covers, bounds):
                bound.add_(least(cover))
            most = self.over_whole(keys, [maxima(bound) for bound in bounds])
            for cover, largest in zip(covers, most):
                torch._foreach_copy_(cover, list(largest))
        # Where ν is 0 so is g; the smallest normal number in its place makes 0 / 0 to 0.
        torch._foreach_clamp_min_(bounds, torch.finfo(bounds[0].dtype).tiny)
        torch._foreach_rsqrt_(bounds)
        torch._foreach_mul_(bounds, gradients)
        updates = bounds  # which hold g / √ν now
        if group["momentum"]:
            momenta = [state["momentum"] for state in states]
            torch._foreach_lerp_(momenta, updates, 1 - group["momentum"])
            updates = momenta
        torch._foreach_add_(weights, updates, alpha=-group["lr"])

    def over_whole(self, keys: list, most: list[tuple[Tensor, ...]]) -> list[tuple[Tensor, ...]]:
        """Return maxima over whole parameters; of a parameter that is here whole, they are.

        A parameter of which a rank has a part changes this.
        """
        return most

    def _state(self, key: Tensor, weight: Tensor, momentum: float) -> dict:
        """Return the state of a parameter, which its first step makes."""
        state = self.state[key]
        if not state:
            for dim in range(max(weight.dim(), 1)):
                shape = [size if n == dim else 1 for n, size in enumerate(weight.shape)]
                state[f"accumulator_{dim}"] = weight.new_zeros(shape)
        if momentum and "momentum" not in state:
            state["momentum"] = torch.zeros_like(weight)
        return state


def least(cover: list[Tensor]) -> Tensor:
    """Return for each weight the least number of its slices: [n, 1], [1, m] -> [n, m]."""
    smallest = cover[0]
    for other in cover[1:]:
        smallest = torch.minimum(smallest, other)
    return smallest


def maxima(numbers: Tensor) -> tuple[Tensor, ...]:
    """Return the largest number of each slice of each dim, 0 of none: [n, m] -> [n, 1], [1, m]."""
    if numbers.dim() < 2:
        return (numbers.clone(),)
    dims = range(numbers.dim())
    if not numbers.numel():  # a rank may have no rows
        sizes = list(numbers.shape)
        return tuple(numbers.new_zeros([sizes[d] if d == dim else 1 for d in dims]) for dim in dims)
    return tuple(numbers.amax([d for d in dims if d != dim], keepdim=True) for dim in dims)
