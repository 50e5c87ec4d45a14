"""Rotary positions: the pairs of a query or key are turned by angles that grow with the position.

    x [.., S, n, K], angles [S, K] -> turned x [.., S, n, K]

The product of a turned query and a turned key depends only on how far apart the two tokens are. The
pair (x[i], x[i + K/2]) of the token at position p is turned by p · 10,000^(-2i/K). There is nothing
to learn, so nothing of this is a parameter or a buffer.

Source: Su et al. 2021, "RoFormer" (arXiv 2104.09864), equation 34; the pairs lie half a head apart,
as in GPT-NeoX and Llama.
"""

import torch

BASE = 10_000.0


def rotation(positions, head_size: int, like: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return cos and sin of each position's angles, both [S, 1, K], with the dtype of `like`.

    `positions` are whole numbers [S], or a number S that stands for 0, 1, .. S - 1.
    The first half of the K angles is negative, so that `rotated` needs one formula for both halves.
    Angles are computed in 4 bytes at least: 2 bytes cannot tell large positions apart.
    """
    kind = {"dtype": torch.promote_types(like.dtype, torch.float32), "device": like.device}
    rates = torch.logspace(0, 2 / head_size - 1, head_size // 2, BASE, **kind)  # [K/2]
    if isinstance(positions, int):
        positions = torch.arange(positions, **kind)
    angles = torch.outer(positions.to(**kind), torch.cat((-rates, rates)))[:, None]
    return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Return x [.., S, n, K] with each pair (x[i], x[i + K/2]) turned by its position's angle.

    That is (x[i]·cos - x[i + K/2]·sin, x[i + K/2]·cos + x[i]·sin).
    """
    return x * cos + x.roll(x.shape[-1] // 2, -1) * sin
