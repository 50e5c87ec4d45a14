"""The embedding of tokens, and the head, of which each rank has a part of the vocabulary.

    embedding  tokens [B, S] · W [V/tp, D] -> [B, S, D] +tp, then all_reduce; backward: nothing
    head       x [B, S, D] · W [D, V/tp] -> logits [B, S, V/tp]; backward: dx +tp, then all_reduce

A vocabulary that the ranks cannot share equally is padded: V becomes the next multiple of tp. The
added rows are zeros, get no gradient, and are left out when the whole is put together again. The
head gives -inf for them, so that no softmax sees them. The modules say so when they are printed.
Source: Shoeybi et al. 2019, "Megatron-LM" (arXiv 1909.08053), section 3.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from lib.parallel.tensor.linear import ColumnLinear, SplitModule
from lib.parallel.tensor.placements import Split
from lib.single.vocabulary import check_tokens


class VocabParallelEmbedding(SplitModule):
    """An embedding of which each rank has some rows: tokens [B, S] -> [B, S, D].

    Made from the whole embedding. A rank looks up the tokens that it has, puts zeros for all
    others, and the sum over the ranks has every token. Raises ValueError for an embedding with
    options that need whole rows of all ranks (max_norm, sparse, scale_grad_by_freq), and IndexError
    for a token outside the vocabulary.
    """

    def __init__(self, full: nn.Embedding, group=None):
        super().__init__(group)
        for option in ("max_norm", "sparse", "scale_grad_by_freq"):
            if getattr(full, option):
                raise ValueError(
                    f"An embedding with {option}={getattr(full, option)!r} cannot be split by "
                    f"vocabulary. Build it without {option}, or leave it replicated."
                )
        self.rows = Split(self.ranks, 0, full.num_embeddings, padded=True)
        self.first = self.rank * self.rows.share
        self.take("weight", full.weight, self.rows)
        ignored = -1 if full.padding_idx is None else full.padding_idx - self.first
        self.padding_idx = ignored if 0 <= ignored < self.rows.share else None

    def forward(self, tokens):
        rows, inside = local_rows(tokens, self.rows, self.first)
        y = embedding(rows, self.weight, self.padding_idx)
        y = y.masked_fill(~inside.unsqueeze(-1), 0.0)
        return self.sum(y)

    def extra_repr(self) -> str:
        """Say which part of the vocabulary this rank has."""
        return f"{_said(self.rows)}, {self.weight.shape[1]}"


class VocabParallelLinear(ColumnLinear):
    """A head of which each rank computes a part of the logits: x [.., D] -> [.., V/tp].

    Made from the whole layer. Give its logits to `vocab_parallel_cross_entropy`. With
    `gather_output` every rank gets all logits, [.., V].
    """

    def placement(self, full: nn.Linear) -> Split:
        """Return how the vocabulary is split."""
        return Split(self.ranks, 0, full.out_features, padded=True)

    def forward(self, x):
        y, rows = super().forward(x), self.placements["weight"]
        if self.gather_output:
            return y[..., : rows.length]
        real = min(max(rows.length - self.rank * rows.share, 0), rows.share)
        if real < rows.share:
            y = _Padded.apply(y, real)
        return y

    def extra_repr(self) -> str:
        """Say which part of the vocabulary this rank has."""
        return f"{self.weight.shape[1]} -> {_said(self.placements['weight'])}"


class _Padded(torch.autograd.Function):
    """Puts -inf for what was added, in place: no second tensor of logits, and no mask is kept.

    Autograd lets nobody change a view that another function of ours has returned, and y may be one;
    nothing before it needs y's numbers in backward.
    """

    @staticmethod
    def forward(ctx, y, real):
        ctx.real = real
        y[..., real:] = -math.inf
        return y.view_as(y)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        gradient[..., ctx.real :] = 0
        return gradient, None


def local_rows(tokens: Tensor, rows: Split, first: int) -> tuple[Tensor, Tensor]:
    """Return the row of each token on this rank, 0 for tokens of others, and whether it is here."""
    check_tokens(tokens, rows.length)
    local = tokens - first
    inside = (local >= 0) & (local < rows.share)
    return local.masked_fill(~inside, 0), inside


def _said(rows: Split) -> str:
    padded = f", padded by {rows.padding}" if rows.padding else ""
    return f"{rows.share} of {rows.length} tokens{padded}"
