"""Models that nobody tuned for, each with its batch and its loss, for the tests of this folder."""

from dataclasses import replace
from typing import ClassVar

import torch
from torch import nn

from lib.predict.shape import GPTShape, MLPShape
from lib.single import GPT, MLP, mean_squares, next_token_loss

TOKENS = GPTShape(width=16, heads=2, layers=3, vocabulary=256, sequence=16)


class Plain:
    """What all of these have: a loss, and a batch that depends on the seed alone."""

    loss = staticmethod(mean_squares)
    inputs, outputs = (6,), (4,)

    def batch(self, seed=0, dtype=torch.float64):
        draw = torch.Generator().manual_seed(seed)
        sizes = (8, *self.inputs), (8, *self.outputs)
        return tuple(torch.randn(size, generator=draw, dtype=dtype) for size in sizes)


class Perceptron(MLP, Plain):
    """Three layers; with their biases no unit's numel divides by 4."""

    def __init__(self):
        super().__init__(MLPShape((6, 9, 7, 4)))


class Tokens(GPT, Plain):
    """A small GPT."""

    options: ClassVar[dict] = {}
    loss = staticmethod(next_token_loss)

    def __init__(self):
        super().__init__(replace(TOKENS, **self.options))

    def batch(self, seed=0, dtype=None):
        draw = torch.Generator().manual_seed(seed)
        tokens = torch.randint(256, (8, 17), generator=draw)
        return tokens[:, :-1], tokens[:, 1:]


class Tied(Tokens):
    """A small GPT whose head is its embedding: two units share a weight."""

    options: ClassVar[dict] = {"tied": True}


class Grouped(Tokens):
    """A small GPT whose four heads share two keys and values, with rotary positions."""

    options: ClassVar[dict] = {"heads": 4, "kv_heads": 2, "positions": "rotary"}


class Recurrent(nn.Module, Plain):
    """An LSTM, which keeps a second list of its weights."""

    inputs, outputs = (5, 6), (4,)

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.lstm, self.head = nn.LSTM(6, 7, 2, batch_first=True), nn.Linear(7, 4)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


class Images(nn.Module, Plain):
    """Convolutions with batch norm, its buffers and a shortcut."""

    inputs, outputs = (3, 6, 6), (5,)

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.first = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4))
        self.second = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4))
        self.head = nn.Linear(4, 5)

    def forward(self, x):
        x = self.first(x).relu()
        x = x + self.second(x).relu()
        return self.head(x.mean((2, 3)))


class Twice(nn.Module, Plain):
    """A list of blocks that runs twice."""

    inputs = outputs = (5,)

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.blocks = nn.ModuleList(nn.Linear(5, 5) for _ in range(3))

    def forward(self, x):
        for block in (*self.blocks, *self.blocks):
            x = x + block(x).tanh()
        return x


class Frozen(Twice):
    """A block is frozen, and so is one of the biases."""

    def __init__(self):
        super().__init__()
        self.blocks[1].requires_grad_(False)
        self.blocks[2].bias.requires_grad_(False)


class Unused(Twice):
    """One block never runs, and one weight of another has no part in the loss."""

    def __init__(self):
        super().__init__()
        self.never = nn.ModuleList([nn.Linear(5, 5)])
        self.blocks[0].spare = nn.Parameter(torch.ones(3))


class Seven(nn.Module, Plain):
    """A unit of 7 elements, on 4 ranks, and parameters with 1 and with no dims."""

    inputs = outputs = (7,)

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.layers = nn.ModuleList([Scale(), nn.Linear(7, 7), Scale()])
        self.factor = nn.Parameter(torch.tensor(0.5))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).tanh() * self.factor
        return x


class Scale(nn.Module):
    """Multiplies by a parameter with 7 elements."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 7))

    def forward(self, x):
        return x * self.weight


class Precisions(Twice):
    """Blocks of two dtypes in one model."""

    def __init__(self):
        super().__init__()
        self.last = nn.ModuleList([nn.Linear(5, 5)])

    def double(self):
        super().double()
        self.blocks[1].float()
        return self

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x.to(block.weight.dtype)).to(x.dtype).tanh()
        return self.last[0](x)


MODELS = [Perceptron, Tokens, Tied, Recurrent, Images, Twice, Frozen, Unused, Seven, Precisions]
