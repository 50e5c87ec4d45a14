"""The embedding and the loss on a grid: no rank has the whole table, nor a whole row of logits.

    tokens [B, S] · table [V/t, D/columns] -> [B, S, D/columns] +t -> reduce_scatter over t
                                           -> [B/rows, S, D/columns]
    logits [B/rows, S, V/columns], targets [B, S] -> loss []

The loss has label smoothing as in PyTorch: (1 - ε)·(-log p[target]) - ε·mean(log p).

t are the axes that split the table's rows, and V is padded to a multiple of their ranks. Every rank
has all tokens, looks up those that its rows hold and puts zeros for the others, so that the sum
over t is the embedding of each. On a 2.5D grid each square looks up its own samples, and gradients
of the table are summed over depth.

Optimus (arXiv 2104.05343, section 3.2) broadcasts tiles of the table instead. That sends V·D/q²
numbers a step of SUMMA, and this B·S·D/q², whatever the vocabulary is.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding

from lib.parallel.grid.tiles import Tiled, check_axes, samples_each, share
from lib.predict.tensor.grids import INSIDE, STREAM, TABLE
from lib.ranks import collectives
from lib.ranks.mesh import Mesh
from lib.single.vocabulary import check_targets, check_tokens


class Table(Tiled):
    """A rank's tile of an embedding's matrix: [V/t, D/columns], or [S, D/columns] for positions."""

    def __init__(self, full: nn.Embedding, mesh: Mesh, kind: str, rows: tuple[str, ...], padded=0):
        super().__init__(mesh, kind)
        self.keep("weight", full.weight, rows, (STREAM[kind].columns,), padded=padded)


class GridEmbedding(nn.Module):
    """Adds the embeddings of tokens and positions: tokens [B, S] -> [B/rows, S, D/columns].

    All ranks give the same tokens. Positions [S, D/columns] are equal on ranks with the same
    columns, whose gradients are summed. Made from the plain model's embedding; `padded` is V with
    its padding. Raises ValueError where a batch does not divide, and on the CPU IndexError for
    a token outside the vocabulary.
    """

    def __init__(self, full: nn.Module, mesh: Mesh, kind: str, padded: int):
        super().__init__()
        check_axes(mesh, kind)
        self.mesh, self.kind = mesh, kind
        self.rows = mesh[STREAM[kind].rows]
        self.tokens = Table(full.tokens, mesh, kind, TABLE[kind], padded)
        learned = full.positions
        self.positions = None if learned is None else Table(learned, mesh, kind, ())

    def forward(self, tokens: Tensor) -> Tensor:
        check_tokens(tokens, self.tokens.tiles["weight"].length)
        samples_each(tokens.shape[0], STREAM[self.kind].rows, self.mesh)
        table = self.tokens.weight
        if self.kind == "2.5d":
            tokens = share(tokens, ("depth",), self.mesh)
            table = collectives.copy(table, self.mesh["depth"].group)
        x = self._held_here(tokens, table)
        x = collectives.reduce_scatter(x, 0, self.mesh[TABLE[self.kind]].group)
        if self.positions is None:
            return x
        positions = collectives.copy(self.positions.weight, self.rows.group)
        return x + positions[: tokens.shape[1]]

    def _held_here(self, tokens: Tensor, table: Tensor) -> Tensor:
        """Look up the tokens whose rows are in this rank's tile; zeros for the others."""
        number = 0
        for name in TABLE[self.kind]:
            number = number * self.mesh[name].size + self.mesh[name].rank
        tokens = tokens - number * table.shape[0]
        elsewhere = (tokens < 0) | (tokens >= table.shape[0])
        x = embedding(tokens.masked_fill(elsewhere, 0), table)
        return x.masked_fill(elsewhere.unsqueeze(-1), 0)


def grid_cross_entropy(
    logits: Tensor, targets: Tensor, mesh: Mesh, kind: str, ignore_index: int = -100, *,
    vocabulary: int | None = None, label_smoothing: float = 0.0,
) -> Tensor:  # fmt: skip
    """Return the mean cross-entropy over all tokens of all ranks, in nats, equal on every rank.

    logits [B/rows, S, V/columns] are a rank's tile, targets [B, S] those of the whole batch. A
    token whose target is `ignore_index` does not count. Two numbers a token are summed over the
    axis of the vocabulary, after their largest logits are compared; with `label_smoothing` three.
    `vocabulary` is V where it was padded; the grid's head gives -inf for what was added, so it is
    needed with label smoothing only, or for logits of another head. Raises IndexError on the CPU
    for a target outside the vocabulary.
    """
    side = INSIDE[kind]
    ignored = targets == ignore_index
    counted = (~ignored).sum()
    own = share(targets, side.rows, mesh).flatten()
    axes = mesh[side.columns], mesh[side.rows]
    vocabulary = logits.shape[-1] * axes[0].size if vocabulary is None else vocabulary
    check_targets(targets, ignored, vocabulary)
    return _Loss.apply(
        logits.flatten(0, -2), own, counted, ignore_index, *axes, vocabulary, label_smoothing
    )


class _Loss(torch.autograd.Function):
    """The mean loss of all tokens, over split rows and vocabulary.

    A token's loss is log Σ exp(logits) - (1 - ε)·(logit of the target) - ε·(mean of its logits).
    """

    @staticmethod
    def forward(ctx, logits, targets, counted, ignored, columns, rows, vocabulary, smoothing):
        width = logits.shape[1]
        first = columns.rank * width
        real = min(max(vocabulary - first, 0), width)  # columns that are not padding
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        largest = wide[:, :real].amax(1) if real else wide.new_full((len(wide),), -torch.inf)
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=columns.group)
        shifted = wide - largest.unsqueeze(1)
        own = targets - first
        elsewhere = (own < 0) | (own >= width)
        own = own.masked_fill(elsewhere, 0).unsqueeze(1)
        hit = shifted.gather(1, own).squeeze(1).masked_fill(elsewhere, 0)
        all_logits = [shifted[:, :real].sum(1)] if smoothing else []
        shifted.exp_()
        shifted[:, real:] = 0
        sums = torch.stack([shifted.sum(1), hit, *all_logits])  # +columns
        dist.all_reduce(sums, group=columns.group)
        losses = sums[0].log() - (1 - smoothing) * sums[1]
        if smoothing:
            losses -= smoothing / vocabulary * sums[2]
        total = losses.masked_fill_(targets == ignored, 0).sum()  # +rows
        dist.all_reduce(total, group=rows.group)
        weights = (targets != ignored).to(wide.dtype) / counted  # of each token in the mean
        ctx.save_for_backward(shifted.div_(sums[0].unsqueeze(1)), own, elsewhere, weights)
        ctx.dtype, ctx.real = logits.dtype, real
        ctx.of_target, ctx.of_each = 1 - smoothing, smoothing / vocabulary
        return total.div_(counted)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        probabilities, own, elsewhere, weights = ctx.saved_tensors
        weights = weights * gradient
        slopes = probabilities * weights.unsqueeze(1)
        of_target = (ctx.of_target * weights).masked_fill(elsewhere, 0)
        slopes.scatter_add_(1, own, -of_target.unsqueeze(1))
        if ctx.of_each:
            slopes[:, : ctx.real] -= ctx.of_each * weights.unsqueeze(1)
        return slopes.to(ctx.dtype), *[None] * 7
