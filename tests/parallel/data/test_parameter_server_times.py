"""The parameter server in time, and local SGD: as predicted, as PyTorch averages, and refused."""

import time
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from lib.parallel.data.local_sgd import LocalSGD
from lib.parallel.data.parameter_server import ParameterServer
from lib.predict.data import compression, parameter_server
from lib.predict.data.parameter_server import ServerSettings, simulate
from lib.ranks import RankError
from lib.ranks.mesh import mesh
from lib.ranks.slow_motion import SlowMotion
from lib.single import share
from tests.every import every
from tests.parallel.data.test_parameter_server import (
    OPTIMIZERS,
    SHAPE,
    model_of,
    plain,
    same,
    served,
    squares,
    whole_batch,
)

# Time: ranks that are as slow as the settings says.


def test_stragglers_take_their_time(worlds):
    """Ranks that sleep: a round takes the slowest one's time, asynchronous runs do not."""
    took = {}
    for bound in (0, None):
        settings = ServerSettings(bound, 24, (1, 1, 4))
        ledger = worlds(4).record(served, settings, tick=0.05)
        took[bound], predicted = ledger.makespan, simulate(settings).ledger.makespan * 0.05
        assert took[bound] >= 0.99 * predicted
        slow = list(ledger.where(rank=3, op="gradient"))
        assert slow and all(row.seconds >= 0.99 * 0.2 for row in slow)
    assert took[None] < took[0]


def surprised(settings, order):
    """A run in which worker 0 sleeps, though the settings says that all are alike."""
    model = model_of("MLP")

    def loss_of(model, worker, number):
        time.sleep(0.0 if worker else 0.5)
        return squares(model, whole_batch(number, 1))

    place = ParameterServer(model, OPTIMIZERS["SGD"](model.parameters()), settings)
    return place.train(loss_of, order=order).updates, model.state_dict()


def test_whoever_comes_first_is_taken_first(worlds):
    """The server looks who is there: one who sleeps comes last, and is waited for by default."""
    settings, world = (
        ServerSettings(None, 7, (1, 1, 1)),
        worlds(4, device="cpu"),
    )  # gloo alone can look
    (updates, _), *_ = world.run(surprised, settings, None)
    assert [u.worker for u in updates] == [0, 1, 2, 0, 1, 2, 0]
    (updates, weights), *others = world.run(surprised, settings, "arrivals")
    assert [u.worker for u in updates].index(0) == 6 and updates[-1].staleness == 6
    for _, theirs in others:
        same(theirs, weights)


@pytest.mark.parametrize("bound", [0, 1])
def test_the_bound_holds_whoever_comes_first(worlds, bound):
    world, settings = worlds(4, device="cpu"), ServerSettings(bound, 12, (1, 1, 1))
    (_, history), *_ = world.run(served, settings, order="arrivals")
    assert max(u.staleness for u in history.updates) <= parameter_server.most_stale(3, bound)
    assert len(history.updates) == 12


def stretched(settings):
    """Workers that compute their gradient as often as their pace says, to be that slow."""
    torch.manual_seed(0)
    model, x = nn.Linear(256, 256, bias=False), torch.ones(1024, 256)

    def loss_of(model, worker, number):
        for _ in range(settings.compute_time(worker, number) - 1):
            model(x).square().mean().backward()
        return model(x).square().mean()

    place = ParameterServer(model, torch.optim.SGD(model.parameters(), 0.01), settings)
    place.train(loss_of)


