"""Gossip on ranks: the mixing matrix's arithmetic, its messages, its agreement, hard models."""

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from lib.parallel.data.gossip import Gossip, mixed
from lib.predict.data import gossip
from lib.predict.shape import MLPShape
from lib.ranks import RankError
from lib.ranks.mesh import mesh
from lib.single import MLP, mean_squares
from tests import on_gpus

SHAPE = MLPShape((6, 10, 3))
every_kind = pytest.mark.parametrize("kind", gossip.NEIGHBOURS)


def batch(rank, step):
    draw = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(5, 6, generator=draw).double(), torch.randn(5, 3, generator=draw).double()


def trained(kind, steps, seed=0, rounds=True):
    """Train with gossip on this rank; give its weights."""
    model = MLP(SHAPE).double()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    spread = Gossip(model, optimizer, kind, seed=seed)
    for step in range(steps):
        x, y = batch(dist.get_rank(), step)
        optimizer.zero_grad()
        mean_squares(model(x), y).backward()
        spread.step() if rounds else optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def on_one_device(kind, ranks, steps, seed=0):
    """The same from plain lists: n models, n optimizers, and a matrix product for each round."""
    models = [MLP(SHAPE).double() for _ in range(ranks)]
    optimizers = [torch.optim.SGD(m.parameters(), 0.1, momentum=0.9) for m in models]
    for step in range(steps):
        for rank, (model, optimizer) in enumerate(zip(models, optimizers)):
            x, y = batch(rank, step)
            optimizer.zero_grad()
            mean_squares(model(x), y).backward()
            optimizer.step()
        flat = torch.stack([nn.utils.parameters_to_vector(m.parameters()) for m in models])
        matrix = gossip.mixing_matrix(gossip.neighbours(kind, ranks, step, seed))
        for model, row in zip(models, torch.from_numpy(matrix) @ flat.detach()):
            nn.utils.vector_to_parameters(row, model.parameters())
    return [nn.utils.parameters_to_vector(m.parameters()).detach() for m in models]


# (a) Spread equals whole.


@every_kind
def test_as_on_one_device(world, kind):
    expected = on_one_device(kind, world.size, 5, seed=3)
    for ours, row in zip(world.run(trained, kind, 5, 3), expected, strict=True):
        torch.testing.assert_close(ours, row, rtol=1e-12, atol=1e-13)


@every_kind
def test_on_two_ranks_it_is_data_parallelism(worlds, kind):
    """All ranks are neighbours there, and SGD is linear in the gradient."""
    model = MLP(SHAPE).double()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for step in range(4):
        optimizer.zero_grad()
        (sum(mean_squares(model(x), y) for x, y in (batch(r, step) for r in (0, 1))) / 2).backward()
        optimizer.step()
    whole = nn.utils.parameters_to_vector(model.parameters())
    for weights in worlds(2).run(trained, kind, 4):
        torch.testing.assert_close(weights, whole.detach(), rtol=1e-12, atol=1e-13)


# (b) The ledger equals the prediction, and so does the speed of agreement.


def rounds_of(kind, rounds, size=50):
    x = torch.full((size,), float(dist.get_rank()))
    for number in range(rounds):
        x = mixed(x, kind, number)
    return x


@every_kind
def test_messages_are_those_predicted(world, kind):
    ledger = world.record(rounds_of, kind, 6)
    for rank in range(world.size):
        met = [gossip.neighbours(kind, world.size, n)[rank] for n in range(6)]
        for op in ("send", "recv"):
            rows = list(ledger.where(rank=rank, lane="comm", op=op))
            assert [row.peer for row in rows] == [other for others in met for other in others]
            assert {row.bytes for row in rows} <= {200}
        sends = sum(row.bytes for row in ledger.where(rank=rank, lane="comm", op="send"))
        assert sends == 6 * gossip.sent(kind, world.size, 200)
    assert not ledger.where(op="all_reduce")


def agreement(kind, rounds, draws):
    """The ranks' tensors after each round, for several draws of pairs: [draws, rounds, 20]."""
    draw = torch.Generator().manual_seed(dist.get_rank())
    seen = []
    for seed in range(draws):
        x, after = torch.randn(20, generator=draw).double(), []
        for number in range(rounds):
            after.append(x)
            x = mixed(x, kind, number, seed=seed)
        seen.append(torch.stack(after))
    return torch.stack(seen)


def left_over(by_rank):
    """The squares of the disagreement, [draws, rounds]."""
    x = torch.stack(by_rank)
    return (x - x.mean(0)).square().sum((0, 3))


