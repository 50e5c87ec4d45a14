"""The two models that every method of the course transforms: a small GPT and an MLP.

    GPT  tokens [B, S] -> [B, S, D] -> ... -> logits [B, S, V]        MLP  x [B, I] -> ... -> [B, O]

[Note: chains]
The top-level forward is a loop over blocks, each from one tensor to one tensor. So a stage of a
pipeline is a slice, `model[2:5]`, and each method finds what it changes by name: `block.mlp`,
`block.attention.core`. A model never imports a method.
"""

from math import sqrt

import torch
from torch import nn
from torch.nn.functional import gelu, relu, scaled_dot_product_attention

from lib.predict.shape import GPTShape, MLPShape


class Chain(nn.Module):
    """Blocks that run one after the other; `chain[2:5]` is a Chain of the same blocks, shared.

    Names stay: `blocks.3.norm1.weight` has that name in every slice that holds block 3.
    """

    def __init__(self, blocks: dict[str, nn.Module]):
        super().__init__()
        self.blocks = nn.ModuleDict(blocks)

    def forward(self, x):
        for block in self.blocks.values():
            x = block(x)
        return x

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, part: slice) -> "Chain":
        if not isinstance(part, slice):
            raise TypeError(f"model[2:5] is a part of a model; for one block: model[{part}:][:1]")
        return Chain(dict(list(self.blocks.items())[part]))


class GPT(Chain):
    """A decoder as GPT-2's (norm before each part, learned positions), from its shape.

    The weights depend on `seed` alone, also on a GPU. Tokens [B, S] -> logits [B, S, V].
    """

    def __init__(self, shape: GPTShape = GPTShape(), seed: int = 0):  # noqa: B008 (it is frozen)
        layers = [Block(shape) for _ in range(shape.layers)]
        super().__init__(_numbered([Embedding(shape), *layers, Head(shape)]))
        self.shape = shape
        _draw(self, seed, residual=0.02 / sqrt(2 * shape.layers))
        if shape.tied:
            first, *_, last = self.blocks.values()
            last.linear.weight = first.tokens.weight


class MLP(Chain):
    """Linear layers with a ReLU between two, from its shape: x [B, I] -> [B, O]."""

    def __init__(self, shape: MLPShape = MLPShape(), seed: int = 0):  # noqa: B008 (it is frozen)
        pairs = list(zip(shape.widths, shape.widths[1:]))
        layers = [Layer(i, o, shape.bias, n + 1 == len(pairs)) for n, (i, o) in enumerate(pairs)]
        super().__init__(_numbered(layers))
        self.shape = shape
        _draw(self, seed)


class Embedding(nn.Module):
    """Tokens [B, S] -> [B, S, D]: what each token is, plus where it stands."""

    def __init__(self, shape: GPTShape):
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.sequence, shape.width)

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.tokens(tokens) + self.positions(places)


class Block(nn.Module):
    """One layer of a GPT, [B, S, D] -> [B, S, D]: attend, then feed forward, each added to x."""

    def __init__(self, shape: GPTShape):
        super().__init__()
        self.norm1 = nn.LayerNorm(shape.width)
        self.attention = Attention(shape)
        self.norm2 = nn.LayerNorm(shape.width)
        self.mlp = FeedForward(shape)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Attention(nn.Module):
    """Causal attention, [B, S, D] -> [B, S, D]; `core` works on q, k, v of [B, H, S, K]."""

    def __init__(self, shape: GPTShape):
        super().__init__()
        self.head_size = shape.width // shape.heads
        # Rows lie as [H, 3, K]: a cut along dim 0 between two heads leaves whole heads.
        self.qkv = nn.Linear(shape.width, 3 * shape.width)
        self.proj = nn.Linear(shape.width, shape.width)
        self.core = causal

    def forward(self, x):
        b, s, _ = x.shape
        qkv = self.qkv(x).view(b, s, -1, 3, self.head_size)  # [B, S, H, 3, K]
        q, k, v = qkv.transpose(1, 2).unbind(3)  # each [B, H, S, K]
        return self.proj(self.core(q, k, v).transpose(1, 2).reshape(b, s, -1))


def causal(q, k, v):
    """softmax(q·k / √K)·v, where a token sees itself and those before it: [B, H, S, K]."""
    return scaled_dot_product_attention(q, k, v, is_causal=True)


class FeedForward(nn.Module):
    """[B, S, D] -> [B, S, F] -> [B, S, D]."""

    def __init__(self, shape: GPTShape):
        super().__init__()
        self.up = nn.Linear(shape.width, shape.hidden)
        self.down = nn.Linear(shape.hidden, shape.width)

    def forward(self, x):
        return self.down(gelu(self.up(x)))


class Head(nn.Module):
    """[B, S, D] -> logits [B, S, V]."""

    def __init__(self, shape: GPTShape):
        super().__init__()
        self.norm = nn.LayerNorm(shape.width)
        self.linear = nn.Linear(shape.width, shape.vocabulary, bias=False)

    def forward(self, x):
        return self.linear(self.norm(x))


class Layer(nn.Module):
    """x [B, I] · W [I, O] -> [B, O], and a ReLU unless it is the last."""

    def __init__(self, i: int, o: int, bias: bool, last: bool):
        super().__init__()
        self.linear, self.last = nn.Linear(i, o, bias), last

    def forward(self, x):
        x = self.linear(x)
        return x if self.last else relu(x)


def _numbered(blocks: list) -> dict[str, nn.Module]:
    return {str(number): block for number, block in enumerate(blocks)}


def _draw(model: nn.Module, seed: int, residual: float | None = None) -> None:
    """Draw the weights from a generator of their own, in the order of their names.

    GPT-2's rule where `residual` is given (0.02; what is added to x: `residual`), else He's √(2/I).
    """
    generator = torch.Generator("cpu").manual_seed(seed)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
        elif parameter.dim() > 1 and not parameter.is_meta:
            added = name.endswith(("proj.weight", "down.weight"))
            scale = residual if added else 0.02
            scale = scale if residual else sqrt(2 / parameter.shape[1])
            # On the CPU, then over: the same numbers on every device.
            drawn = torch.randn(
                parameter.shape, generator=generator, dtype=torch.float32, device="cpu"
            )
            parameter.data.copy_(scale * drawn)
