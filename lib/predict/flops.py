"""The arithmetic of a step: FLOP of each block, forward and backward, from the model's shape alone.

[Note: what is counted]
Two for each multiply-add of a matrix product, as PyTorch counts (torch.utils.flop_counter); the
rest of the work moves bytes and hardly computes. A linear layer costs 2·B·S·I·O three times:
forward, for its input, for its weight. Attention makes two products forward and five backward (the
scores are made anew), all of S × S: a kernel that skips what the mask hides does half.
"""

from typing import NamedTuple

from lib.predict.shape import GPTShape, MLPShape, ModelShape


class Flop(NamedTuple):
    """Operations of one block, or of a model: forward, backward for input and for weights."""

    forward: int
    backward_input: int
    backward_weight: int

    @property
    def backward(self) -> int:
        """The whole backward."""
        return self.backward_input + self.backward_weight

    @property
    def total(self) -> int:
        """Forward and backward."""
        return sum(self)


def flops_of_blocks(shape: ModelShape, batch: int, sequence: int | None = None) -> list[Flop]:
    """Give the FLOP of each block for `batch` samples, of `sequence` tokens where there are any."""
    if isinstance(shape, MLPShape):
        pairs = list(zip(shape.widths, shape.widths[1:]))
        return [_linear(batch, i, o, first=not n) for n, (i, o) in enumerate(pairs)]
    if not isinstance(shape, GPTShape):
        raise ValueError(f"the FLOP of a {type(shape).__name__} are not known here")
    s = sequence or shape.sequence
    if s > shape.sequence:
        raise ValueError(f"{s} tokens do not fit: this model's sequence is {shape.sequence}")
    tokens, d, f = batch * s, shape.width, shape.hidden
    product = 2 * batch * s * s * d  # one of attention's products, all heads together
    block = _sum(
        [
            _linear(tokens, d, 3 * d),
            Flop(2 * product, 5 * product, 0),
            _linear(tokens, d, d),
            _linear(tokens, d, f),
            _linear(tokens, f, d),
        ]
    )
    embedding = Flop(0, 0, 0)  # a look-up
    return [embedding, *[block] * shape.layers, _linear(tokens, d, shape.vocabulary)]


def flops(shape: ModelShape, batch: int, sequence: int | None = None) -> Flop:
    """Give the FLOP of one step of the whole model."""
    return _sum(flops_of_blocks(shape, batch, sequence))


def gradient_seconds(
    shape: ModelShape, batch: int, speeds, sequence: int | None = None, itemsize: int = 4
) -> list[float]:
    """Give backward's seconds for each of `shape.parameters`, in their order.

    A block takes `speeds.compute(flop, bytes)`, its bytes being its weights', read, and their
    gradients', written; its time is shared out by the sizes of its parameters.
    """
    blocks = flops_of_blocks(shape, batch, sequence)
    numels = [0] * len(blocks)
    for parameter in shape.parameters:
        numels[parameter.block] += parameter.numel
    seconds = [
        speeds.compute(flop.backward, 2 * numel * itemsize) for flop, numel in zip(blocks, numels)
    ]
    return [seconds[p.block] * p.numel / numels[p.block] for p in shape.parameters]


def six_n(parameters: float, tokens: float) -> float:
    """Give the rule of thumb: 6 operations for each parameter and token.

    Kaplan et al. 2020, arXiv 2001.08361, section 2.1. Looks away from attention, counts embeddings.
    """
    return 6 * parameters * tokens


def _linear(rows: int, i: int, o: int, first: bool = False) -> Flop:
    """x [rows, i] · W [i, o]; the data under the first layer want no gradient."""
    product = 2 * rows * i * o
    return Flop(product, 0 if first else product, product)


def _sum(parts: list[Flop]) -> Flop:
    return Flop(*map(sum, zip(*parts)))
