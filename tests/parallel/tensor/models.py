"""Models that nobody tuned for, with the plans that they need, for the tests of this folder."""

from dataclasses import replace

import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from lib.predict.shape import GPTShape
from lib.single import GPT

SHAPE = GPTShape(vocabulary=48, sequence=12, width=24, heads=4, layers=2, hidden=40)
SHAPES = {
    "plain": SHAPE,
    "tied": replace(SHAPE, tied=True),
    "padded": replace(SHAPE, vocabulary=49),
    "padded, tied": replace(SHAPE, vocabulary=53, tied=True),
    "two keys": replace(SHAPE, kv_heads=2),
    "one key, rotary": replace(SHAPE, kv_heads=1, positions="rotary"),
    "rotary": replace(SHAPE, positions="rotary"),
    "dropout": replace(SHAPE, dropout=0.2),
    "one key, dropout": replace(SHAPE, kv_heads=1, dropout=0.1),
    "everything": replace(SHAPE, vocabulary=51, kv_heads=2, positions="rotary", dropout=0.1,
                          tied=True),
}  # fmt: skip
HARD = ("no bias", "frozen", "unused")


def gpt(name):
    """Build a GPT of SHAPES, or the plain one with what HARD says."""
    model = GPT(SHAPES.get(name, SHAPE)).double()
    torch.manual_seed(5)
    for parameter in model.parameters():  # so that biases and norms matter
        parameter.data += 0.1 * torch.randn(parameter.shape).to(parameter)
    if name == "no bias":
        for module in model.modules():
            if isinstance(module, nn.Linear | nn.LayerNorm):
                module.bias = None
    if name == "frozen":
        for end in ("mlp.up.weight", "attention.qkv.weight", "norm1.bias", "attention.proj.bias"):
            model.get_parameter(f"blocks.1.{end}").requires_grad_(False)
    if name == "unused":
        model.extra = nn.Linear(3, 5).double()
    return model


def batch(vocabulary, seed=0):
    """Draw tokens and targets, [3, 12] each."""
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.randint(vocabulary, (3, 13), generator=draw)
    return tokens[:, :-1], tokens[:, 1:]


class Theirs(nn.Module):
    """A decoder with names of its own: separate q, k and v, a norm over each head, a gated MLP."""

    heads = 4

    def __init__(self, heads=4, width=24, hidden=40, layers=2):
        super().__init__()
        torch.manual_seed(3)
        self.embed = nn.Embedding(47, width)
        self.layers = nn.ModuleList(TheirLayer(width, heads, hidden) for _ in range(layers))
        self.to_logits = nn.Linear(width, 47)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.to_logits(x)


class TheirLayer(nn.Module):
    def __init__(self, width, heads, hidden):
        super().__init__()
        self.num_heads, self.per_head = heads, width // heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q_norm = nn.LayerNorm(self.per_head)
        self.wq, self.wk, self.wv = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.wo = nn.Linear(width, width)
        self.gate, self.up = nn.Linear(width, hidden), nn.Linear(width, hidden)
        self.down, self.drop = nn.Linear(hidden, width), nn.Dropout(0.2)

    def forward(self, x):
        b, s, _ = x.shape
        y = self.before(x)
        q, k, v = (w(y).view(b, s, self.num_heads, -1) for w in (self.wq, self.wk, self.wv))
        q = self.q_norm(q)
        y = scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True)
        x = x + self.wo(y.transpose(1, 2).flatten(2))
        y = self.between(x)
        return x + self.down(self.drop(self.gate(y).sigmoid() * self.up(y)))


PLAN = {
    "*.w[qkv]": "column", "*.num_heads": "divide", "*.q_norm": "summed", "*.wo": "row",
    "*.gate": "column", "*.up": "column", "*.drop": "dropout", "*.down": "row",
    "embed": "vocabulary", "to_logits": "gathered vocabulary",
}  # fmt: skip


def their_loss(logits, targets):
    return cross_entropy(logits.flatten(0, 1), targets.flatten())
