"""Distributed data parallel where gradients do not come as they usually do."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as Theirs
from torch.utils.checkpoint import checkpoint

from lib.parallel.data.ddp import DistributedDataParallel
from tests.every import every

BUCKET = 100  # bytes: several buckets for each model here


def wrapped(model, ours, find_unused=False, static=False):
    if ours:
        return DistributedDataParallel(
            model, bucket_bytes=BUCKET, find_unused=find_unused, static=static
        )
    return Theirs(
        model,
        bucket_cap_mb=BUCKET / 2**20,
        gradient_as_bucket_view=True,
        find_unused_parameters=find_unused,
        static_graph=static,
    )


def batch(step, rank=None):
    draw = torch.Generator().manual_seed(100 * step + (dist.get_rank() if rank is None else rank))
    return torch.randn(6, 4, generator=draw)


def dense(gradients):
    return [None if g is None else g.detach().to_dense().clone() for g in gradients]


def trained(kind, ours, options, accumulate=False, optimizer=torch.optim.AdamW, hooks="", steps=5):
    """Some steps on batches of this rank's own: gradients and weights."""
    torch.manual_seed(0)
    model = kind()
    if hooks == "before":
        clip(model)
    ddp = wrapped(model, ours, **options)
    if hooks == "after":
        clip(model)
    optimizer = optimizer(model.parameters(), 0.1)
    for step in range(steps):
        optimizer.zero_grad()
        if accumulate:
            with ddp.no_sync():
                ddp(batch(50 + step)).square().mean().backward()
        ddp(batch(step)).square().mean().backward()
        gradients = dense(p.grad for p in model.parameters())
        optimizer.step()
    return gradients, [p.detach().clone() for p in model.parameters()]


def equal(a, b):
    assert [g is None for g in a] == [g is None for g in b]
    assert every(torch.equal(x, y) for x, y in zip(a, b) if x is not None)


def is_pytorchs(world, kind, options, *more):
    mine, oracle = (world.run(trained, kind, ours, options, *more) for ours in (True, False))
    for (gradients, weights), (gradients2, weights2) in zip(mine, oracle, strict=True):
        equal(gradients, gradients2)
        equal(weights, weights2)
        equal(weights, mine[0][1])
    return mine[0][0]


# --- a function that gives None


class Keep(torch.autograd.Function):
    """Hands x on, and says of w that it has no gradient."""

    @staticmethod
    def forward(ctx, x, w):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class GivesNone(nn.Module):
    """Its weight never has a gradient, or, with `ranks`, on all ranks but these."""

    ranks = ()

    def __init__(self):
        super().__init__()
        self.first, self.weight = nn.Linear(4, 4), nn.Parameter(torch.ones(4))
        self.last = nn.Linear(4, 4)

    def forward(self, x):
        x = self.first(x)
        used = dist.get_rank() in self.ranks
        return self.last(x * self.weight if used else Keep.apply(x, self.weight))


class GivesNoneElsewhere(GivesNone):
    ranks = (1,)


FIND, STATIC = {"find_unused": True}, {"static": True}


@pytest.mark.parametrize(
    ("options", "accumulate"),  # PyTorch's static graph knows no `no_sync`
    [({}, False), ({}, True), (FIND, False), (FIND, True), (STATIC, False)],
)
@pytest.mark.parametrize("kind", [GivesNone, GivesNoneElsewhere])
def test_a_function_that_gives_none(worlds, kind, options, accumulate):
    """Case 10: a custom function may give None for a parameter, as in PyTorch."""
    gradients = is_pytorchs(worlds(2), kind, options, accumulate)
    # Nobody has a gradient for it: with find_unused, AdamW must not touch it.
    assert (gradients[0] is None) == (kind is GivesNone and bool(options))


# --- sparse gradients


class Sparse(nn.Module):
    """Two tables with sparse gradients around a dense layer."""

    def __init__(self):
        super().__init__()
        self.table, self.layer = nn.Embedding(9, 4, sparse=True), nn.Linear(4, 4)
        self.bags = nn.EmbeddingBag(7, 4, sparse=True)

    def forward(self, x):
        rows = (x.abs() * 3).long().clamp(max=6)
        return self.layer(self.table(rows[:, 0])).tanh() * self.bags(rows[:, 1:])


def sgd(params, rate):
    return torch.optim.SGD(params, rate, momentum=0.9)


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("ranks", [2, 4])
def test_sparse_gradients_are_pytorchs(worlds, ranks, accumulate):
    """Case 13: a table's sparse gradient is summed as it is, and stays sparse."""
    is_pytorchs(worlds(ranks), Sparse, {}, accumulate, sgd)


