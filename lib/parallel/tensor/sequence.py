"""Megatron's sequence parallelism: between the split regions a rank has a part of every sequence.

    tensor parallelism    norm [B, S, D]     column, .., row +tp -> all_reduce     -> [B, S, D]
    with it               norm [B, S/tp, D] -> all_gather -> column, .., row +tp
                                                       -> reduce_scatter -> [B, S/tp, D]

Tensor parallelism alone computes norms, dropouts and residuals of all tokens on every rank, and
keeps their inputs tp times. Here each rank has its own tokens there. The bytes sent forward are the
same, because an all_reduce is a reduce_scatter and an all_gather; backward gathers the inputs of
the column layers once more, so that they need not be kept (gathered.py).

Norms, and the biases of row layers, are whole on every rank but see a part of the tokens. So the
gradient of each is a pending sum, which backward finishes with an all_reduce: left out, the ranks
train different norms, and nothing fails.
Source: Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models"
(arXiv 2205.05198), section 4.2.2.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import pad

from lib.parallel.tensor.dropout import SplitDropout
from lib.parallel.tensor.linear import SplitModule
from lib.parallel.tensor.placements import Replicated
from lib.parallel.tensor.transform import placements, tensor_parallel
from lib.predict.arguments import equal_share
from lib.ranks.gradients import sum_gradient
from lib.single.models import Attention, Embedding, FeedForward

DIM = 1  # the tokens of [B, S, D]


def sequence_parallel(model: nn.Module, group=None, *, seed: int | None = None) -> nn.Module:
    """Split a plain GPT as `tensor_parallel` does, and the sequences between its parts; return it.

    tokens [B, S] -> logits [B, S, V/tp], from the same tokens on every rank. Loss, optimizer and
    the functions for whole weights are those of tensor parallelism. `seed` is for dropout
    (dropout.py). A length that tp does not divide is padded at the end inside the model, and the
    logits of the padding are cut off; dropout's masks are then others than the plain model's.
    Raises ValueError for a model without the parts of a plain GPT.
    """
    tensor_parallel(model, group, seed=seed)
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    parts = list(model.modules())
    seeds = None if seed is None else iter(range(seed + len(parts), seed + 2 * len(parts)))
    for module in parts:
        if isinstance(module, SplitModule):
            module.splits_sequence = True
        elif isinstance(module, Embedding):
            table = module.positions
            rows = None if table is None else table.num_embeddings
            module.position_ids = _Positions(rank, ranks, rows)
        if isinstance(module, Attention | FeedForward | Embedding):
            own = None if seeds is None else next(seeds)
            module.dropout = SplitDropout(module.dropout, group, DIM, own)
    padding = _Padding(ranks)
    model.register_forward_pre_hook(padding.begin)
    model.register_forward_hook(padding.end)
    places = placements(model)
    for name, parameter in model.named_parameters():
        if isinstance(places[name], Replicated):
            sum_gradient(parameter, [group])
    return model


class _Padding:
    """Lengthens tokens [B, S] to a multiple of tp before the model, and shortens its logits again.

    Under the causal mask no token attends to the padding behind it, so it has no gradient either.
    """

    def __init__(self, ranks: int):
        self.ranks, self.length = ranks, 0

    def begin(self, _, given):
        tokens, *rest = given
        self.length = tokens.shape[1]
        missing = -self.length % self.ranks
        if not missing or tokens.dim() != 2 or tokens.is_floating_point():
            return None
        return pad(tokens, [0, missing]), *rest

    def end(self, _, given, logits):
        if logits.dim() == 3 and logits.shape[1] == given[0].shape[1] > self.length:
            return logits[:, : self.length]
        return None


class _Positions:
    """The positions of this rank's tokens, for the embedding of positions: S -> [S/tp].

    Padding behind the last of `rows` positions gets that one; what it gives is cut off.
    """

    def __init__(self, rank: int, ranks: int, rows: int | None):
        self.rank, self.ranks, self.rows = rank, ranks, rows

    def __call__(self, sequence: int, device: torch.device) -> torch.Tensor:
        share = equal_share(sequence, self.ranks, "A sequence has {} tokens")
        own = torch.arange(self.rank * share, (self.rank + 1) * share, device=device)
        is_padded = self.rows is not None and self.rows < sequence < self.rows + self.ranks
        return own.clamp(max=self.rows - 1) if is_padded else own
