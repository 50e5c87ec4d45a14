"""Distributed data parallel and buffers: the first rank's, whatever forward makes of them."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as Theirs

from lib import RankError
from lib.parallel.data import broadcast
from lib.parallel.data.ddp import DistributedDataParallel
from tests.every import every


class Reassigned(nn.Module):
    """A running mean that each forward puts in the place of the last one."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return self.last(self.first(x - self.mean).tanh())


class Normed(nn.Sequential):
    """Batch norm, which changes its buffers in place."""

    def __init__(self):
        super().__init__(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 4))


class Shared(nn.Module):
    """One normed block that is used twice, under two names."""

    def __init__(self):
        super().__init__()
        self.once = self.twice = Normed()

    def forward(self, x):
        return self.twice(self.once(x))


def one(model, x):
    return model(x).square().mean()


def siamese(model, x):
    return (model(x) - model(x + 1)).square().mean() + (model(x) * model(x - 1)).mean()


def evaluated_between(model, x):
    loss = one(model, x)
    model.eval()
    with torch.no_grad():
        model(x + 3)
    model.train()
    return loss


def inferred_between(model, x):
    loss = one(model, x)
    with torch.inference_mode():
        model(x + 3)
    return loss


def frozen_statistics(model, x):
    """In evaluation mode batch norm saves its running statistics for backward."""
    model.eval()
    return siamese(model, x)


def accumulated(model, x):
    with model.no_sync():
        siamese(model, x + 2).backward()
    return siamese(model, x)


def trained(kind, ours, use, steps=6):
    """Some steps on batches of this rank's own; losses, gradients, weights and buffers."""
    torch.manual_seed(dist.get_rank())
    model = kind()
    if ours:
        ddp = DistributedDataParallel(model, bucket_bytes=100)
    else:
        ddp = Theirs(model, bucket_cap_mb=100 / 2**20, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    draw, losses = torch.Generator().manual_seed(dist.get_rank()), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = use(ddp, torch.randn(6, 4, generator=draw))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    gradients = [p.grad.clone() for p in model.parameters()]
    weights = [p.detach().clone() for p in model.parameters()]
    return losses, gradients, weights, [b.clone() for b in model.buffers()]


def is_pytorchs(world, kind, use):
    mine, oracle = (world.run(trained, kind, ours, use) for ours in (True, False))
    for rank, other in zip(mine, oracle, strict=True):
        for a, b in zip(rank, other, strict=True):
            assert every(map(torch.equal, a, b)) and len(a) == len(b)
    for rank in mine[1:]:
        assert every(map(torch.equal, rank[2], mine[0][2]))


@pytest.mark.parametrize("use", [one, siamese, inferred_between, accumulated])
def test_a_reassigned_buffer_is_the_first_ranks(world, use):
    """Case 3: a buffer that forward reassigns is broadcast all the same, as PyTorch's is."""
    is_pytorchs(world, Reassigned, use)


@pytest.mark.parametrize("kind", [Normed, Shared])
@pytest.mark.parametrize(
    "use",
    [one, siamese, evaluated_between, inferred_between, frozen_statistics, accumulated],
)
def test_a_second_forward_before_backward(world, kind, use):
    """Case 8: with batch norm, forward may run again before backward, with PyTorch's numbers."""
    is_pytorchs(world, kind, use)


class Kinds(nn.Module):
    """Buffers of all kinds of numbers and of memory; those of rank 0 hold 1, of rank 1 hold 2."""

    types = (torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.complex64,
             torch.int16, torch.uint8, torch.uint16)  # fmt: skip

    def __init__(self):
        super().__init__()
        self.layer, one = nn.Linear(4, 4), torch.tensor(1.0 + dist.get_rank())
        for n, kind in enumerate(self.types):
            self.register_buffer(f"kind{n}", one.repeat(3).to(kind))
        self.register_buffer("bools", one.repeat(3) == 1)
        self.register_buffer("number", one.clone())
        self.register_buffer("repeated", one.clone().expand(2, 3))
        self.register_buffer("gaps", one.repeat(4, 4)[:, ::2])
        self.register_buffer("transposed", one.repeat(2, 3).t())
        self.register_buffer("hidden", one.clone(), persistent=False)
        self.register_buffer("empty", torch.zeros(0, 3))
        self.register_buffer("absent", None)

    def forward(self, x):
        return self.layer(x)


def kinds(broadcast_buffers=True):
    model = Kinds()
    ddp = DistributedDataParallel(model, broadcast_buffers=broadcast_buffers)
    before = [buffer.double() for _, buffer in model.named_buffers() if not buffer.is_complex()]
    model.number.add_(dist.get_rank())
    ddp(torch.ones(2, 4))
    return before, model.kind4.tolist(), model.number.item()


def test_buffers_of_all_kinds_are_broadcast(worlds):
    """Case 3: numbers that gloo cannot add, repeated and transposed ones arrive as they are."""
    for before, complex_numbers, number in worlds(2).run(kinds):
        assert len(before) == 14 and all((buffer == 1).all() for buffer in before)
        assert complex_numbers == [1, 1, 1] and number == 1


def test_without_broadcast_buffers_they_stay_each_ranks_own(worlds):
    """Case 3: `broadcast_buffers=False` leaves them alone from the start, as in PyTorch."""
    for rank, (before, _, number) in enumerate(worlds(2).run(kinds, False)):
        assert before[0].tolist() == [1 + rank] * 3 and number == 1 + 2 * rank


def sparse_buffer():
    model = nn.Linear(3, 3)
    model.register_buffer("graph", torch.eye(3).to_sparse())
    DistributedDataParallel(model)


def lazy():
    DistributedDataParallel(nn.Sequential(nn.Linear(3, 3), nn.LazyLinear(3)))


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (sparse_buffer, "graph is sparse_coo, but only dense tensors can be broadcast"),
        (lazy, "1.weight has no shape yet, because the model is lazy. Run the model once"),
    ],
)
def test_what_cannot_be_broadcast_is_named(worlds, step, words):
    """Case 3: a tensor without dense numbers is refused by name when the model is wrapped."""
    with pytest.raises(RankError, match=words):
        worlds(2).run(step)


def test_saved_tensors_are_taken_for_unchanged(worlds):
    """Case 8: the broadcast leaves version counters as they are, and values do change."""

    def versions():
        tensor = torch.full((3,), float(dist.get_rank()))
        broadcast.broadcast([tensor, tensor[1:]], None)
        return tensor._version, tensor.tolist()

    assert worlds(2).run(versions) == [(0, [0, 0, 0])] * 2
