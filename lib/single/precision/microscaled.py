"""Training with linear layers whose operands share a scale in short blocks: MXFP8, MXFP4, NVFP4.

    y = x · Wᵀ,  dx = dy · W,  dW = dyᵀ · x    each operand rounded in blocks along the inner dim

[Note: roles]
MX has a power of two for 32 numbers of 8, 6 or 4 bits, and NVFP4 an e4m3 number for 16 of 4 bits.
The blocks lie along the inner dim, which is another one in each product: so every operand is
rounded twice, from the same numbers in two directions, and W is not the same in y and in dx.

[Note: few bits]
Four bits have the magnitudes 0, 0.5, 1, 1.5, 2, 3, 4 and 6. Rounded to nearest, most of a block's
small entries become zero, always to the same side; gradients rounded stochastically are right in
the mean instead. A Hadamard transform spreads the outliers of a block (see hadamard.py). NVIDIA's
recipe for NVFP4 takes both, the transform for dW alone, squares of 16 · 16 for the weights and a
few layers in bf16; the squares are left out here.

The rounded numbers are multiplied and summed in float32 on every device; inputs are kept as they
are. So this shows what rounding does to training, and neither time nor memory.

Source: OCP Microscaling Formats v1.0, 2023; NVIDIA 2025, Pretraining Large Language Models with
NVFP4 (arXiv 2509.25149).
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from lib.single.formats import BlockFormat
from lib.single.precision.hadamard import random_signs, spread
from lib.single.precision.replace import replace_linear

SPREAD = ("none", "weights", "all")


def microscaled(
    model: nn.Module,
    format: BlockFormat,
    *,
    gradients: BlockFormat | None = None,
    hadamard: str = "none",
    stochastic: bool = False,
    seed: int = 0,
    keep: Sequence[str] = (),
) -> nn.Module:
    """Put a MicroscaledLinear in the place of every linear layer of a model; return the model.

    Inputs and weights are rounded to `format`, gradients to `gradients` (by default the same).
    `hadamard` says which products are spread: "none", "weights" (dW alone) or "all". With
    `stochastic` gradients are rounded stochastically, by numbers drawn from `seed`. `keep` names
    layers, or modules with layers, that stay as they are. Raises ValueError for another word, and
    for names that the model has not.
    """
    if hadamard not in SPREAD:
        raise ValueError(f"hadamard must be 'none', 'weights' or 'all', not {hadamard!r}.")

    def layer(linear: nn.Linear, number: int) -> MicroscaledLinear:
        formats = format, gradients or format
        return MicroscaledLinear(linear, *formats, hadamard, stochastic, seed * 1_000_003 + number)

    return replace_linear(model, layer, keep)


class MicroscaledLinear(nn.Linear):
    """Computes x · Wᵀ + b, [.., I] -> [.., O], with operands rounded in blocks.

    It takes over the parameters of `linear`; `microscaled` explains the rest.
    """

    def __init__(
        self, linear: nn.Linear, format: BlockFormat, gradients: BlockFormat,
        hadamard: str = "none", stochastic: bool = False, seed: int = 0,
    ):  # fmt: skip
        super().__init__(linear.in_features, linear.out_features, False, device="meta")
        self.weight, self.bias, self.training = linear.weight, linear.bias, linear.training
        self.format, self.gradients = format, gradients
        self.hadamard, self.stochastic = hadamard, stochastic
        self.seed, self.backwards = seed, 0

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, self.in_features)
        y = _MicroscaledProduct.apply(rows, self.weight, self.bias, self)
        return y.view(*x.shape[:-1], self.out_features)

    def product(self, a: Tensor, b: Tensor, forms: Sequence[BlockFormat], mixed: bool, noise=None):
        """Multiply a [M, K] by the transpose of b [N, K], both rounded along K: [M, N].

        `forms` are the formats of a and b; `mixed` says that both are spread before; with `noise`,
        a generator, a is rounded stochastically.
        """
        if mixed:
            signs = random_signs(self.seed).to(a.device)
            a, b = spread(a, signs), spread(b, signs)
        with torch.autocast(a.device.type, enabled=False):
            return _rounded(a, forms[0], noise) @ _rounded(b, forms[1]).T

    def noise(self, device: torch.device) -> torch.Generator | None:
        """Return what draws the random numbers of one backward, or None."""
        if not self.stochastic:
            return None
        self.backwards += 1
        number = (self.seed * 1_000_003 + self.backwards) % 2**63
        return torch.Generator(device).manual_seed(number)


def _rounded(matrix: Tensor, form: BlockFormat, noise: torch.Generator | None = None) -> Tensor:
    """Round a matrix [M, K] in blocks along K, filled up with zeros to whole blocks."""
    filled = pad(matrix, (0, -matrix.shape[1] % form.block))
    return form.round(filled, "nearest" if noise is None else "stochastic", generator=noise)


class _MicroscaledProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, layer):
        ctx.layer = layer
        ctx.save_for_backward(x, weight)
        forms = layer.format, layer.format
        y = layer.product(x.float(), weight.float(), forms, layer.hadamard == "all")
        return (y if bias is None else y + bias).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        layer, (x, weight) = ctx.layer, ctx.saved_tensors
        needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
        dy, forms = gradient.float(), (layer.gradients, layer.format)
        noise = layer.noise(dy.device)
        dx = dw = db = None
        if needs_x:
            dx = layer.product(dy, weight.float().T, forms, layer.hadamard == "all", noise)
            dx = dx.to(x.dtype)
        if needs_weight:
            dw = layer.product(dy.T, x.float().T, forms, layer.hadamard != "none", noise)
            dw = dw.to(weight.dtype)
        if needs_bias:
            db = dy.sum(0)
        return dx, dw, db, None
