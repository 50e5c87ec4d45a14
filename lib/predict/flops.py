"""Arithmetic of a step: the FLOP of each block, forward and backward, from the model's shape.

[Note: what is counted]
Each multiply-add of a matrix product counts as two operations, as in PyTorch
(torch.utils.flop_counter); all other operations move bytes and hardly compute. A linear layer costs
2·B·S·I·O three times: forward, backward for its input, backward for its weight. Attention needs two
matrix products forward and five backward (the scores are computed again), all of them over S × S
and all query heads, however many share a key; a kernel that skips the masked half does half of
that. With dropout the CPU keeps the probabilities, so that backward has four products.
"""

from typing import NamedTuple

from lib.predict.arguments import real, whole
from lib.predict.shape import GPTShape, MLPShape, ModelShape, length_of


class Flop(NamedTuple):
    """Holds the operations of a block or a model: forward, backward for input and for weights."""

    forward: int
    backward_input: int
    backward_weight: int

    @property
    def backward(self) -> int:
        """Return the operations of the whole backward."""
        return self.backward_input + self.backward_weight

    @property
    def total(self) -> int:
        """Return the operations of forward and backward together."""
        return sum(self)


def flops_of_blocks(shape: ModelShape, batch: int, sequence: int | None = None) -> list[Flop]:
    """Return the FLOP of each block for `batch` samples; a GPT's have `sequence` tokens each."""
    batch = whole(batch, "batch")
    if isinstance(shape, MLPShape):
        pairs = list(zip(shape.widths, shape.widths[1:]))
        return [_linear(batch, i, o, first=not n) for n, (i, o) in enumerate(pairs)]
    if not isinstance(shape, GPTShape):
        raise ValueError(f"The FLOP of a {type(shape).__name__} are not known here.")
    s = length_of(shape, sequence)
    tokens, d, f = batch * s, shape.width, shape.hidden
    product = 2 * batch * s * s * d  # one of attention's products, all heads together
    block = _sum(
        [
            _linear(tokens, d, shape.qkv_width),
            Flop(2 * product, (4 if shape.dropout else 5) * product, 0),
            _linear(tokens, d, d),
            _linear(tokens, d, f),
            _linear(tokens, f, d),
        ]
    )
    embedding = Flop(0, 0, 0)  # a look-up
    return [embedding, *[block] * shape.layers, _linear(tokens, d, shape.vocabulary)]


def flops(shape: ModelShape, batch: int, sequence: int | None = None) -> Flop:
    """Return the FLOP of one step of the whole model."""
    return _sum(flops_of_blocks(shape, batch, sequence))


def six_n(parameters: float, tokens: float) -> float:
    """Return the rule of thumb: 6 operations for each parameter and token.

    It leaves out attention and counts embeddings. Kaplan et al. 2020, arXiv 2001.08361, section
    2.1.
    """
    return 6 * real(parameters, "parameters") * real(tokens, "tokens")


def training_flop(shape: GPTShape, tokens: float, recompute: str = "none") -> float:
    """Return the operations of training on `tokens`, in samples of the shape's longest sequence.

    `recompute` is "none" (72 L D² (1 + S/6D + V/12LD) for each token where F is 4 D), "full" (all
    blocks run forward again: 96 L D² (1 + S/6D + V/16LD), Narayanan et al. 2021, arXiv 2104.04473,
    equation 3) or "selective" (72 L D² (1 + S/3D + V/12LD), Korthikanti et al. 2022, arXiv
    2205.05198: as published it counts attention's two products twice, forward and backward, though
    only forward is computed again).
    """
    if not isinstance(shape, GPTShape):
        raise ValueError(f"The training FLOP of a {type(shape).__name__} are not known here.")
    # Attention's two matrix products, for each token.
    d, products = shape.width, 4 * shape.sequence * shape.width
    block = 2 * d * (shape.qkv_width + d) + 4 * d * shape.hidden + products
    again = {"none": 0, "full": block, "selective": 3 * products}
    if recompute not in again:
        raise ValueError(
            f"No recomputation is called {recompute!r}. Choose one of {', '.join(again)}."
        )
    return real(tokens, "tokens") * (
        shape.layers * (3 * block + again[recompute]) + 6 * d * shape.vocabulary
    )


def _linear(rows: int, i: int, o: int, first: bool = False) -> Flop:
    """Count x [rows, i] · W [i, o]; the input of the first layer needs no gradient."""
    product = 2 * rows * i * o
    return Flop(product, 0 if first else product, product)


def _sum(parts: list[Flop]) -> Flop:
    return Flop(*map(sum, zip(*parts)))