@pytest.mark.quiet
@pytest.mark.parametrize("bound", [0, 1, None])
def test_slow_motion_takes_the_predicted_time(worlds, bound, monkeypatch):
    """On a GPU's clock: messages, queues at the server, waiting for the slow one, as predicted."""
    speeds = SlowMotion("H100", factor=1e5, alpha=1e-7, bandwidth=1e12)
    settings, world, tried = ServerSettings(bound, 9, (1, 1, 3)), worlds(4, device="cpu"), []
    for _ in range(3):  # of a machine that is busy, the try that slipped least
        with monkeypatch.context() as slowly:
            slowly.setattr(world, "slow_motion", speeds)
            ledger = world.record(stretched, settings)
        times = [
            float(np.median(ledger.where(rank=rank, op=op).column("seconds")))
            for rank, op in enumerate(["update", "gradient", "gradient", "gradient"])
        ]
        update, *compute_times = times
        link = {"alpha": speeds.alpha, "beta": 1 / speeds.bandwidth}
        costs = parameter_server.message_costs(256 * 256 * 4, 1, update=update, **link)
        predicted = simulate(
            replace(settings, compute_times=tuple(compute_times)),
            costs,
            order=simulate(settings).order,
        )
        # From the first weights to the last update: not what is made ready before.
        rows = [r for r in ledger.where(rank=0) if r.op in ("send", "recv", "update")]
        first, last = min(r.start for r in rows), max(r.end for r in rows if r.op == "update")
        tried.append(abs((last - first) / predicted.times[-1] - 1))
        if tried[-1] < 0.05:
            return
    pytest.fail(f"recorded and predicted differ by {tried}")


# Refused, and in a group


def test_too_few_ranks_are_refused(world):
    with pytest.raises(RankError, match=f"9 workers and a server need 10 ranks.*has {world.size}"):
        world.run(served, ServerSettings(1, 9, (1,) * 9))


def test_an_order_that_cannot_be_is_refused(worlds):
    with pytest.raises(RankError, match="order must be a sequence of workers or .*, not 'first'"):
        worlds(2).run(served, ServerSettings(1, 4, (1,)), order="first")
    with pytest.raises(RankError, match="Worker 0 delivered a gradient, but the server had not"):
        worlds(4).run(served, ServerSettings(0, 6, (1, 1, 1)), order=[0, 0, 1, 1, 2, 2])


def on_nccl(settings):
    """Ask for arrivals in a group whose messages wait for one another, as NCCL's do."""
    dist.group.WORLD.streamed = True
    try:
        return served(settings, order="arrivals")
    finally:
        dist.group.WORLD.streamed = False


def test_nccl_cannot_look_who_is_there(worlds):
    words = 'order="arrivals" needs gloo, but these ranks are on GPUs with NCCL'
    with pytest.raises(RankError, match=words) as caught:
        worlds(2, device="cpu").run(on_nccl, ServerSettings(1, 4, (1,)))
    assert "raised ValueError" in str(caught.value).splitlines()[0]  # before any message


def two_dtypes():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    return ParameterServer(model, None, ServerSettings(0, 1, (1,)))


def test_several_dtypes_are_refused(worlds):
    with pytest.raises(RankError, match=r"these dtypes: torch.float32, torch.float64"):
        worlds(2).run(two_dtypes)


def in_two_groups(settings, order):
    """Ranks 0 2 and 1 3: two servers at once, each with one worker."""
    group = mesh(a=2, b=2)["a"].group
    model = model_of("MLP")
    place = ParameterServer(model, OPTIMIZERS["SGD"](model.parameters()), settings, group=group)
    loss_of = lambda model, worker, number: squares(model, whole_batch(number, 1))
    place.train(loss_of, order=order)
    return model.state_dict()


@pytest.mark.parametrize("order", [None, "arrivals"])
def test_in_a_group_of_some_ranks(worlds, order):
    world = worlds(4, device="cpu") if order else worlds(4)
    for weights in world.run(in_two_groups, ServerSettings(1, 4, (1,)), order):
        same(weights, plain(1, 4))


# Local SGD


def local(period, steps, kind="MLP", optimizer="SGD", group=False, outer=None):
    group = mesh(a=2, b=2)["a"].group if group else None
    model = model_of(kind, seed=dist.get_rank(group))
    outer = torch.optim.SGD(model.parameters(), **outer) if outer else None
    inner = OPTIMIZERS[optimizer](model.parameters())
    trained = LocalSGD(model, inner, period, outer=outer, group=group)
    n, rank = dist.get_world_size(group), dist.get_rank(group)
    for number in range(steps):
        model.zero_grad()
        squares(model, share(whole_batch(number, n), rank, n)).backward()
        trained.step()
    return {name: t.detach().clone() for name, t in model.state_dict().items()}


@pytest.mark.parametrize("kind", ["MLP", "hard"])
@pytest.mark.parametrize("optimizer", ["SGD", "momentum"])
def test_averaging_every_step_is_data_parallel(world, kind, optimizer):
    want = plain(world.size, 6, kind, optimizer)
    for weights in world.run(local, 1, 6, kind, optimizer):
        same(weights, want, 1e-13)


