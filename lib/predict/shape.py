"""The shapes of the models: each parameter's name and shape, in the order of definition.

    GPT  tokens [B, S] -> [B, S, D] -> layers × [B, S, D] -> logits [B, S, V]
    MLP  x [B, I] -> ... -> [B, O]

`lib/single/models.py` builds the same models from the same shapes; a test holds them together.
"""

from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from lib.predict.arguments import equal_share, real, whole


class Parameter(NamedTuple):
    """Describes a parameter: its name in `model.named_parameters()`, its shape, its block."""

    name: str
    shape: tuple[int, ...]
    block: int = 0

    @property
    def numel(self) -> int:
        """Return the number of elements."""
        return prod(self.shape)


class ModelShape:
    """The base of all model shapes: a subclass gives `parameters`, one for each trained tensor."""

    parameters: tuple[Parameter, ...]

    @property
    def numel(self) -> int:
        """Return the number of elements in all parameters; a tied parameter counts once."""
        return sum(parameter.numel for parameter in self.parameters)

    def nbytes(self, itemsize: int = 4) -> int:
        """Return the bytes of all parameters, `itemsize` bytes for each element."""
        return self.numel * whole(itemsize, "itemsize")

    @property
    def blocks(self) -> int:
        """Return the number of blocks that the top-level forward loops over."""
        return 1 + max(parameter.block for parameter in self.parameters)


@dataclass(frozen=True)
class GPTShape(ModelShape):
    """Describes a GPT: V `vocabulary`, S longest `sequence`, D `width`, H `heads`, F `hidden`.

    Block 0 holds the embeddings, blocks 1 to `layers` are transformer layers, and the last block
    computes logits. If `tied`, the last block's matrix is the embedding of the tokens. With
    G `kv_heads`, each key and value is shared by H/G heads. `positions` are "learned" (a matrix) or
    "rotary" (none). In training, `dropout` is the probability that a number becomes 0.
    """

    vocabulary: int = 256
    sequence: int = 64
    width: int = 64
    heads: int = 4
    layers: int = 4
    hidden: int = 0  # 0 stands for four times the width
    tied: bool = False
    kv_heads: int = 0  # 0 stands for as many as heads
    positions: str = "learned"
    dropout: float = 0.0

    def __post_init__(self):
        for name in ("vocabulary", "sequence", "width", "heads"):
            whole(getattr(self, name), f"{name} of a GPT")
        for name in ("layers", "hidden", "kv_heads"):
            whole(getattr(self, name), f"{name} of a GPT", 0)
        equal_share(
            self.width, self.heads, "The width of a GPT has {} entries", "{} heads",
            advice=f"Choose a width that {self.heads} divides.",
        )  # fmt: skip
        if not self.hidden:
            object.__setattr__(self, "hidden", 4 * self.width)
        if not self.kv_heads:
            object.__setattr__(self, "kv_heads", self.heads)
        equal_share(
            self.heads, self.kv_heads, "A GPT has {} heads", "{} heads of keys",
            advice=f"Choose a number of kv_heads that divides {self.heads}.",
        )  # fmt: skip
        self._refuse_unknown_options()

    def _refuse_unknown_options(self) -> None:
        if self.positions not in ("learned", "rotary"):
            raise ValueError(
                f"positions of a GPT must be 'learned' or 'rotary', not {self.positions!r}."
            )
        if self.positions == "rotary" and self.head_size % 2:
            raise ValueError(
                f"Rotary positions turn pairs of numbers, but a head has {self.head_size}. Choose "
                "a width and heads that give an even number."
            )
        if real(self.dropout, "dropout of a GPT") >= 1:
            raise ValueError(f"dropout of a GPT must be below 1, not {self.dropout!r}.")

    @property
    def head_size(self) -> int:
        """Return K, the numbers of a head: the width divided by the heads."""
        return self.width // self.heads

    @property
    def qkv_width(self) -> int:
        """Return the rows of attention's first matrix: (H + 2 G) · K."""
        return (self.heads + 2 * self.kv_heads) * self.head_size

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Return every parameter in the order of `GPT(shape).named_parameters()`."""
        d, f, qkv = self.width, self.hidden, self.qkv_width
        block = (
            ("norm1.weight", (d,)), ("norm1.bias", (d,)),
            ("attention.qkv.weight", (qkv, d)), ("attention.qkv.bias", (qkv,)),
            ("attention.proj.weight", (d, d)), ("attention.proj.bias", (d,)),
            ("norm2.weight", (d,)), ("norm2.bias", (d,)),
            ("mlp.up.weight", (f, d)), ("mlp.up.bias", (f,)),
            ("mlp.down.weight", (d, f)), ("mlp.down.bias", (d,)),
        )  # fmt: skip
        first = ("tokens.weight", (self.vocabulary, d)), ("positions.weight", (self.sequence, d))
        last = ("norm.weight", (d,)), ("norm.bias", (d,)), ("linear.weight", (self.vocabulary, d))
        if self.positions == "rotary":
            first = first[:1]
        return _named([first, *[block] * self.layers, last[:2] if self.tied else last])


@dataclass(frozen=True)
class MLPShape(ModelShape):
    """Describes a chain of linear layers with these `widths`, a ReLU between each two of them.

    Each layer is a block.
    """

    widths: tuple[int, ...] = (64, 256, 256, 64)
    bias: bool = True

    def __post_init__(self):
        if len(self.widths) < 2:
            raise ValueError(f"An MLP needs two or more widths, not {self.widths}.")
        for width in self.widths:
            whole(width, "A width of an MLP")

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Return every parameter in the order of `MLP(shape).named_parameters()`."""
        layers = []
        for i, o in zip(self.widths, self.widths[1:]):
            layers.append((("linear.weight", (o, i)), ("linear.bias", (o,)))[: 1 + self.bias])
        return _named(layers)


def length_of(shape: GPTShape, sequence: int | None = None) -> int:
    """Return the tokens in a sample: `sequence`, or by default the longest that the shape allows.

    Raises ValueError where `sequence` is longer than that.
    """
    length = shape.sequence if sequence is None else whole(sequence, "sequence")
    if length > shape.sequence:
        raise ValueError(
            f"A sample of {length} tokens is too long: this model takes at most {shape.sequence}."
        )
    return length


def _named(blocks) -> tuple[Parameter, ...]:
    return tuple(
        Parameter(f"blocks.{number}.{name}", shape, number)
        for number, block in enumerate(blocks)
        for name, shape in block
    )
