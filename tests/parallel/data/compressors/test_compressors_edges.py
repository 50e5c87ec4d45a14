"""Compressed gradients of kinds that nobody tuned them for: empty, complex, with gaps, sparse."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from lib import RankError
from lib.parallel.data.compressors import PowerSGD, Quantized, Sign, TopK
from lib.parallel.data.ddp import DistributedDataParallel
from lib.predict.data import compression
from tests.every import every

HOOKS = {
    "top-k": lambda: TopK(0.3),
    "3 bits": lambda: Quantized(3, block=5),
    "sign": Sign,
    "PowerSGD": lambda: PowerSGD(1),
}
every_hook = pytest.mark.parametrize("name", HOOKS)


class Empty(nn.Module):
    """A bucket of nothing alone, and an empty weight in a bucket with others."""

    def __init__(self):
        super().__init__()
        self.nothing = nn.Parameter(torch.zeros(0, 3, dtype=torch.float64))
        self.none = nn.Parameter(torch.zeros(0, 3))
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x).square().mean() + self.none.sum() + self.nothing.sum().float()


def two_steps(make, hook):
    torch.manual_seed(0)
    model = make()
    ddp = DistributedDataParallel(model, hook=hook())
    for step in range(2):
        ddp.zero_grad()
        draw = torch.Generator().manual_seed(10 * step + dist.get_rank())
        ddp(torch.randn(6, 4, generator=draw)).backward()
    return [p.grad.clone() for p in model.parameters()]


@every_hook
def test_an_empty_bucket(worlds, name):
    """Case 13: a bucket without entries is sent as nothing, and the others are what they were."""
    first, second = worlds(2).run(two_steps, Empty, HOOKS[name])
    assert [list(g.shape) for g in first] == [[0, 3], [0, 3], [4, 4], [4]]
    assert every(map(torch.equal, first, second))
    assert every(gradient.isfinite().all() for gradient in first)


def test_an_empty_bucket_has_no_bytes():
    """Case 13: of no entries, top-k keeps none; of any, at least one."""
    assert compression.kept_entries(0, 0.5) == 0 and compression.kept_entries(3, 0.01) == 1
    assert compression.top_k([(0, 3)], 4, 0.5) == [("all_gather", 0)]


def averaged(name, kind):
    """Averages of gradients that are complex, in pairs, or real; lists alike on every rank."""
    draw, hook, answers = torch.Generator().manual_seed(dist.get_rank()), HOOKS[name](), []
    for _ in range(3):
        pairs = [torch.randn(*shape, 2, generator=draw) for shape in ((3, 4), (5,))]
        gradients = [torch.view_as_complex(p) for p in pairs] if kind == "complex" else pairs
        hook.average(gradients)
        answers += [torch.view_as_real(g) if kind == "complex" else g for g in gradients]
    return answers


@every_hook
def test_complex_gradients_are_pairs(worlds, name):
    """Case 7: a complex gradient is compressed as the real numbers that it is made of."""
    as_complex, as_pairs = (worlds(2).run(averaged, name, kind) for kind in ("complex", "pairs"))
    for a, b in zip(as_complex, as_pairs, strict=True):
        assert len(a) == len(b) == 6 and all(map(torch.equal, a, b))


class Memory(nn.Module):
    """A weight with gaps in memory, one in another order, one of complex numbers."""

    def __init__(self):
        super().__init__()
        self.gaps = nn.Parameter(torch.randn(4, 8)[:, ::2])
        self.turned = nn.Parameter(torch.randn(6, 4).t())
        self.waves = nn.Parameter(torch.randn(4, 4, dtype=torch.complex64))

    def forward(self, x):
        x = x @ self.gaps @ self.turned @ self.turned.t()
        return (x.to(self.waves.dtype) @ self.waves).abs().square().mean()


@pytest.mark.parametrize(
    "make", [lambda: TopK(1.0), lambda: PowerSGD(4)], ids=["top-k", "PowerSGD"]
)
def test_memory_with_gaps(worlds, make):
    """Case 7: what is sent whole is the plain mean, wherever the numbers lie in memory."""
    for gradients in worlds(2).run(two_steps, Memory, make):
        torch.manual_seed(0)
        model = Memory()
        batches = [
            torch.randn(6, 4, generator=torch.Generator().manual_seed(10 + r)) for r in (0, 1)
        ]
        (sum(map(model, batches)) / 2).backward()
        for a, p in zip(gradients, model.parameters(), strict=True):
            assert (a - p.grad).norm() <= 1e-5 * p.grad.norm()


def sparse():
    TopK(0.5).average([torch.eye(3).to_sparse()])


def test_plain_lists_may_be_empty_but_not_sparse(worlds):
    """Case 13: nothing is averaged without a word, sparse gradients are refused in a sentence."""
    for make in HOOKS.values():
        assert worlds(2).run(lambda make: make().average([]), make) == [None, None]
    with pytest.raises(RankError, match="Sparse gradients cannot be compressed. Make them dense"):
        worlds(2).run(sparse)
