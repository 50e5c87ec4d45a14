"""Ring attention: keys and values travel round the ranks, and no rank ever has all of them.

    q [B, H, S/P, K] · k, v [B, G, S/P, K] of every rank, one after the other -> out [B, H, S/P, K]

At step i, rank r computes with the keys and values of rank (r - i) mod P. Meanwhile it passes them on
to rank r + 1, and those of step i + 1 arrive from rank r - 1 (double buffering). Results are joined
by `merge`, so no score matrix is larger than a block.

[Note: backward]
Backward is a second ring. Keys and values travel again, and behind them a sum of their gradients: at
step i rank r adds its part to dK and dV of rank r - i and passes both on. A rank's own part stays at
home and is added when the sum arrives there after P - 1 hops. So a rank sends K and V forward, and K,
V, dK and dV backward, each P - 1 times.

Source: Liu, Zaharia and Abbeel 2023, "Ring Attention" (arXiv 2310.01889).
"""  # noqa: E501

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from lib.parallel.sequence import block_attention
from lib.parallel.sequence.dropout import Noise, noise_of
from lib.parallel.sequence.merging import merge
from lib.predict.sequence.layout import blocks_of, ranges_of
from lib.ranks.algorithms import start_exchange


class Ring(NamedTuple):
    """Describes this rank's place in a ring, and how the sequence lies on it."""

    group: object
    rank: int
    ranks: int
    layout: str
    documents: tuple[int, ...] | None = None

    @classmethod
    def of(cls, group=None, layout: str = "zigzag", documents=None) -> "Ring":
        """Return the ring of a group, None being the world."""
        place = dist.get_rank(group), dist.get_world_size(group)
        return cls(group, *place, layout, _ends(documents))

    @classmethod
    def alone(cls, documents=None) -> "Ring":
        """Return a ring of this rank alone, which has the whole sequence and sends nothing."""
        return cls(None, 0, 1, "contiguous", _ends(documents))

    def blocks(self, length: int, causal: bool) -> tuple:
        """Return the rectangles that this rank computes in each step; `length` is that of S/P."""
        return blocks_of(
            length * self.ranks, self.rank, self.ranks, self.layout, self.documents, causal
        )

    def positions(self, step: int, length: int, device) -> Tensor:
        """Return the positions of the S/P keys of a step in the whole sequence: [S/P]."""
        other = (self.rank - step) % self.ranks
        ranges = ranges_of(length * self.ranks, other, self.ranks, self.layout)
        return torch.cat([torch.arange(r.start, r.stop, device=device) for r in ranges])

    def hop(self, block: Tensor, note: str) -> "Hop":
        """Pass a block on to the next rank, and take one of the same shape from the one before."""
        return Hop(self, block, note)


def _ends(documents) -> tuple[int, ...] | None:
    """Return cumulative lengths as numbers; a tensor of them is read once."""
    if isinstance(documents, Tensor):
        documents = documents.tolist()
    return None if documents is None else tuple(documents)


class Hop:
    """A block that is on its way to the next rank, while another arrives."""

    def __init__(self, ring: Ring, block: Tensor, note: str):
        self.sent, self.arriving = block, torch.empty_like(block)
        after, before = (ring.rank + 1) % ring.ranks, (ring.rank - 1) % ring.ranks
        self.works = start_exchange({after: block}, {before: self.arriving}, ring.group, note)

    def arrived(self) -> Tensor:
        """Wait for both, and return the block that has arrived."""
        for work in self.works:
            work.wait()
        self.works = self.sent = None
        return self.arriving


def ring_attention(
    q: Tensor, k: Tensor, v: Tensor, group=None, causal: bool = True, layout: str = "zigzag",
    documents: Sequence[int] | None = None, scale: float | None = None, dropout: float = 0.0,
    seed: int | None = None,
) -> Tensor:  # fmt: skip
    """Return attention over a sequence that is split over a group: [B, H, S/P, K].

    q [B, H, S/P, K] and k, v [B, G, S/P, K] are those of this rank's tokens, as `shard_sequence`
    gives them in the same layout; H/G heads share a key. `documents` are boundaries in the whole
    sequence, as cu_seqlens, the same for every sample: no token attends to another document, and
    tokens behind the last boundary are padding, whose result is 0. `scale` is 1/√K by default.
    Each probability is 0 with the probability `dropout`, chosen by its place and the seed
    (dropout.py); without a seed, PyTorch's generator gives one. Raises ValueError for shapes or
    probabilities that do not fit.
    """
    noise = noise_of(dropout, seed)
    return attention(q, k, v, Ring.of(group, layout, documents), causal, scale, noise)


def attention(
    q: Tensor, k: Tensor, v: Tensor, ring: Ring, causal: bool, scale, noise: Noise | None = None
) -> Tensor:
    """Return the attention of a ring's tokens, as `ring_attention` does: [B, H, S/P, K]."""
    check_shapes(q, k, v)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    return _RingAttention.apply(q, k, v, ring, causal, scale, noise)