class Rarely(nn.Module):
    """A table that odd ranks alone use, and one that nobody uses."""

    def __init__(self):
        super().__init__()
        self.layer, self.never = nn.Linear(4, 4), nn.Embedding(9, 4, sparse=True)
        self.table = nn.Embedding(9, 4, sparse=True)

    def forward(self, x, rank=None):
        odd = (dist.get_rank() if rank is None else rank) % 2
        return self.layer(x) + (self.table(torch.tensor([0, 3, 3])).sum(0) if odd else 0)


def sparse_steps(options):
    torch.manual_seed(0)
    model = Rarely()
    ddp = DistributedDataParallel(model, bucket_bytes=BUCKET, **options)
    found = []
    for step in range(3):
        ddp.zero_grad()
        ddp(batch(step)).square().mean().backward()
        found.append(dense(p.grad for p in model.parameters()))
    return found, model.table.weight.grad.is_sparse


@pytest.mark.parametrize("options", [FIND, STATIC], ids=str)
def test_a_table_that_some_ranks_use(world, options):
    """Case 13: who has no row sends none; the mean is the plain model's, and still sparse."""
    if world.size == 1:
        return
    for found, is_sparse in world.run(sparse_steps, options):
        assert is_sparse
        for step in range(3):
            torch.manual_seed(0)
            model, ranks = Rarely(), range(world.size)
            losses = [model(batch(step, rank), rank).square().mean() for rank in ranks]
            (sum(losses) / world.size).backward()
            expected = dense(p.grad for p in model.parameters())
            assert expected[2] is found[step][2] is None
            for a, b in zip(found[step], expected):
                assert b is None or torch.allclose(a, b, atol=1e-6)


# --- the reader's hooks


class Two(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(4, 4), nn.Linear(4, 4))


def clip(model):
    """Clip one weight's gradient when it is complete, and another's on its way."""

    def in_place(parameter):
        parameter.grad.clamp_(-0.01, 0.01)

    model[0].weight.register_post_accumulate_grad_hook(in_place)
    model[1].weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("hooks", ["before", "after"])
def test_the_readers_hooks_come_first(worlds, hooks, accumulate):
    """Case 5: what is sent is what hooks on a weight make of its gradient, as in PyTorch."""
    gradients = is_pytorchs(worlds(2), Two, {}, accumulate, sgd, hooks)
    assert gradients[0].abs().max() <= 0.02 and gradients[2].abs().max() <= 0.02


# --- checkpoints that run backward inside of backward


class Segments(nn.Module):
    """Four layers, some of them in segments that are computed again in backward."""

    inside = "abcd"
    order = "abcd"

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        for name in "abcde":
            setattr(self, name, nn.Linear(4, 4))

    def forward(self, x):
        for name in self.order:
            layer = nn.Sequential(getattr(self, name), nn.Tanh())
            segment = name in self.inside
            x = checkpoint(layer, x, use_reentrant=True) if segment else layer(x)
        return x


class Middle(Segments):
    inside = "b"


class Nested(Segments):
    def forward(self, x):
        inner = lambda x: checkpoint(self.c, self.b(x).tanh(), use_reentrant=True)
        return self.d(checkpoint(inner, self.a(x), use_reentrant=True))


class Again(Segments):
    """A layer in three segments, and once outside of them: its gradient comes in four parts."""

    inside, order = "b", "abcbdb"

    def forward(self, x):
        return super().forward(x) + self.b(x)


class Tied(Segments):
    """One weight in two segments."""

    def __init__(self):
        super().__init__()
        self.c.weight = self.b.weight


def segments(kind, options):
    model = kind()
    if not options:
        del model.e
    ddp = wrapped(model, True, **options)
    for step in range(3):
        ddp.zero_grad()
        with ddp.no_sync():
            ddp(batch(50 + step).requires_grad_()).square().mean().backward()
        ddp(batch(step).requires_grad_()).square().mean().backward()
    return [p.grad.clone() for name, p in model.named_parameters() if name[0] != "e"]


SEGMENTS = [
    (kind, options) for kind in (Segments, Middle, Nested) for options in ({}, FIND, STATIC)
]


@pytest.mark.parametrize(("kind", "options"), [*SEGMENTS, (Again, STATIC), (Tied, STATIC)], ids=str)
def test_segments_of_a_checkpoint(world, kind, options):
    """Case 5: with use_reentrant=True gradients are the plain model's mean, also in parts."""
    model, ranks = kind(), range(world.size)
    for step in (2, 52):
        losses = [model(batch(step, r).requires_grad_()).square().mean() for r in ranks]
        (sum(losses) / world.size).backward()
    expected = [p.grad for name, p in model.named_parameters() if name[0] != "e"]
    for gradients in world.run(segments, kind, options):
        assert len(gradients) == len(expected) >= 7
        assert every(torch.allclose(a, b, atol=1e-6) for a, b in zip(gradients, expected))
