"""Dropout on tensors of which each rank has a part, and on those that all have whole.

    replicated  x [B, S, D]       every rank must drop the same numbers: the same mask
    split       x [B, S, F/tp]    each rank drops numbers of its own: another part of the whole mask

[Note: which random numbers]
Dropout on a replicated tensor is an ordinary nn.Dropout, so all ranks must begin with the same seed
(torch.manual_seed) and draw equally often. With the same seed, an ordinary nn.Dropout on a split
tensor would drop the same places on every rank, a mask that repeats itself tp times. Two ways out:

* `seed=None`: each rank draws the mask of the *whole* tensor and takes its part. The result is that
  of the plain model with the same seed, on any number of ranks; on a GPU this does not hold for
  attention, whose fused kernel draws its numbers itself. It costs the drawing of the whole mask.
* `seed=7`: each rank draws only its part, from a generator of its own that begins with (7, rank).
  The generator that replicated tensors use stays the same on all ranks. This is Megatron's way.
  A recomputation (lib/single/recompute) repeats these numbers too; PyTorch's checkpoint does not.

Source: Megatron-LM, megatron/core/tensor_parallel/random.py (CudaRNGStatesTracker).
"""

import math

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import dropout, softmax

from lib.single.models import causal
from lib.single.recompute import repeated

PER_RANK = 1_000_003  # more than there are ranks, so that (seed, rank) are different seeds


class SplitNoise:
    """Draws this rank's part of a mask: 0 with the probability p, otherwise 1/(1 - p)."""

    def __init__(self, group=None, seed: int | None = None):
        self.rank, self.ranks, self.seed = dist.get_rank(group), dist.get_world_size(group), seed
        self.generators: dict[torch.device, torch.Generator] = {}

    def like(self, x: Tensor, sizes, dim: int, p: float) -> Tensor:
        """Return a mask of these sizes, which are split along `dim`, on the device of x."""
        if self.seed is None:
            whole = list(sizes)
            whole[dim] *= self.ranks
            mask = dropout(x.new_ones(whole), p)  # as the plain model draws it
            # A copy, because a view would keep the mask of all ranks until backward.
            return mask.narrow(dim, self.rank * sizes[dim], sizes[dim]).clone()
        mask = x.new_empty(sizes).bernoulli_(1 - p, generator=self._generator(x.device))
        return mask.div_(1 - p)

    def _generator(self, device: torch.device) -> torch.Generator:
        if device not in self.generators:
            seed = self.seed * PER_RANK + self.rank
            self.generators[device] = repeated(torch.Generator(device).manual_seed(seed))
        return self.generators[device]


class SplitDropout(nn.Module):
    """Dropout on a tensor that is split along `dim`: x [.., F/tp] -> [.., F/tp]."""

    def __init__(self, full: nn.Dropout, group=None, dim: int = -1, seed: int | None = None):
        super().__init__()
        self.p, self.dim, self.noise = full.p, dim, SplitNoise(group, seed)

    def forward(self, x):
        if not self.training or not self.p:
            return x
        return x * self.noise.like(x, x.shape, self.dim % x.dim(), self.p)


class SplitCore:
    """Causal attention over this rank's heads, with dropout on probabilities [B, H/tp, S, S]."""

    def __init__(self, group=None, seed: int | None = None):
        self.noise = SplitNoise(group, seed)

    def __call__(self, q, k, v, p: float = 0.0):
        if not p:
            return causal(q, k, v)
        b, h, s, size = q.shape
        k, v = (t.repeat_interleave(h // t.shape[1], 1) for t in (k, v))
        later = torch.ones(s, s, dtype=torch.bool, device=q.device).triu(1)
        scores = (q @ k.mT / math.sqrt(size)).masked_fill(later, -math.inf)
        return (softmax(scores, -1) * self.noise.like(q, (b, h, s, s), 1, p)) @ v
