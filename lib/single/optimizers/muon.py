"""Muon: momentum whose matrices are made orthogonal before they update the weights.

    B = μ·B + (1 - μ)·G        U = μ·B + (1 - μ)·G  (Nesterov; else U = B)
    W = W - lr·λ·W - lr·s·NS(U)        s = √max(1, m/n), or 0.2·√max(m, n)

NS(U) comes near to the polar factor P·Qᵀ of U = P·Σ·Qᵀ, which has the same singular vectors and all
singular values 1: directions in which gradients were small count as much as those in which they
were large. The scale of U does not matter for it, so that the factor 1 - μ, which the source lacks
and PyTorch has, changes nothing but the last bits.

[Note: Newton-Schulz]
    X = U / ‖U‖        five times:  A = X·Xᵀ,  X = a·X + (b·A + c·A²)·X

An odd polynomial of X acts on each singular value alone, x -> a·x + b·x³ + c·x⁵. With a, b, c =
3.4445, -4.7750, 2.0315 small values grow fast, by 3.4445 a step: after five steps all that were at
least 0.003 of the norm are between 0.68 and 1.21, and they would never settle at 1. Only matrix
products are needed, and bf16 is precise enough for them. Where m > n the transposed matrix is used,
so that A has min(m, n) rows.

Source: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks"
(kellerjordan.github.io/posts/muon); the scale 0.2·√max(m, n), with which rates of AdamW can be
kept: Liu et al. 2025, "Muon is Scalable for LLM Training" (arXiv 2502.16982), section 2.2.
"""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor, nn

from lib.predict.arguments import real, whole
from lib.single.optimizers.adam import decay
from lib.single.optimizers.listwise import ListwiseOptimizer

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
SCALES = {
    "original": lambda m, n: max(1.0, m / n) ** 0.5,
    "match_rms_adamw": lambda m, n: 0.2 * max(m, n) ** 0.5,
}


class Muon(ListwiseOptimizer):
    """Muon for matrices [m, n]; other parameters belong to another optimizer.

    `split_parameters` says which are which. The arguments have the names that torch.optim.Muon
    gives them, and `ns_dtype` beside: the dtype of Newton-Schulz, bf16 as in the source, or None
    for that of the gradients. The state of a matrix is `momentum_buffer`, [m, n], in its dtype.
    Raises ValueError for parameters that are no matrices and for options that make no sense, and
    RuntimeError in a step for sparse or complex numbers.
    """

    def __init__(
        self, params, lr: float = 1e-3, weight_decay: float = 0.1, momentum: float = 0.95,
        nesterov: bool = True, ns_coefficients: tuple[float, float, float] = COEFFICIENTS,
        eps: float = 1e-7, ns_steps: int = 5, adjust_lr_fn: str | None = None, *,
        ns_dtype: torch.dtype | None = torch.bfloat16,
    ):  # fmt: skip
        defaults = {
            "lr": lr, "weight_decay": weight_decay, "momentum": momentum, "nesterov": nesterov,
            "ns_coefficients": ns_coefficients, "eps": eps, "ns_steps": ns_steps,
            "adjust_lr_fn": adjust_lr_fn, "ns_dtype": ns_dtype,
        }  # fmt: skip
        check_options(defaults)
        super().__init__(params, defaults)
        for parameter in (p for group in self.param_groups for p in group["params"]):
            shape = list(self.whole_shape(parameter))
            if len(shape) != 2:
                raise ValueError(
                    f"Muon updates matrices, but a parameter has the shape {shape}. Give it to "
                    "AdamW; split_parameters(model) tells which is which."
                )

    def whole_shape(self, parameter: Tensor) -> Sequence[int]:
        """Return the shape of a whole parameter, of which a rank may have a part."""
        return parameter.shape

    def update(self, group: dict, parameters: list[Tensor]) -> None:
        """Update these matrices one by one."""
        for parameter in parameters:
            direction = advance(self.state[parameter], parameter.grad, group)
            direction = orthogonalized(direction, group)
            descend(parameter, direction, parameter.shape, group)


def check_options(group: dict) -> None:
    """Raise ValueError for rates and factors that are negative, and for an unknown scale."""
    for name in ("lr", "weight_decay", "eps"):
        real(group[name], name)
    decay(group["momentum"], "momentum")
    whole(group["ns_steps"], "ns_steps", 0)
    if group["adjust_lr_fn"] not in (None, *SCALES):
        raise ValueError(
            f"No scale of Muon is called {group['adjust_lr_fn']!r}. Choose {' or '.join(SCALES)}."
        )


def advance(state: dict, gradient: Tensor, group: dict) -> Tensor:
    """Add a gradient to the momentum, element by element; return what is to be orthogonalized."""
    if "momentum_buffer" not in state:
        state["momentum_buffer"] = torch.zeros_like(gradient)
    momentum = state["momentum_buffer"].lerp_(gradient, 1 - group["momentum"])
    return gradient.lerp(momentum, group["momentum"]) if group["nesterov"] else momentum


def orthogonalized(matrix: Tensor, group: dict) -> Tensor:
    """Return Newton-Schulz of a matrix with the options of a group, in the dtype `ns_dtype`."""
    matrix = matrix.to(group["ns_dtype"] or matrix.dtype)
    return newton_schulz(matrix, group["ns_steps"], group["ns_coefficients"], group["eps"])


def descend(weights: Tensor, direction: Tensor, shape, group: dict) -> None:
    """Decay weights and update them along a direction; `shape` is that of the whole matrix."""
    scale = SCALES[group["adjust_lr_fn"] or "original"](*shape)
    weights.mul_(1 - group["lr"] * group["weight_decay"])
    weights.add_(direction, alpha=-group["lr"] * scale)


def newton_schulz(
    matrix: Tensor, steps: int = 5, coefficients: tuple[float, float, float] = COEFFICIENTS,
    eps: float = 1e-7,
) -> Tensor:  # fmt: skip
    """Return a matrix with the singular vectors of [m, n] and singular values near 1, see above."""
    a, b, c = coefficients
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / x.norm().clamp(min=eps)  # the largest singular value is at most the Frobenius norm
    for _ in range(steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x


def split_parameters(
    model: nn.Module, exclude: Collection[str] = ()
) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Return the parameters of a model that Muon should train, and the others, which AdamW should.

    Muon's are those of `hidden_matrices`. Parameters that are not trained are in neither list, and
    shared ones are in one.
    """
    names = set(hidden_matrices(model, exclude))
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    hidden = [parameter for name, parameter in trained if name in names]
    return hidden, [parameter for name, parameter in trained if name not in names]


def hidden_matrices(model: nn.Module, exclude: Collection[str] = ()) -> list[str]:
    """Return the names of the matrices that map hidden activations to hidden activations.

    They are the weights of linear layers, but not of the model's last one, which gives its outputs
    (the head), and not those that are also an embedding's. Nor are those whose name begins with one
    of `exclude`. Embeddings, vectors and convolutions are AdamW's. Ask the plain model: methods
    that split its layers keep the names.
    """
    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
    tables = [m for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
    inner = {id(linear.weight) for linear in linears}
    inner -= {id(module.weight) for module in (*linears[-1:], *tables)}
    return [
        name
        for name, parameter in model.named_parameters()
        if id(parameter) in inner and not name.startswith(tuple(exclude))
    ]
