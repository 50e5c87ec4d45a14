"""Sums and matrix products whose partial sums are rounded to a small format after every addition.

    s_0 = 0,    s_k = round(s_(k-1) + a_k · b_k),    k = 1 ... K

All outputs are computed at once, one term of each after the other. The product and the addition are
exact before they are rounded (up to fp32's 24 bits for each factor), so every result is the one
that a processor with such an accumulator would give.

[Note: in blocks]
A large partial sum swallows small terms: what is below half of its last bit changes nothing. With
`block` the small accumulator begins again from zero after so many terms, and the sums of the blocks
are added in `outer`, which is fp32. DeepSeek-V3 does so after 128 products, because the tensor
cores of H800 GPUs keep about 14 bits of a sum (DeepSeek-AI 2024, "DeepSeek-V3 Technical Report",
section 3.3.2; `FloatFormat(8, 13)` has as many). A tensor core cuts off where this rounds, and adds
several products before it does.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from lib.single.formats import FP32, FloatFormat
from lib.single.formats.odd import add


def sum_in(
    accumulator: FloatFormat, terms: Tensor, block: int | None = None, *,
    outer: FloatFormat = FP32, rounding: str = "nearest", overflow: str = "infinity",
    generator: torch.Generator | None = None,
) -> Tensor:  # fmt: skip
    """Return the sums over the last dim, [..., K] -> [...], with partial sums in `accumulator`.

    `rounding`, `overflow` and `generator` are those of `FloatFormat.encode`. The result is in fp32.
    Raises ValueError for a block without terms, and what `FloatFormat.encode` raises.
    """
    terms = _in_blocks(terms.double(), block)
    options = {"rounding": rounding, "overflow": overflow, "generator": generator}
    sums = _accumulate(lambda k: terms[..., k], terms.shape[-1], accumulator, options)
    return _joined(sums, accumulator if block is None else outer, options)


def matmul_in(
    accumulator: FloatFormat, a: Tensor, b: Tensor, block: int | None = None, *,
    products: FloatFormat | None = None, outer: FloatFormat = FP32, rounding: str = "nearest",
    overflow: str = "infinity", generator: torch.Generator | None = None,
) -> Tensor:  # fmt: skip
    """Return a [M, K] · b [K, N] -> [M, N] with partial sums in `accumulator`.

    The factors are taken as they are: round them to a small format before. Products are exact, or
    rounded to `products`. The other arguments, the result and the errors are those of `sum_in`.
    """
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        raise ValueError(
            f"A product of matrices needs [M, K] and [K, N], not {list(a.shape)} and "
            f"{list(b.shape)}."
        )
    left = _in_blocks(a.double(), block).unsqueeze(1)  # [M, 1, blocks, k]
    right = _in_blocks(b.double().T, block).unsqueeze(0)  # [1, N, blocks, k]
    options = {"rounding": rounding, "overflow": overflow, "generator": generator}

    def term(k: int) -> Tensor:
        product = left[..., k] * right[..., k]
        return product if products is None else products.round(product, **options)

    sums = _accumulate(term, left.shape[-1], accumulator, options)
    return _joined(sums, accumulator if block is None else outer, options)


def relative_error(result: Tensor, a: Tensor, b: Tensor) -> float:
    """Return by how much a · b is off from the product in fp64, as a share of it.

    The errors of all entries are taken together: the root of their mean square, divided by that of
    the exact entries.
    """
    exact = a.double() @ b.double()
    return ((result.double() - exact).norm() / exact.norm()).item()


def softmax_in(form: FloatFormat, x: Tensor, subtract_maximum: bool = True) -> Tensor:
    """Return the softmax over the last dim with every step rounded to `form`, in fp32.

        softmax(x)_i = exp(x_i - m) / Σ_j exp(x_j - m)

    With `subtract_maximum` m is the largest x, and no exponential is above 1. Without it m is 0,
    and exp(12) is more than fp16 holds: it becomes infinity, and infinity / infinity is NaN.
    """
    x = form.round(x.double(), overflow="infinity")
    if subtract_maximum:
        x = form.round(x - x.amax(-1, keepdim=True), overflow="infinity")
    exponentials = form.round(x.exp(), overflow="infinity")
    total = sum_in(form, exponentials).double().unsqueeze(-1)
    return form.round(exponentials / total, overflow="infinity").float()


def _in_blocks(terms: Tensor, block: int | None) -> Tensor:
    """Return [..., K] as [..., blocks, terms of a block]; zeros fill the last block."""
    if block is not None and block < 1:
        raise ValueError(f"A block has at least 1 term, not {block}.")
    block = block or max(terms.shape[-1], 1)
    missing = -terms.shape[-1] % block
    return torch.nn.functional.pad(terms, (0, missing)).unflatten(-1, (-1, block))


def _accumulate(
    term: Callable[[int], Tensor], count: int, form: FloatFormat, options: dict
) -> Tensor:
    """Return the sum of the terms in turn, rounded after each."""
    total = torch.zeros_like(term(0))
    for k in range(count):
        # Rounded to odd first, so that rounding to the format is as if from the exact sum.
        total = form.round(add(total, term(k)), **options)
    return total


def _joined(sums: Tensor, outer: FloatFormat, options: dict) -> Tensor:
    """Return the sum of the blocks' sums [..., blocks] in turn, in fp32."""
    if sums.shape[-1] == 1:
        return sums[..., 0].float()
    return _accumulate(lambda k: sums[..., k], sums.shape[-1], outer, options).float()