class _RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, ring, causal, scale, noise):
        out = log_sum = None
        mask = _masks(noise, q, ring)
        for keys, values, blocks, step in _travelling(k, v, ring, causal):
            for rows, columns, masked in blocks:
                block = block_attention.forward(
                    q[:, :, rows], keys[:, :, columns], values[:, :, columns], masked, scale,
                    mask(step, rows, columns),
                )  # fmt: skip
                if out is None and rows == slice(0, q.shape[2]):
                    out, log_sum = block[0].to(_wide(q)), block[1]
                    continue
                if out is None:
                    out = torch.zeros_like(q, dtype=_wide(q))
                    log_sum = block[1].new_full(q.shape[:3], -math.inf)
                merge(out[:, :, rows], log_sum[:, :, rows], *block)
        if out is None:  # nothing but padding
            out = torch.zeros_like(q)
            log_sum = torch.full(q.shape[:3], -math.inf, dtype=_wide(q), device=q.device)
        out = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, out, log_sum)
        ctx.ring, ctx.causal, ctx.scale, ctx.noise = ring, causal, scale, noise
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        q, k, v, out, log_sum = ctx.saved_tensors
        dq = own = hop = None
        mask = _masks(ctx.noise, q, ctx.ring)
        for keys, values, blocks, step in _travelling(k, v, ctx.ring, ctx.causal):
            here = []  # dK and dV of this step's rectangles, and the keys that they belong to
            for rows, columns, masked in blocks:
                of_q, *of_kv = block_attention.backward(
                    gradient[:, :, rows], q[:, :, rows], keys[:, :, columns],
                    values[:, :, columns], out[:, :, rows], log_sum[:, :, rows], masked, ctx.scale,
                    mask(step, rows, columns),
                )  # fmt: skip
                here.append((columns, of_kv))
                if dq is None and rows == slice(0, q.shape[2]):
                    dq = of_q.to(_wide(q))
                    continue
                dq = torch.zeros_like(q, dtype=_wide(q)) if dq is None else dq
                dq[:, :, rows].add_(of_q)  # `+=` would copy the sum onto itself as well
            if not step:
                own = here
                continue
            sums = _added(hop and hop.arrived(), here, k)
            hop = ctx.ring.hop(sums, f"gradients of keys and values, hop {step}")
        dk, dv = _added(hop and hop.arrived(), own, k)
        dq = torch.zeros_like(q) if dq is None else dq.to(q.dtype)
        return dq, dk, dv, None, None, None, None


def _masks(noise: Noise | None, q: Tensor, ring: Ring):
    """Return the function that gives dropout's mask of a rectangle; it gives None without noise."""
    if noise is None:
        return lambda step, rows, columns: None
    of = lambda step: ring.positions(step, q.shape[2], q.device)
    return lambda step, rows, columns: noise.like(q, of(0)[rows], of(step)[columns])


def _travelling(k, v, ring, causal):
    """Yield for each step the keys and values that this rank has then, its rectangles, the step."""
    both = hop = None
    for step, blocks in enumerate(ring.blocks(k.shape[2], causal)):
        if hop:
            both = hop.arrived()
            k, v = both
        if step + 1 < ring.ranks:
            both = torch.stack((k, v)) if both is None else both
            hop = ring.hop(both, f"keys and values, hop {step + 1}")
        yield k, v, blocks, step


def _added(sums, here, k):
    """Add the gradients of a step to the sums that have arrived, if any: [2, B, G, S/P, K]."""
    for columns, of_kv in here:
        if sums is None and columns == slice(0, k.shape[2]):
            sums = torch.stack(of_kv)
            continue
        sums = k.new_zeros(2, *k.shape) if sums is None else sums
        for total, of_block in zip(sums, of_kv):
            total[:, :, columns].add_(of_block)
    return k.new_zeros(2, *k.shape) if sums is None else sums


def _wide(q) -> torch.dtype:
    """Return the dtype in which results are joined: 4 bytes at least."""
    return torch.promote_types(q.dtype, torch.float32)


def check_shapes(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raise ValueError unless q [B, H, S/P, K] and k, v [B, G, S/P, K] fit each other."""
    if not (q.dim() == k.dim() == v.dim() == 4) or k.shape != v.shape:
        shapes = ", ".join(str(list(t.shape)) for t in (q, k, v))
        raise ValueError(
            f"q, k and v have the shapes {shapes}. Give q [B, H, S/P, K], and k and v of one shape "
            "[B, G, S/P, K]."
        )
    if q.shape[0] != k.shape[0] or q.shape[2:] != k.shape[2:]:
        raise ValueError(
            f"q has the shape {list(q.shape)} and k {list(k.shape)}, but they may differ in their "
            "heads alone."
        )
    if q.shape[1] % k.shape[1]:
        raise ValueError(
            f"{q.shape[1]} heads of queries cannot share {k.shape[1]} heads of keys equally. "
            "Choose a number of key heads that divides the heads of queries."
        )