def test_ranks_on_a_ring_agree_as_fast_as_predicted(worlds):
    """On four ranks all other eigenvalues are 1/3 or -1/3, so every round shrinks by a third."""
    by_rank = worlds(4).run(agreement, "ring", 10, 1)
    left = left_over(by_rank)[0].sqrt()
    np.testing.assert_allclose(left[1:] / left[:-1], gossip.shrinks_by("ring", 4), rtol=1e-9)
    means = torch.stack(by_rank).mean(0)[0]
    torch.testing.assert_close(means[-1], means[0], rtol=1e-9, atol=1e-12)


def test_ranks_in_pairs_agree_as_fast_as_predicted(worlds):
    """Four ranks agree at once as soon as two rounds have different pairs, or not at all."""
    left = left_over(worlds(4).run(agreement, "pairs", 4, 300))
    mean = left.mean(0)
    assert (mean[1] / mean[0]).item() == pytest.approx(1 / 3, rel=0.1)
    for number in (1, 2):
        same = ((left[:, number + 1] > 1e-20) & (left[:, number] > 1e-20)).sum()
        before = (left[:, number] > 1e-20).sum()
        assert (same / before).item() == pytest.approx(1 / 3, abs=0.12)
    assert gossip.shrinks_by("pairs", 4) ** 2 == pytest.approx(1 / 3)


@every_kind
def test_ranks_do_not_agree_after_a_round(worlds, kind):
    """Gossip is no all-reduce: after one round four ranks still differ."""
    assert len({x[0].item() for x in worlds(4).run(rounds_of, kind, 1)}) > 1


# (c) A bite.


@every_kind
def test_without_rounds_the_ranks_part(worlds, kind):
    alone = torch.stack(worlds(4).run(trained, kind, 20, 0, False))
    together = torch.stack(worlds(4).run(trained, kind, 20))
    apart = [(x - x.mean(0)).norm().item() for x in (alone, together)]
    assert apart[1] < 0.5 * apart[0]


# (d) A hard model, and a group.


class Hard(nn.Module):
    """Tied, frozen and unused parameters, two dtypes, a buffer."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 3).double(), nn.Linear(3, 3).double()
        self.last.weight = self.first.weight
        self.frozen, self.unused = nn.Linear(2, 2), nn.Linear(2, 2)
        self.frozen.requires_grad_(False)
        self.register_buffer("seen", torch.zeros(2))


def hard(kind):
    torch.manual_seed(dist.get_rank())  # ranks start from different weights
    model = Hard()
    spread = Gossip(model, torch.optim.SGD(model.parameters(), 0.1), kind)
    started = {name: p.detach().clone() for name, p in model.named_parameters()}
    with torch.no_grad():
        for p in model.parameters():
            p += dist.get_rank()
    spread.mix()
    return started, {name: p.detach().clone() for name, p in model.named_parameters()}


@every_kind
def test_a_hard_model(worlds, kind):
    answers = worlds(4).run(hard, kind)
    matrix = gossip.mixing_matrix(gossip.neighbours(kind, 4))
    assert len(answers[0][0]) == 7  # the tied weight counts once
    for rank, (started, ended) in enumerate(answers):
        for name, start in started.items():
            assert torch.equal(start, answers[0][0][name])  # broadcast when it was built
            added = rank if name.startswith("frozen") else float(matrix[rank] @ np.arange(4))
            torch.testing.assert_close(ended[name], start + added, rtol=1e-6, atol=1e-6)


def in_a_group(kind):
    return mixed(torch.tensor([float(dist.get_rank())]), kind, group=mesh(a=2, b=2)["a"].group)


@every_kind
def test_in_a_group_of_some_ranks(worlds, kind):
    assert [x.item() for x in worlds(4).run(in_a_group, kind)] == [1, 2, 1, 2]


def stars():
    Gossip(nn.Linear(1, 1), None, "star")


def test_unknown_neighbours_are_refused(worlds):
    with pytest.raises(RankError, match="no neighbours called 'star'"):
        worlds(2).run(stars)


def other_pairs(kind):
    return mixed(torch.ones(3), kind, 0, seed=dist.get_rank())


def test_ranks_that_draw_other_pairs_are_told_and_come_back(worlds):
    world = worlds(4, **on_gpus.PATIENCE)
    with pytest.raises(RankError, match="left waiting|waits for|wait for"):
        world.run(other_pairs, "pairs")
    assert [x[0].item() for x in world.run(rounds_of, "pairs", 0)] == [0, 1, 2, 3]
