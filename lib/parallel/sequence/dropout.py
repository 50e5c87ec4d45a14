"""Dropout on split sequences: each number's fate follows from its place in the whole sequence.

    probabilities [B, H, S/P, T]    kept or dropped by (seed, sample, head, query, key)
    tokens x [B, S/P, D]            kept or dropped by (seed, sample, position, feature)

An ordinary dropout would drop the same places on every rank, which has other tokens there. A mask of
all scores, of which each rank takes its part, would be larger than any block. So nothing is drawn one
after the other: a hash of a number's place says whether it is dropped. Each rank, in forward and again
in backward, finds the mask of any block without a message, and masks are the same on any number of
ranks and in any layout.

[Note: seed]
Each call takes its seed from PyTorch's generator on the CPU, so ranks that share a sequence should
begin with the same torch.manual_seed. Ranks with other samples should begin with another one.

The hash is the finalizer of SplitMix64. Source: Steele, Lea and Flood 2014, "Fast Splittable
Pseudorandom Number Generators"; FlashAttention-2 (arXiv 2307.08691) finds its masks from places too.
"""  # noqa: E501

from typing import NamedTuple

import torch
from torch import Tensor, nn

ROW = 2**32  # more than a sequence has tokens
_FIRST, _SECOND = 0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64  # as signed numbers
_STEP = 0x9E3779B97F4A7C15 - 2**64


class Noise(NamedTuple):
    """Says which probabilities an attention drops, each with the probability `p`.

    This rank's first head is `first_head` of all heads.
    """

    p: float
    seed: int
    first_head: int = 0

    def like(self, q: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
        """Return the mask of scores [B, H, Q, T]: 0 or 1/(1 - p), in 4 bytes at least.

        q [B, H, .., K]; `queries` [Q] and `keys` [T] are positions in the whole sequence.
        """
        samples, heads = (torch.arange(n, device=q.device) for n in q.shape[:2])
        heads = (heads + self.first_head) * ROW + queries[:, None]  # [Q, H]
        rows = mixed(samples[:, None, None] + self.seed) + heads.T  # [B, H, Q]
        return mask(rows, keys, self.p, torch.promote_types(q.dtype, torch.float32))


def mixed(numbers: Tensor) -> Tensor:
    """Return 64 bits of hash for each whole number: int64 [..] -> int64 [..]."""
    z = numbers * _STEP
    z = (z ^ _shifted(z, 30)) * _FIRST
    z = (z ^ _shifted(z, 27)) * _SECOND
    return z ^ _shifted(z, 31)


def _shifted(z: Tensor, bits: int) -> Tensor:
    """Shift to the right and fill with zeros, which PyTorch does for positive numbers alone."""
    return (z >> bits) & (2 ** (64 - bits) - 1)


def mask(rows: Tensor, columns: Tensor, p: float, dtype: torch.dtype) -> Tensor:
    """Return 0 with the probability p, otherwise 1/(1 - p): rows [..], columns [T] -> [.., T]."""
    drawn = _shifted(mixed(mixed(rows).unsqueeze(-1) + columns), 11)  # 53 bits
    return (drawn >= int(p * 2**53)).to(dtype).div_(1 - p)


def new_seed() -> int:
    """Return a seed from PyTorch's generator on the CPU, which a recomputation sets back."""
    return torch.randint(2**62, (), device="cpu").item()


def noise_of(dropout: float, seed: int | None, first_head: int = 0) -> Noise | None:
    """Return the noise of an attention, or None without dropout; by default with a new seed.

    Raises ValueError for a probability that is below 0, or 1 and more.
    """
    if not 0 <= dropout < 1:
        raise ValueError(f"Dropout has the probability {dropout}. Give one from 0 to below 1.")
    if not dropout:
        return None
    return Noise(dropout, new_seed() if seed is None else seed, first_head)


class SequenceDropout(nn.Module):
    """Dropout on tokens of which each rank has a part: x [B, S/P, D] -> [B, S/P, D].

    `places(S/P, device)` gives the position of each of this rank's tokens in the whole sequence.
    """

    def __init__(self, full: nn.Dropout, places):
        super().__init__()
        self.p, self.places = full.p, places

    def forward(self, x):
        if not self.training or not self.p:
            return x
        samples, features = (torch.arange(x.shape[dim], device=x.device) for dim in (0, 2))
        rows = mixed(samples + new_seed())[:, None] + self.places(x.shape[1], x.device)
        return x * mask(rows, features, self.p, x.dtype)
