"""The same attention, whole on one device and split over ranks, and what is compared afterwards."""

import torch
from torch.nn.functional import scaled_dot_product_attention

from lib.parallel.sequence import ring_attention, shard_sequence, unshard_sequence

HEADS, GROUPS, SIZE = 4, 2, 8


def drawn(length, heads=HEADS, groups=GROUPS, size=SIZE, dtype=torch.float64):
    """Draw q, k, v and the gradient of the result, each [2, heads, length, size]."""
    draw = torch.Generator().manual_seed(length)
    return [
        torch.randn(2, n, length, size, generator=draw, dtype=torch.float64).to(dtype)
        for n in (heads, groups, groups, heads)
    ]


def allowed(length, causal, documents):
    """Which token attends to which: [S, S]; without documents all belong to one."""
    places = torch.arange(length)
    mask = places[:, None] >= places if causal else torch.ones(length, length, dtype=torch.bool)
    if documents is None:
        return mask
    number = torch.bucketize(places, torch.tensor(documents), right=True)
    return mask & (number[:, None] == number) & (places[:, None] < documents[-1])


def whole(length, causal, documents=None, scale=None, **sizes):
    """The result and dq, dk, dv on one device, by PyTorch's own attention with a mask."""
    q, k, v, gradient = drawn(length, **sizes)
    for t in (q, k, v):
        t.requires_grad_()
    mask = allowed(length, causal, documents)
    out = scaled_dot_product_attention(q, k, v, mask, scale=scale, enable_gqa=True)
    if documents is not None:  # a row that may see nothing is padding
        out = torch.where(mask.any(1)[:, None], out, 0.0)
    out.backward(gradient)
    return [t.detach() for t in (out, q.grad, k.grad, v.grad)]


def spread(length, causal, layout="zigzag", documents=None, scale=None, core=ring_attention,
           sizes=None):  # fmt: skip
    """The same on the ranks of the world, put together again."""
    parts = [shard_sequence(t, None, layout, 2) for t in drawn(length, **sizes or {})]
    q, k, v, gradient = (t.contiguous() for t in parts)
    for t in (q, k, v):
        t.requires_grad_()
    out = core(q, k, v, None, causal, layout, documents, scale)
    out.backward(gradient)
    found = (out, q.grad, k.grad, v.grad)
    return [unshard_sequence(t.detach(), None, layout, 2, length=length) for t in found]


def far(found, expected):
    """The largest distance of a result or gradient, relative to a norm above 1; nan stays nan."""
    distances = [
        ((a.to("cpu").double() - b.double()).norm() / b.double().norm().clamp(min=1)).item()
        for a, b in zip(found, expected, strict=True)
    ]
    return max(distances, key=lambda distance: (distance != distance, distance))