def test_with_adam_averaging_every_step_is_not(worlds):
    with pytest.raises(AssertionError, match="differs by"):
        same(worlds(4).run(local, 1, 6, "MLP", "AdamW")[0], plain(4, 6, "MLP", "AdamW"), 1e-6)


def test_an_outer_step_of_1_without_momentum_is_local_sgd(worlds):
    want = worlds(4).run(local, 3, 7, "MLP", "AdamW")
    for ours, theirs in zip(worlds(4).run(local, 3, 7, "MLP", "AdamW", False, {"lr": 1}), want):
        same(ours, theirs, 1e-14)


def outer_by_hand(steps, lr, momentum):
    """Two rounds of DiLoCo written out: Nesterov's momentum on what all ranks moved."""
    model, n = model_of("MLP"), dist.get_world_size()
    inner = OPTIMIZERS["SGD"](model.parameters())
    last = [p.detach().clone() for p in model.parameters()]
    speed = [torch.zeros_like(p) for p in last]
    for number in range(2 * steps):
        model.zero_grad()
        squares(model, share(whole_batch(number, n), dist.get_rank(), n)).backward()
        inner.step()
        if (number + 1) % steps == 0:
            with torch.no_grad():
                for p, old, v in zip(model.parameters(), last, speed, strict=True):
                    moved = old - p
                    dist.all_reduce(moved)
                    v.mul_(momentum).add_(moved / n)
                    old.sub_(lr * (moved / n + momentum * v))
                    p.copy_(old)
    return model.state_dict()


def test_an_outer_optimizer_steps_from_average_to_average(worlds):
    outer = {"lr": 0.7, "momentum": 0.9, "nesterov": True}
    want = worlds(4).run(outer_by_hand, 3, 0.7, 0.9)
    found = worlds(4).run(local, 3, 6, "MLP", "SGD", False, outer)
    for ours, theirs in zip(found, want, strict=True):
        same(ours, theirs, 1e-13)
    assert not torch.equal(*(w["blocks.0.linear.weight"] for w in
                             (found[0], worlds(4).run(local, 3, 6)[0])))  # fmt: skip


def by_averager(period, steps):
    """PyTorch's own: PeriodicModelAverager after each step."""
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    model = model_of("MLP")
    optimizer, n = OPTIMIZERS["momentum"](model.parameters()), dist.get_world_size()
    averager = PeriodicModelAverager(period=period, warmup_steps=period - 1)
    for number in range(steps):
        model.zero_grad()
        squares(model, share(whole_batch(number, n), dist.get_rank(), n)).backward()
        optimizer.step()
        averager.average_parameters(model.parameters())
    return model.state_dict()


@pytest.mark.parametrize("period", [1, 3])
def test_as_pytorchs_averager(world, period):
    want = world.run(by_averager, period, 7)
    for ours, theirs in zip(world.run(local, period, 7, "MLP", "momentum"), want, strict=True):
        same(ours, theirs, 1e-14)


@pytest.mark.parametrize("period", [1, 2, 5])
def test_local_sgd_sends_as_predicted(world, period):
    ledger = world.record(local, period, 11)
    calls = compression.local_sgd(
        [shape for _, shape, _ in SHAPE.parameters], 11, period, itemsize=8
    )
    rows = ledger.where(rank=world.size - 1, lane="comm", op="all_reduce")
    assert [("all_reduce", row.bytes) for row in rows] == calls


def test_between_averages_ranks_differ(worlds):
    """The bite: without the average each rank has a model of its own."""
    for period, alike in ((5, True), (4, False)):
        weights = worlds(4).run(local, period, 5)
        assert every(torch.equal(w["blocks.0.linear.weight"], weights[0]["blocks.0.linear.weight"])
                   for w in weights) == alike  # fmt: skip


def test_local_sgd_in_a_group(worlds):
    for weights in worlds(4).run(local, 1, 4, group=True):
        same(weights, plain(2, 4), 1e-13)


def never():
    LocalSGD(nn.Linear(1, 1), None, 0)


def test_never_averaging_is_refused(worlds):
    with pytest.raises(RankError, match="every must be at least 1 step, not 0"):
        worlds(2).run(never)
