"""The two models that every method of the course parallelizes: a small GPT and an MLP.

    GPT  tokens [B, S] -> [B, S, D] -> ... -> logits [B, S, V]        MLP  x [B, I] -> ... -> [B, O]

[Note: chains]
The top-level forward is a loop over blocks, and each block maps one tensor to one tensor. So a
stage of a pipeline is a slice, `model[2:5]`, and a method finds the parts that it changes by name:
`block.mlp`, `block.attention.core`. A model never imports a method.
"""

from math import sqrt

import torch
from torch import nn
from torch.nn.functional import gelu, relu, scaled_dot_product_attention

from lib.predict.shape import GPTShape, MLPShape
from lib.single.rotary import rotated, rotation


class Chain(nn.Module):
    """Runs blocks one after the other; `chain[2:5]` is a Chain that shares the same blocks.

    Names do not change: `blocks.3.norm1.weight` has that name in every slice that holds block 3.
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
            raise TypeError(
                f"A model is indexed by slices, as in model[2:5]. For one block write "
                f"model[{part}:][:1]."
            )
        return Chain(dict(list(self.blocks.items())[part]))


class GPT(Chain):
    """A decoder like GPT-2 (norm before each part), built from its shape.

    Tokens [B, S] -> logits [B, S, V]. The initial weights depend on `seed` alone, on a GPU as well.
    Dropout takes its random numbers from the device's own generator, and only in training.
    """

    def __init__(self, shape: GPTShape = GPTShape(), seed: int = 0):  # noqa: B008 (it is frozen)
        layers = [Block(shape) for _ in range(shape.layers)]
        super().__init__(_numbered([Embedding(shape), *layers, Head(shape)]))
        self.shape = shape
        _draw(self, seed, residual=0.02 / sqrt(2 * max(shape.layers, 1)))
        if shape.tied:
            first, *_, last = self.blocks.values()
            last.linear.weight = first.tokens.weight


class MLP(Chain):
    """Linear layers with a ReLU between each two, built from its shape: x [B, I] -> [B, O]."""

    def __init__(self, shape: MLPShape = MLPShape(), seed: int = 0):  # noqa: B008 (it is frozen)
        pairs = list(zip(shape.widths, shape.widths[1:]))
        layers = [Layer(i, o, shape.bias, n + 1 == len(pairs)) for n, (i, o) in enumerate(pairs)]
        super().__init__(_numbered(layers))
        self.shape = shape
        _draw(self, seed)


class Embedding(nn.Module):
    """Adds the embedding of each token and that of its position: [B, S] -> [B, S, D].

    Where positions are rotary, `positions` is None, and attention turns its queries and keys.
    `position_ids(S, device)` gives the position of each token; without one they are 0, 1, .. S - 1.
    """

    position_ids = None

    def __init__(self, shape: GPTShape):
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        learned = shape.positions == "learned"
        self.positions = nn.Embedding(shape.sequence, shape.width) if learned else None
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, tokens):
        if self.positions is None:
            return self.dropout(self.tokens(tokens))
        if self.position_ids is None:
            positions = torch.arange(tokens.shape[1], device=tokens.device)
        else:
            positions = self.position_ids(tokens.shape[1], tokens.device)
        return self.dropout(self.tokens(tokens) + self.positions(positions))


class Block(nn.Module):
    """One layer of a GPT, [B, S, D] -> [B, S, D]: attention, then an MLP, each added to x."""

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
    """Causal attention, [B, S, D] -> [B, S, D]; `core` works on q [B, H, S, K], k, v [B, G, S, K].

    The H query heads form G groups, and the n = H/G heads of a group share one key and one value
    (grouped-query attention; with G = H each head has its own). `position_ids` is as in Embedding.
    """

    position_ids = None

    def __init__(self, shape: GPTShape):
        super().__init__()
        self.head_size, self.rotary = shape.head_size, shape.positions == "rotary"
        self.group_size = shape.heads // shape.kv_heads  # n
        # Rows are ordered as [G, n + 2, K], so that dim 0 can be cut between any two groups.
        self.qkv = nn.Linear(shape.width, shape.qkv_width)
        self.proj = nn.Linear(shape.width, shape.width)
        self.core, self.dropout = causal, nn.Dropout(shape.dropout)

    def forward(self, x):
        qkv = self.qkv(x)
        b, s, _ = qkv.shape
        qkv = qkv.view(b, s, -1, self.group_size + 2, self.head_size)  # [B, S, G, n + 2, K]
        q, k, v = qkv.transpose(1, 2).split((self.group_size, 1, 1), 3)  # each [B, G, S, .., K]
        if self.rotary:
            positions = s if self.position_ids is None else self.position_ids(s, q.device)
            turn = rotation(positions, self.head_size, q)
            q, k = rotated(q, *turn), rotated(k, *turn)
        # Lying in memory as [B, S, H, K], as the result then does, which so need not be copied.
        q, k, v = (part.transpose(1, 2).flatten(2, 3).transpose(1, 2) for part in (q, k, v))
        y = self.core(q, k, v, self.dropout.p if self.training else 0.0)  # [B, H, S, K]
        return self.dropout(self.proj(y.transpose(1, 2).reshape(b, s, -1)))


def causal(q, k, v, dropout: float = 0.0):
    """Return softmax(q·k / √K)·v over each token and those before it: [B, H, S, K].

    k and v may have fewer heads than q, [B, G, S, K]. Each probability is 0 with the probability
    `dropout`.
    """
    grouped = q.shape[1] != k.shape[1]
    return scaled_dot_product_attention(
        q, k, v, dropout_p=dropout, is_causal=True, enable_gqa=grouped
    )


class FeedForward(nn.Module):
    """Two linear maps with a GELU between: [B, S, D] -> [B, S, F] -> [B, S, D]."""

    def __init__(self, shape: GPTShape):
        super().__init__()
        self.up = nn.Linear(shape.width, shape.hidden)
        self.down = nn.Linear(shape.hidden, shape.width)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, x):
        return self.dropout(self.down(gelu(self.up(x))))


class Head(nn.Module):
    """The last block, a norm and a linear map: [B, S, D] -> logits [B, S, V]."""

    def __init__(self, shape: GPTShape):
        super().__init__()
        self.norm = nn.LayerNorm(shape.width)
        self.linear = nn.Linear(shape.width, shape.vocabulary, bias=False)

    def forward(self, x):
        return self.linear(self.norm(x))


class Layer(nn.Module):
    """A linear layer, x [B, I] · W [I, O] -> [B, O], followed by a ReLU unless it is the last."""

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

    Where `residual` is given, the rule is GPT-2's: a scale of 0.02, and of `residual` for matrices
    whose output is added to x. Otherwise it is He's, √(2/I).
    """
    generator = torch.Generator("cpu").manual_seed(seed)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
        elif parameter.dim() > 1 and not parameter.is_meta:
            added_to_x = name.endswith(("proj.weight", "down.weight"))
            scale = residual if added_to_x else 0.02
            scale = scale if residual else sqrt(2 / parameter.shape[1])
            # Drawn on the CPU and copied, so that every device gets the same numbers.
            drawn = torch.randn(
                parameter.shape, generator=generator, dtype=torch.float32, device="cpu"
            )
            parameter.data.copy_(scale * drawn)
