"""Parameter server and local SGD on weights that lie oddly in memory, and on sparse gradients."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from lib import RankError
from lib.parallel.data.local_sgd import LocalSGD
from lib.parallel.data.parameter_server import ParameterServer
from lib.predict.data.parameter_server import ServerSettings


class Memory(nn.Module):
    """Weights and buffers with gaps in memory, in another order, repeated, complex and empty."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        draw = lambda *shape: torch.randn(*shape, dtype=torch.float64)
        self.gaps = nn.Parameter(draw(4, 8)[:, ::2])
        self.frozen = nn.Parameter(draw(4, 8)[:, ::2], requires_grad=False)
        self.turned, self.empty = nn.Parameter(draw(6, 4).t()), nn.Parameter(draw(0, 3))
        self.kernel = nn.Parameter(draw(2, 3, 2, 2).to(memory_format=torch.channels_last))
        self.register_buffer("shift", draw(8)[::2])
        self.register_buffer("repeated", draw(1).expand(4))
        self.register_buffer("eighth", draw(4).to(torch.float8_e4m3fn))
        self.register_buffer("waves", draw(4, 4, 2)[..., 0].to(torch.complex64))

    def forward(self, x):
        y = (x + self.shift * self.repeated) @ self.gaps @ self.frozen @ self.turned
        return (y[:, :4] @ self.waves.real.double() + self.eighth.double()).square().mean() + (
            self.kernel.square().mean() + self.empty.sum()
        )


def batch(number, worker):
    draw = torch.Generator().manual_seed(100 * number + worker)
    return torch.randn(3, 4, generator=draw, dtype=torch.float64)


def values(model):
    """The parameters and buffers as lists: what every rank must have, however it keeps them."""
    state = [*model.named_parameters(), *model.named_buffers()]
    return {name: torch.view_as_real(t).tolist() if t.is_complex() else t.double().tolist()
            for name, t in state}  # fmt: skip


def plain(workers, rounds=3):
    model = Memory(0)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for number in range(rounds):
        optimizer.zero_grad()
        (sum(model(batch(number, worker)) for worker in range(workers)) / workers).backward()
        optimizer.step()
    return values(model)


def near(found, expected):
    assert found.keys() == expected.keys()
    for name in expected:
        a, b = (torch.tensor(side[name], dtype=torch.float64) for side in (found, expected))
        assert a.shape == b.shape and torch.allclose(a, b, rtol=1e-10, atol=1e-12), name


def local():
    model = Memory(dist.get_rank())
    trained = LocalSGD(model, torch.optim.SGD(model.parameters(), 0.01), 1)
    start = values(model)
    for number in range(3):
        model.zero_grad()
        model(batch(number, dist.get_rank())).backward()
        trained.step()
    return start, values(model)


def test_local_sgd_broadcasts_by_value(world):
    """Case 7: a parameter with gaps in memory is broadcast and averaged by value."""
    for start, end in world.run(local):
        near(start, values(Memory(0)))
        near(end, plain(world.size))


def served(optimizer=torch.optim.SGD):
    model = Memory(dist.get_rank())
    workers = dist.get_world_size() - 1
    place = ParameterServer(
        model, optimizer(model.parameters(), 0.01), ServerSettings(0, 3 * workers, (1,) * workers)
    )
    place.train(lambda model, worker, number: model(batch(number, worker)))
    return values(model)


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_server_broadcasts_by_value(worlds, ranks):
    """Case 7: the server's frozen weights and buffers with gaps are broadcast by value."""
    for end in worlds(ranks).run(served):
        near(end, plain(ranks - 1))


# --- sparse gradients


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.layer = nn.Embedding(9, 4, sparse=True), nn.Linear(4, 4)

    def forward(self, rows):
        return self.layer(self.table(rows)).square().mean()


def rows(number, worker):
    return torch.randint(9, (5,), generator=torch.Generator().manual_seed(100 * number + worker))


def sgd(params):
    return torch.optim.SGD(params, 0.1, momentum=0.9)


def served_words(make):
    model, workers = Words(), dist.get_world_size() - 1
    settings = ServerSettings(0, 4 * workers, (1,) * workers)
    place = ParameterServer(model, make(model.parameters()), settings)
    place.train(lambda model, worker, number: model(rows(number, worker)))
    return values(model)


def plain_words(workers):
    model = Words()
    optimizer = sgd(model.parameters())
    for number in range(4):
        optimizer.zero_grad()
        (sum(model(rows(number, worker)) for worker in range(workers)) / workers).backward()
        optimizer.step()
    return values(model)


@pytest.mark.parametrize("ranks", [2, 4])
def test_sparse_gradients_reach_the_server(worlds, ranks):
    """Case 13: a table's sparse gradients give the server the plain model's weights."""
    expected = plain_words(ranks - 1)
    for found in worlds(ranks).run(served_words, sgd):
        for name in expected:
            assert torch.allclose(
                torch.tensor(found[name]), torch.tensor(expected[name]), atol=1e-5
            )


def sparse_adam(params):
    return torch.optim.SparseAdam(list(params))


def local_words():
    model = Words()
    trained = LocalSGD(model, sgd(model.parameters()), 1)
    for number in range(4):
        model.zero_grad()
        model(rows(number, dist.get_rank())).backward()
        trained.step()
    return values(model)


def test_local_sgd_steps_on_sparse_gradients(worlds):
    """Case 13: weights are averaged, so sparse gradients change nothing."""
    expected = plain_words(2)
    for found in worlds(2).run(local_words):
        for name in expected:
            assert torch.allclose(
                torch.tensor(found[name]), torch.tensor(expected[name]), atol=1e-5
            )


def lazy(make):
    model = nn.Sequential(nn.Linear(2, 2), nn.LazyLinear(2))
    make(model, torch.optim.SGD(model[0].parameters(), 0.1))


def sparse_buffer(make):
    model = nn.Linear(2, 2)
    model.register_buffer("graph", torch.eye(2).to_sparse())
    make(model, torch.optim.SGD(model.parameters(), 0.1))


def by_server(model, optimizer):
    return ParameterServer(model, optimizer, ServerSettings(0, 1, (1,)))


def by_local_sgd(model, optimizer):
    return LocalSGD(model, optimizer, 2)


@pytest.mark.parametrize("make", [by_server, by_local_sgd])
def test_what_cannot_be_broadcast_is_named(worlds, make):
    """Case 7: lazy parameters and sparse buffers are refused before anything is sent."""
    with pytest.raises(RankError, match="1.weight has no shape yet, because the model is lazy"):
        worlds(2).run(lazy, make)
    with pytest.raises(
        RankError, match="graph is sparse_coo, but only dense tensors can be broadcast"
    ):
        worlds(2).run(sparse_buffer, make)


def test_an_optimizer_of_sparse_gradients_is_refused(worlds):
    """Case 13: SparseAdam would find dense gradients on the server: it is refused beforehand."""
    with pytest.raises(RankError, match="SparseAdam accepts only sparse gradients"):
        worlds(2).run(served_words, sparse_adam)
