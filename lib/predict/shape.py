"""Models on paper: every parameter's name and shape, in the order in which the model defines them.

    GPT  tokens [B, S] -> [B, S, D] -> layers × [B, S, D] -> logits [B, S, V]
    MLP  x [B, I] -> ... -> [B, O]

`lib/single/models.py` builds the same models from the same shapes; a test holds them together.
"""

from dataclasses import dataclass
from math import prod
from typing import NamedTuple


class Parameter(NamedTuple):
    """One parameter: its name in `model.named_parameters()`, its shape, its block's number."""

    name: str
    shape: tuple[int, ...]
    block: int = 0

    @property
    def numel(self) -> int:
        """How many numbers it holds."""
        return prod(self.shape)


class ModelShape:
    """What all shapes of models share: `parameters`, one for each tensor that is trained."""

    parameters: tuple[Parameter, ...]

    @property
    def numel(self) -> int:
        """Numbers in all parameters; a tied one counts once."""
        return sum(parameter.numel for parameter in self.parameters)

    def nbytes(self, itemsize: int = 4) -> int:
        """Bytes of all parameters, `itemsize` bytes for each number."""
        return self.numel * itemsize

    @property
    def blocks(self) -> int:
        """How many blocks the top-level forward loops over."""
        return 1 + max(parameter.block for parameter in self.parameters)


@dataclass(frozen=True)
class GPTShape(ModelShape):
    """A GPT: V `vocabulary`, S `sequence` (longest), D `width`, H `heads`, F `hidden` (4 D).

    Block 0 holds the embeddings, blocks 1 to `layers` attend and feed forward, the last block
    gives logits. `tied`: the last block's matrix is the embedding of the tokens.
    """

    vocabulary: int = 256
    sequence: int = 64
    width: int = 64
    heads: int = 4
    layers: int = 4
    hidden: int = 0  # 0: four times the width
    tied: bool = False

    def __post_init__(self):
        if self.width % self.heads:
            raise ValueError(
                f"width {self.width} has no {self.heads} equal heads: choose a width that "
                f"{self.heads} divides"
            )
        if not self.hidden:
            object.__setattr__(self, "hidden", 4 * self.width)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Every parameter by name and shape, as `GPT(shape).named_parameters()` lists them."""
        d, f = self.width, self.hidden
        block = (
            ("norm1.weight", (d,)), ("norm1.bias", (d,)),
            ("attention.qkv.weight", (3 * d, d)), ("attention.qkv.bias", (3 * d,)),
            ("attention.proj.weight", (d, d)), ("attention.proj.bias", (d,)),
            ("norm2.weight", (d,)), ("norm2.bias", (d,)),
            ("mlp.up.weight", (f, d)), ("mlp.up.bias", (f,)),
            ("mlp.down.weight", (d, f)), ("mlp.down.bias", (d,)),
        )  # fmt: skip
        first = ("tokens.weight", (self.vocabulary, d)), ("positions.weight", (self.sequence, d))
        last = ("norm.weight", (d,)), ("norm.bias", (d,)), ("linear.weight", (self.vocabulary, d))
        return _named([first, *[block] * self.layers, last[:2] if self.tied else last])


@dataclass(frozen=True)
class MLPShape(ModelShape):
    """A chain of linear layers of these `widths` with a ReLU between two: one layer is a block."""

    widths: tuple[int, ...] = (64, 256, 256, 64)
    bias: bool = True

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Every parameter by name and shape, as `MLP(shape).named_parameters()` lists them."""
        layers = []
        for i, o in zip(self.widths, self.widths[1:]):
            layers.append((("linear.weight", (o, i)), ("linear.bias", (o,)))[: 1 + self.bias])
        return _named(layers)


def _named(blocks) -> tuple[Parameter, ...]:
    return tuple(
        Parameter(f"blocks.{number}.{name}", shape, number)
        for number, block in enumerate(blocks)
        for name, shape in block
    )
