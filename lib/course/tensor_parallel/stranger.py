"""A model that was not written for this course, which a reader of chapter 4 splits by a plan."""

from torch import nn

from lib.course.tensor_parallel.lessons import numbers


class Stranger(nn.Module):
    """A decoder with names of its own: separate q, k and v, a norm over each head, a gated MLP.

    Tokens [B, S] -> logits [B, S, V].
    """

    def __init__(self, vocabulary: int = 64, width: int = 32, heads: int = 4, hidden: int = 48):
        super().__init__()
        self.wte = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(StrangerLayer(width, heads, hidden) for _ in range(2))
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        for number, parameter in enumerate(self.parameters()):
            parameter.data = numbers(*parameter.shape, seed=number) * 0.3

    def forward(self, tokens):
        x = self.wte(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(x)


class StrangerLayer(nn.Module):
    """One layer of a Stranger: x [B, S, D] -> [B, S, D]."""

    def __init__(self, width: int, heads: int, hidden: int):
        super().__init__()
        self.n_heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.q_norm = nn.RMSNorm(width // heads)
        self.gate, self.up = nn.Linear(width, hidden), nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x):
        y = self.norm1(x)
        heads = lambda t: t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
        q, k, v = heads(self.q(y)), heads(self.k(y)), heads(self.v(y))
        y = nn.functional.scaled_dot_product_attention(self.q_norm(q), k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(self.gate(y).sigmoid() * self.up(y))
