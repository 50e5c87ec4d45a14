"""Adam and AdamW: two moving averages for each weight, so twice the bytes of the weights.

    m ← β₁ m + (1 − β₁) g        v ← β₂ v + (1 − β₂) g²
    θ ← θ − η · m̂ / (√v̂ + ε)      m̂ = m / (1 − β₁ᵗ), v̂ = v / (1 − β₂ᵗ)

[Note: bias correction]
m and v begin at 0, so after t steps they hold only the share 1 − βᵗ of an average. Without the
division the first step would be (1 − β₁) / √(1 − β₂) = 3.2 times as long as it should be.

Source: Kingma and Ba 2014, "Adam" (arXiv 1412.6980), algorithm 1; Loshchilov and Hutter 2017,
"Decoupled Weight Decay Regularization" (arXiv 1711.05101), algorithm 2, for AdamW.
"""

import torch
from torch import Tensor

from lib.predict.arguments import real
from lib.single.optimizers.listwise import ListwiseOptimizer, counted, counter


class Adam(ListwiseOptimizer):
    """Adam: θ ← θ − η · m̂ / (√v̂ + ε), the same as torch.optim.Adam(foreach=True), to the bit.

    `weight_decay` λ is added to the gradient, g + λ θ, so Adam divides it by √v̂ as well. A state
    dict of torch.optim's class can be loaded, and the other way round. Raises ValueError for
    options that make no sense, and RuntimeError in a step for sparse or complex numbers.
    """

    decoupled = False

    def __init__(
        self, params, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 0.0,
    ):  # fmt: skip
        for name, value in (("lr", lr), ("eps", eps), ("weight_decay", weight_decay)):
            real(value, name)
        for beta in betas:
            decay(beta, "Each of betas")
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        )

    def update(self, group: dict, parameters: list[Tensor]) -> None:
        """Update these parameters, in the order of operations of torch.optim.Adam."""
        (beta1, beta2), rate, decay = group["betas"], group["lr"], group["weight_decay"]
        gradients = [parameter.grad for parameter in parameters]
        states = [self._state(parameter) for parameter in parameters]
        first_moments = [state["exp_avg"] for state in states]
        second_moments = [state["exp_avg_sq"] for state in states]
        counts = counted(states)
        if decay and self.decoupled:
            torch._foreach_mul_(parameters, 1 - rate * decay)
        elif decay:
            gradients = torch._foreach_add(gradients, parameters, alpha=decay)
        torch._foreach_lerp_(first_moments, gradients, 1 - beta1)
        torch._foreach_mul_(second_moments, beta2)
        torch._foreach_addcmul_(second_moments, gradients, gradients, 1 - beta2)
        divisors = torch._foreach_sqrt(second_moments)
        torch._foreach_div_(divisors, [(1 - beta2**t) ** 0.5 for t in counts])
        torch._foreach_add_(divisors, group["eps"])
        rates = [-rate / (1 - beta1**t) for t in counts]
        torch._foreach_addcdiv_(parameters, first_moments, divisors, rates)

    def _state(self, parameter: Tensor) -> dict:
        """Return the state of a parameter, which its first step makes."""
        state = self.state[parameter]
        if not state:
            state["step"] = counter()
            state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
            state["exp_avg_sq"] = torch.zeros_like(state["exp_avg"])
        return state


class AdamW(Adam):
    """Adam with decoupled weight decay: θ ← θ − η λ θ, and then Adam's step without it.

    The decay is the same for all weights, whatever their gradients are. It is the same as
    torch.optim.AdamW(foreach=True), to the bit.
    """

    decoupled = True

    def __init__(
        self, params, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 1e-2,
    ):  # fmt: skip
        super().__init__(params, lr, betas, eps, weight_decay)


def decay(value: float, name: str) -> float:
    """Return the share that a moving average keeps. Raises ValueError unless 0 ≤ value < 1."""
    if real(value, name) >= 1:
        raise ValueError(f"{name} must be below 1, not {value!r}.")
    return value
