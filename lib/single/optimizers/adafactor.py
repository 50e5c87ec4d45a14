"""Adafactor: the second moments of a matrix from those of its rows and its columns.

For a matrix with n rows and m columns, G its gradient, and β₂ = 1 − t^−0.8 at step t:

    R ← β₂ R + (1 − β₂) · mean of G² + ε₁ over each row        [n]
    C ← β₂ C + (1 − β₂) · mean of G² + ε₁ over each column     [m]
    V = R Cᵀ / mean(R),   U = G / √V,   Û = U / max(1, RMS(U) / d)
    θ ← θ − α Û,          α = max(ε₂, RMS(θ)) · ρ,  ρ = min(0.01, 1 / √t)

[Note: rank 1]
R Cᵀ / mean(R) has the row means and column means of the moving average of G². It is the matrix of
rank 1 that is nearest to it in the sense of the generalized Kullback-Leibler divergence. So n + m
numbers stand for n·m; what is lost is how far an entry differs from what its row and its column
suggest. Vectors and scalars have no rows and columns, so they keep V itself. A tensor of more dims
is a stack of matrices, those of its last two dims.

[Note: clipping the update]
A slow V lags behind a gradient that grows, and then U is too large. RMS(U) says how much: it is
about 1 where V is right. Adafactor scales such an update down, and needs no momentum to be stable.

[Note: torch.optim.Adafactor]
PyTorch's class differs in four ways. It has no momentum; its step is always relative and always
scaled by RMS(θ); it takes d ≥ 1 only; and its ε₁ bounds V and mean(R) from below, where the paper
adds it to G². Its default ε₁ is the format's, 1.2e-7 for fp32. So wherever the mean of G² is below
that (an RMS of 3.5e-4), it divides by too much, V is too small, and only clipping bounds the step.

Source: Shazeer and Stern 2018, "Adafactor" (arXiv 1804.04235), algorithms 4 and 5. Momentum is an
average of α Û, as in the authors' implementation (tensor2tensor).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from lib.predict.arguments import real
from lib.single.optimizers.adam import decay
from lib.single.optimizers.listwise import ListwiseOptimizer, counted, counter


class Adafactor(ListwiseOptimizer):
    """Adafactor: θ ← θ − α · G / √(R Cᵀ / mean(R)), clipped; n + m numbers for a matrix [n, m].

    `lr` is ρ, or with `relative_step` the most that ρ = min(lr, 1/√t) can be. With
    `scale_parameter` the step is ρ times the weights' own RMS, which counts as at least eps[1].
    `clip` is d, and `power` the 0.8 of β₂. With `momentum` β₁ a parameter keeps as many numbers as
    it has beside the factors: M ← β₁ M + (1 − β₁) α Û, θ ← θ − M. Weight decay is decoupled,
    θ ← θ − lr λ θ. The states have the names and shapes of torch.optim.Adafactor's.
    """

    def __init__(
        self, params, lr: float = 1e-2, *, relative_step: bool = True,
        scale_parameter: bool = True, momentum: float = 0.0, clip: float = 1.0,
        power: float = 0.8, eps: tuple[float, float] = (1e-30, 1e-3), weight_decay: float = 0.0,
    ):  # fmt: skip
        for name, value in (("lr", lr), ("power", power), ("weight_decay", weight_decay)):
            real(value, name)
        for value in eps:
            real(value, "Each of eps")
        real(clip, "clip", zero=False, infinite=True)
        options = {
            "lr": lr, "relative_step": relative_step, "scale_parameter": scale_parameter,
            "momentum": decay(momentum, "momentum"), "clip": clip, "power": power, "eps": eps,
            "weight_decay": weight_decay,
        }  # fmt: skip
        super().__init__(params, options)

    def update(self, group: dict, parameters: list[Tensor]) -> None:
        """Update these parameters by their gradients."""
        self.move(group, parameters, parameters, [parameter.grad for parameter in parameters])

    def move(self, group: dict, keys: list, weights: list[Tensor], gradients: list[Tensor]) -> None:
        """Update `weights`, tensors of the parameters `keys`, by these gradients."""
        states = [self._state(*pair, group["momentum"]) for pair in zip(keys, weights)]
        counts = counted(states)
        squares = torch._foreach_mul(gradients, gradients)
        sums = [sums_of(square) for square in squares]
        if group["scale_parameter"]:
            norms = torch._foreach_norm(weights)
            sums = [(*own, norm * norm) for own, norm in zip(sums, norms)]
        sums = self.over_whole(keys, sums)
        sizes = self.step_sizes(group, keys, counts, sums)
        for n, (key, state) in enumerate(zip(keys, states)):
            self._average(key, state, squares[n], sums[n], counts[n] ** -group["power"], group)
            self._divide(key, state, gradients[n], squares[n])
        updates = squares  # which hold U now
        norms = torch._foreach_norm(updates)
        totals = self.over_whole(keys, [(norm * norm,) for norm in norms])
        roots = self._roots(keys, [total for (total,) in totals])
        torch._foreach_mul_(
            updates, [a / max(1.0, rms / group["clip"]) for a, rms in zip(sizes, roots)]
        )
        if group["weight_decay"]:
            torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        if group["momentum"]:
            momenta = [state["momentum"] for state in states]
            torch._foreach_lerp_(momenta, updates, 1 - group["momentum"])
            updates = momenta
        torch._foreach_sub_(weights, updates)

    def step_sizes(self, group, keys, counts, sums) -> list[float]:
        """Return α of each parameter; the last of its sums is that of its squared weights."""
        steps = [group["lr"]] * len(counts)
        if group["relative_step"]:
            steps = [min(group["lr"], t**-0.5) for t in counts]
        if not group["scale_parameter"]:
            return steps
        roots = self._roots(keys, [own[-1] for own in sums])
        return [step * max(group["eps"][1], root) for step, root in zip(steps, roots)]

    # What a parameter of which a rank has a part changes: shapes, sums, and the mean of R.

    def whole_shape(self, key: Tensor) -> Sequence[int]:
        """Return the shape of a whole parameter."""
        return key.shape

    def over_whole(self, keys: list, sums: list[tuple[Tensor, ...]]) -> list[tuple[Tensor, ...]]:
        """Return sums over whole parameters; of a parameter that is here whole, they are."""
        return sums

    def mean_of_rows(self, key: Tensor, row_var: Tensor, col_var: Tensor) -> Tensor:
        """Return the mean of R over all rows: [..., n, 1], [..., 1, m] -> [..., 1, 1]."""
        return row_var.mean(-2, keepdim=True)

    # One parameter.

    def _average(self, key, state, square, sums, new: float, group) -> None:
        """Move the averages towards those of this gradient by the share `new` = 1 − β₂."""
        if square.dim() > 1:
            *_, n, m = self.whole_shape(key)
            state["row_var"].lerp_(sums[0].div_(m).add_(group["eps"][0]).to(square.dtype), new)
            state["col_var"].lerp_(sums[1].div_(n).add_(group["eps"][0]).to(square.dtype), new)
        else:
            state["variance"].lerp_(square.add_(group["eps"][0]), new)

    def _divide(self, key, state, gradient: Tensor, out: Tensor) -> None:
        """Write U = G / √V into `out`; the roots are taken of vectors, before they are spread."""
        if out.dim() > 1:
            rows, columns = state["row_var"], state["col_var"]
            torch.mul(gradient, (self.mean_of_rows(key, rows, columns) / rows).sqrt_(), out=out)
            out.mul_(columns.rsqrt())
        else:
            torch.mul(gradient, state["variance"].rsqrt(), out=out)

    def _roots(self, keys: list, totals: list[Tensor]) -> list[float]:
        """Return the root of the mean of squares of each parameter, from their sums."""
        numels = [max(torch.Size(self.whole_shape(key)).numel(), 1) for key in keys]
        totals = torch.stack([total.reshape(()) for total in totals]).tolist()
        return [(total / numel) ** 0.5 for total, numel in zip(totals, numels)]

    def _state(self, key: Tensor, weight: Tensor, momentum: float) -> dict:
        """Return the state of a parameter, which its first step makes."""
        state = self.state[key]
        if not state:
            state["step"] = counter()
            if weight.dim() > 1:
                state["row_var"] = weight.new_zeros([*weight.shape[:-1], 1])
                state["col_var"] = weight.new_zeros([*weight.shape[:-2], 1, weight.shape[-1]])
            else:
                state["variance"] = torch.zeros_like(weight)
        if momentum and "momentum" not in state:
            state["momentum"] = torch.zeros_like(weight)
        return state


def sums_of(square: Tensor) -> tuple[Tensor, ...]:
    """Return the sums of each row and of each column of a matrix; of a vector, nothing."""
    return (square.sum(-1, keepdim=True), square.sum(-2, keepdim=True)) if square.dim() > 1 else ()
