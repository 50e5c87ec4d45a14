"""Training with linear layers whose three products take operands of 8 bits.

    forward    y  [M, O] = x  [M, I] · Wᵀ    inner dim I    x and W in e4m3
    backward   dx [M, I] = dy [M, O] · W     inner dim O    dy in e5m2, or in e4m3
               dW [O, I] = dyᵀ      · x      inner dim M

[Note: rounded]
Weights, biases, gradients that arrive and results stay float32 or bfloat16: only what enters a
product is rounded, and sums are float32. So the optimizer's steps are as fine as before. Backward
finds the layers' inputs in 8 bits instead of 32 or 16. A gradient is that of the rounded product,
as if rounding were not there (a straight-through estimate): dx is made with the rounded W.

[Note: tiles]
    scaling    x, dy     W          gives each product
    tensor     all       all        one scale for each operand
    delayed    all       all        the same, known from former steps
    row        [1, K]    [1, K]     a scale for each row of the left and column of the right
    block      [1, B]    [B, B]     a scale for B entries along the inner dim

K is the product's inner dim. It is another one in each product, so with rows and blocks x, which
backward reads along M, is decoded and rounded again: what a tile along I has lost stays lost. (With
kept="input" it is rounded from the numbers that came, as torchao does, which saves no memory.) dy
is rounded twice from the numbers that arrive, and W again from its own. With a scale for the whole
tensor, once is enough.

Source: Micikevicius et al. 2022, FP8 formats for deep learning (e4m3 forward and e5m2 backward);
DeepSeek-AI 2024, DeepSeek-V3 (e4m3 everywhere, blocks of 128); torchao (rows).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from lib.predict.arguments import whole
from lib.single.precision.delayed_scaling import CHOICES, DelayedScaling
from lib.single.precision.replace import replace_linear
from lib.single.precision.scaled import FORMATS, Scaled, product, scaled
from lib.single.precision.scaled_mm import machine_product

SCALINGS = ("tensor", "row", "block", "delayed")
KEPT = ("codes", "input")
PRODUCTS = {"simulated": product, "scaled_mm": machine_product}


@dataclass(frozen=True)
class Recipe:
    """Says how the operands of a layer are rounded; `fp8` explains each of these."""

    scaling: str = "tensor"
    backward: str = "e5m2"
    block: int = 128
    power_of_two: bool = False
    history: int = 1024
    margin: int = 0
    choice: str = "max"
    products: str = "simulated"
    kept: str = "codes"

    def __post_init__(self):
        allowed = {"scaling": SCALINGS, "backward": FORMATS, "choice": CHOICES}
        allowed |= {"products": PRODUCTS, "kept": KEPT}
        for name, words in allowed.items():
            if getattr(self, name) not in words:
                *others, last = map(repr, words)
                listed = f"{', '.join(others)} or {last}"
                raise ValueError(f"{name} must be {listed}, not {getattr(self, name)!r}.")
        for name, least in (("block", 1), ("history", 1), ("margin", 0)):
            whole(getattr(self, name), name, least)
        if self.scaling == "block" and self.products == "scaled_mm":
            raise ValueError("torch._scaled_mm takes no blocks here. Use products='simulated'.")

    def tile(self, operand: str) -> tuple[int, int]:
        """Return the tile of "input", "weight" or "gradient", [rows, along the inner dim]."""
        square = operand == "weight"
        tiles = {"row": (1, 0), "block": (self.block if square else 1, self.block)}
        return tiles.get(self.scaling, (0, 0))

    def format(self, operand: str) -> str:
        """Return "e4m3" or "e5m2", the format of "input", "weight" or "gradient"."""
        return self.backward if operand == "gradient" else "e4m3"


def fp8(model: nn.Module, scaling: str = "tensor", *, keep: Sequence[str] = (), **options):
    """Put an Fp8Linear in the place of every linear layer of a model, and return the model.

    The layers keep their names and their parameters, shared ones too, so an optimizer made before
    still trains them. `keep` names layers, or modules with layers, that stay as they are: often the
    last one, which makes the logits.

    `scaling` is "tensor", "row", "block" or "delayed". `backward` is the gradients' format, "e5m2"
    or "e4m3"; `block` the side of a block; `power_of_two` rounds scales up to powers of two;
    `history`, `margin` and `choice` are DelayedScaling's. `products` are "simulated" or
    "scaled_mm", the machine's own. `kept` is what backward finds of an input: "codes", the 8 bits
    that forward multiplied, or "input", the numbers that came, which rows and blocks round better
    the other way. With scaling="delayed" call `update_scales(model)` after each
    step. Raises ValueError for other words, and for names in `keep` that the model has not.
    """
    recipe = Recipe(scaling, **options)
    return replace_linear(model, lambda linear, _: Fp8Linear(linear, recipe), keep)


class Fp8Linear(nn.Linear):
    """Computes x · Wᵀ + b as nn.Linear does, [.., I] -> [.., O], with operands of 8 bits.

    It takes over the parameters of `linear`. With delayed scaling `scalings` holds the history of
    each operand, as buffers; histories grow in training only.
    """

    def __init__(self, linear: nn.Linear, recipe: Recipe):
        super().__init__(linear.in_features, linear.out_features, False, device="meta")
        self.weight, self.bias, self.recipe = linear.weight, linear.bias, recipe
        self.training = linear.training
        if recipe.scaling == "delayed":
            history = recipe.history, recipe.margin, recipe.choice
            self.scalings = nn.ModuleDict(
                {name: DelayedScaling(recipe.format(name), *history)
                 for name in ("input", "weight", "gradient")}
            ).to(linear.weight.device)  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        device = x.device.type
        mixed = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if mixed else x.dtype
        rows = x.reshape(-1, self.in_features)
        y = _Fp8Product.apply(rows, self.weight, self.bias, self, dtype)
        return y.view(*x.shape[:-1], self.out_features)

    def rounded(self, operand: str, matrix: Tensor) -> Scaled:
        """Round a matrix [rows, inner dim], the "input", "weight" or "gradient", to 8 bits."""
        recipe, scale = self.recipe, None
        if recipe.scaling == "delayed":
            scaling = self.scalings[operand]
            scale = scaling.see(matrix) if self.training else scaling.scale
        return scaled(
            matrix, recipe.format(operand), recipe.tile(operand), recipe.power_of_two, scale
        )

    def across(self, operand: str, rounded: Scaled, matrix: Tensor) -> Scaled:
        """Return a rounded matrix for a product over its rows: rounded again, unless it need not.

        It need not where its tiles are as high as they are wide. `matrix` holds its numbers.
        """
        if rounded.tile[0] == rounded.tile[1]:
            return rounded.T
        return self.rounded(operand, matrix.T)


class _Fp8Product(torch.autograd.Function):
    """Multiply rounded operands, and keep the rounded input alone."""

    @staticmethod
    def forward(ctx, x, weight, bias, layer, dtype):
        multiply = PRODUCTS[layer.recipe.products]
        rounded = layer.rounded("input", x)
        y = multiply(rounded, layer.rounded("weight", weight))
        if bias is not None:
            y += bias
        ctx.layer, ctx.tile, ctx.input_dtype = layer, rounded.tile, x.dtype
        kept = rounded[:2] if layer.recipe.kept == "codes" else (x, None)
        kept = kept if weight.requires_grad else (None, None)
        # A scale that is delayed is the layer's own; it is replaced, never written to.
        ctx.save_for_backward(weight, *kept)
        return y.to(dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        layer, (weight, x, scales) = ctx.layer, ctx.saved_tensors
        multiply = PRODUCTS[layer.recipe.products]
        needs_x, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        dx = dw = db = None
        rounded = layer.rounded("gradient", gradient)
        if needs_x:
            columns = layer.across("weight", layer.rounded("weight", weight), weight)
            dx = multiply(rounded, columns).to(ctx.input_dtype)
        if needs_weight:
            codes = Scaled(x, scales, ctx.tile)
            if scales is None:
                codes = layer.rounded("input", x.T)
            elif ctx.tile[0] != ctx.tile[1]:
                codes = layer.rounded("input", codes.decode().T)
            else:
                codes = codes.T
            dw = multiply(layer.across("gradient", rounded, gradient), codes).to(weight.dtype)
        if needs_bias:
            db = gradient.float().sum(0)  # autograd gives it the bias's dtype
        return dx, dw, db, None, None
