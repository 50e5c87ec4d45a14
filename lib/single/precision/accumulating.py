"""Training with linear layers whose sums are kept in a format of the caller's choice.

    y = x · Wᵀ + b    sums over I    x [R, I], W [O, I]
    dx = dy · W       sums over O    dy [R, O]
    dW = dyᵀ · x      sums over R, the rows of the batch: as many as it has tokens
    db = 1ᵀ · dy      sums over R

Micikevicius et al. 2018, "Mixed Precision Training" (arXiv 1710.03740), section 3.3, have products
of fp16 numbers added up in fp32 and rounded to fp16 once, when they are written to memory. A layer
with the accumulator FP32 does so. With FP16 every partial sum is rounded: that is what one gets
from a loop over 16-bit numbers, and from matrix units that add up in 16 bits.

[Note: how it is computed]
Each product is rounded to the accumulator's format, and then each partial sum. PyTorch adds two
16-bit numbers by adding them in fp32 and rounding: fp32 has enough bits (24, at least twice 11 and
two more) for the result to be the exact sum rounded once. So one addition of tensors is one step of
all sums. Sums in fp32 are the processor's own products of matrices, in its order.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from lib.single.formats import BF16, FP16, FP32, FloatFormat
from lib.single.precision.accumulate import matmul_in
from lib.single.precision.replace import replace_linear

DTYPES = {FP16: torch.float16, BF16: torch.bfloat16}
AT_ONCE = 2**14  # products that are held at the same time: they fit a processor's cache


def accumulated(
    model: nn.Module, accumulator: FloatFormat, block: int | None = None, *,
    keep: Sequence[str] = (),
) -> nn.Module:  # fmt: skip
    """Put an AccumulatingLinear in the place of every linear layer of a model; return the model.

    The layers keep their names and their parameters, so an optimizer made before still trains them.
    With `block` a sum in the accumulator ends after so many terms, and the sums of the blocks are
    added in fp32. `keep` names layers, or modules with layers, that stay as they are. Raises
    ValueError for a block without terms, and for names that the model has not.
    """
    if block is not None and block < 1:
        raise ValueError(f"A block has at least 1 term, not {block}.")
    return replace_linear(
        model, lambda linear, _: AccumulatingLinear(linear, accumulator, block), keep
    )


class AccumulatingLinear(nn.Linear):
    """Computes x · Wᵀ + b, [.., I] -> [.., O], with partial sums in the format `accumulator`.

    It takes over the parameters of `linear`. The bias is added in fp32, and the result is rounded
    to the type of x; gradients are rounded to the types of x, W and b.
    """

    def __init__(self, linear: nn.Linear, accumulator: FloatFormat, block: int | None = None):
        super().__init__(linear.in_features, linear.out_features, False, device="meta")
        self.weight, self.bias, self.training = linear.weight, linear.bias, linear.training
        self.accumulator, self.block = accumulator, block

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, self.in_features)
        how = self.accumulator, self.block
        y = _AccumulatedProduct.apply(rows, self.weight, self.bias, how)
        return y.view(*x.shape[:-1], self.out_features)


def product_in(
    accumulator: FloatFormat, a: Tensor, b: Tensor, block: int | None = None
) -> Tensor:  # fmt: skip
    """Return a [M, K] · b [K, N] -> [M, N] in fp32, with partial sums in `accumulator`.

    In formats of 16 bits it is `matmul_in` with products rounded to the accumulator, bit for bit
    where no product is below 2^-126, and faster for factors of 16 bits. In FP32 products are not
    rounded, and `block` changes nothing. Overflow is infinity.
    """
    if accumulator == FP32:
        with torch.autocast(a.device.type, enabled=False):
            return a.float() @ b.float()
    dtype = DTYPES.get(accumulator)
    if dtype is None or not {a.dtype, b.dtype} <= set(DTYPES.values()):
        return matmul_in(accumulator, a, b, block, products=accumulator)
    left = _terms_first(a.T, block).unsqueeze(-1)  # [terms, blocks, M, 1]
    right = _terms_first(b, block).unsqueeze(-2)  # [terms, blocks, 1, N]
    shape = left.shape[1], a.shape[0], b.shape[1]
    total = torch.zeros(shape, dtype=dtype, device=a.device)
    part = max(AT_ONCE // max(total.numel(), 1), 1)
    for some_left, some_right in zip(left.split(part), right.split(part), strict=True):
        for product in (some_left * some_right).to(dtype).unbind():
            total += product
    result = total.new_zeros(shape[1:], dtype=torch.float32)
    for block_sum in total:
        result += block_sum
    return result


def _terms_first(matrix: Tensor, block: int | None) -> Tensor:
    """Return [K, N] as [terms of a block, blocks, N] in fp32; zeros fill the last block."""
    block = block or max(len(matrix), 1)
    filled = pad(matrix.float(), (0, 0, 0, -len(matrix) % block))
    return filled.unflatten(0, (-1, block)).transpose(0, 1)


class _AccumulatedProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, how):
        ctx.how = how
        ctx.save_for_backward(x, weight)
        accumulator, block = how
        y = product_in(accumulator, x, weight.T, block)
        return (y if bias is None else y + bias.float()).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        (x, weight), (accumulator, block) = ctx.saved_tensors, ctx.how
        needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
        dx = dw = db = None
        if needs_x:
            dx = product_in(accumulator, dy, weight, block).to(x.dtype)
        if needs_weight:
            dw = product_in(accumulator, dy.T, x, block).to(weight.dtype)
        if needs_bias:
            db = product_in(accumulator, dy.new_ones(1, len(dy)), dy, block)[0]
        return dx, dw, db, None  # autograd gives db the bias's dtype
