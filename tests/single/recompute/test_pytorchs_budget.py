"""PyTorch's memory budget for compiled graphs beside ours: same gradients, fewer bytes for less."""

import pytest
import torch
from torch import nn

from lib.single.recompute import best_plan, kept_bytes, recompute
from tests.every import every

config = pytest.importorskip("torch._functorch.config")
SHARES = (1.0, 0.6, 0.3)


def chain():
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(32, 32), nn.GELU()) for _ in range(6)]
    return nn.Sequential(*layers)


def stepped(model, x):
    model(x).square().sum().backward()
    return [p.grad for p in model.parameters()]


def theirs(share, x):
    """What a compiled graph keeps with this share of its bytes, and its gradients."""
    torch._dynamo.reset()
    with config.patch(activation_memory_budget=share):
        model = chain()
        y = torch.compile(model, backend="aot_eager_decomp_partition")(x)
        own = {t.untyped_storage()._cdata for t in (x, *model.parameters())}
        saved = {t.untyped_storage()._cdata: t.nbytes for t in y.grad_fn.saved_tensors}
        y.square().sum().backward()
    kept = sum(nbytes for place, nbytes in saved.items() if place not in own)
    return kept, [p.grad for p in model.parameters()]


def test_both_keep_less_for_a_smaller_budget_and_change_no_gradient():
    x = torch.randn(64, 32, generator=torch.Generator().manual_seed(1))
    plain, whole = stepped(chain(), x), kept_bytes(chain(), x)
    ours, other = [], []
    for share in SHARES:
        model = chain()
        plan = best_plan(model, x, max(share, 0.5) * whole, seconds=[1] * 6)
        ours.append(kept_bytes(recompute(model, plan), x))
        assert every(torch.equal(a, b) for a, b in zip(stepped(model, x), plain, strict=True))
        nbytes, gradients = theirs(share, x)
        other.append(nbytes)
        assert every(torch.allclose(a, b) for a, b in zip(gradients, plain, strict=True))
    assert other == sorted(other, reverse=True) and other[-1] < 0.4 * other[0] == 0.4 * whole
    assert ours == sorted(ours, reverse=True) and ours[-1] < 0.7 * ours[0]
