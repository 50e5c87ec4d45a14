"""Parameter server and local SGD: equal to plain training where they must be, and as predicted."""

import time
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from lib.parallel.local import LocalSGD
from lib.parallel.server import ParameterServer
from lib.predict import exchange, server
from lib.predict.server import Dial, Gate, play
from lib.predict.shape import MLPShape
from lib.ranks import RankError
from lib.ranks.memory import Memory
from lib.ranks.mesh import mesh
from lib.ranks.slow_motion import SlowMotion
from lib.single import MLP, share, train_step

SHAPE = MLPShape((6, 10, 3))


class Hard(nn.Module):
    """A layer used twice, a frozen one, one never used, two tied, and a norm with buffers."""

    def __init__(self):
        super().__init__()
        self.into, self.twice, self.out = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.frozen, self.unused, self.tied = nn.Linear(8, 8), nn.Linear(5, 7), nn.Linear(8, 8)
        self.frozen.requires_grad_(False)
        self.tied.weight = self.twice.weight
        self.register_buffer("shift", torch.zeros(8))

    def forward(self, x):
        x = torch.tanh(self.twice(torch.tanh(self.twice(self.into(x)))))
        return self.out(torch.tanh(self.tied(self.frozen(x + self.shift))))


def model_of(kind, seed=0):
    torch.manual_seed(seed)
    model = MLP(SHAPE, seed=seed) if kind == "MLP" else Hard()
    return model.double()


OPTIMIZERS = {
    "SGD": lambda params: torch.optim.SGD(params, 0.1),
    "momentum": lambda params: torch.optim.SGD(params, 0.05, momentum=0.9, weight_decay=0.1),
    "AdamW": lambda params: torch.optim.AdamW(params, 0.01),
}


def whole_batch(number, workers, rows=4):
    """What all workers take in together in one round: rows for each of them."""
    noise = torch.Generator("cpu").manual_seed(100 + number)
    x = torch.randn(workers * rows, 6, generator=noise, dtype=torch.float64)
    return x, torch.sin(x[:, :3]) + x[:, 3:]


def squares(model, batch):
    x, y = batch
    return (model(x) - y).square().mean()


def served(dial, kind="MLP", optimizer="SGD", **how):
    """One rank's whole run: its weights by name, and its history."""
    model = model_of(kind, seed=dist.get_rank() if kind == "hard" else 0)

    def loss_of(model, worker, number):
        return squares(model, share(whole_batch(number, dial.workers), worker, dial.workers))

    place = ParameterServer(model, OPTIMIZERS[optimizer](model.parameters()), dial)
    history = place.train(loss_of, **how)
    return {name: t.detach().clone() for name, t in model.state_dict().items()}, history


def plain(workers, rounds, kind="MLP", optimizer="SGD", parts=False):
    """Training on one device, on the whole batch, or on its parts one after the other, in order."""
    model = model_of(kind)
    steps = OPTIMIZERS[optimizer](model.parameters())
    for number in range(rounds):
        batch = whole_batch(number, workers)
        if not parts:
            train_step(model, steps, batch, loss=nn.functional.mse_loss)
            continue
        steps.zero_grad()
        for worker in range(workers):
            squares(model, share(batch, worker, workers)).backward()
        for p in model.parameters():
            p.grad = None if p.grad is None else p.grad / workers
        steps.step()
    return model.state_dict()


def same(ours, theirs, tolerance=0.0):
    assert ours.keys() == theirs.keys()
    for name in theirs:
        far = (ours[name] - theirs[name]).norm() / (theirs[name].norm() + 1e-30)
        assert far <= tolerance, f"{name} differs by {far:.2e}"


# (a) Bulk-synchronous is plain training on the whole batch.

CASES = [("MLP", name) for name in OPTIMIZERS] + [("hard", name) for name in OPTIMIZERS]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(("kind", "optimizer"), CASES)
def test_bulk_synchronous_equals_the_whole_batch(worlds, ranks, kind, optimizer):
    workers = ranks - 1
    dial = Dial(0, 5 * workers, tuple(range(workers, 0, -1)))
    answers = worlds(ranks).run(served, dial, kind, optimizer)
    in_order = plain(workers, 5, kind, optimizer, parts=True)
    # Adam divides by what may be next to nothing: weights are close, and the same bits in order.
    whole = plain(workers, 5, kind, optimizer)
    for weights, _ in answers:
        same(weights, in_order)
        same(weights, whole, 1e-9 if optimizer == "AdamW" else 1e-13)


def test_a_gradient_left_out_is_noticed(worlds):
    """The bite: a server that forgets one worker trains on another batch."""
    (weights, _), *_ = worlds(4).run(forgetful, Dial(0, 9, (1, 1, 1)))
    with pytest.raises(AssertionError, match="differs by"):
        same(weights, plain(3, 3), 1e-13)


def forgetful(dial):
    step = ParameterServer._step
    ParameterServer._step = lambda place, messages: step(place, messages[1:])
    try:
        return served(dial)
    finally:
        ParameterServer._step = step


# (e) The oracle: PyTorch's DistributedDataParallel, with a rank for each worker and no server.


def by_torch(rounds):
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(model_of("MLP"))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for number in range(rounds):
        optimizer.zero_grad()
        n = dist.get_world_size()
        squares(model, share(whole_batch(number, n), dist.get_rank(), n)).backward()
        optimizer.step()
    return {name: t.detach().clone() for name, t in model.module.state_dict().items()}


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_bulk_synchronous_equals_ddp(worlds, workers):
    want = worlds(workers).run(by_torch, 6)[0]
    (weights, _), *_ = worlds(workers + 1).run(served, Dial(0, 6 * workers, (1,) * workers))
    same(weights, want, 0.0 if workers <= 2 else 1e-13)  # of three, gloo sums in another order


# Stale runs: the same updates as on paper, and their weights as an emulation has them.


def emulated(dial, optimizer="SGD"):
    """The paper's story acted out on one device: each gradient on the version it was made on."""
    model, versions, losses = model_of("MLP"), [], []
    steps = OPTIMIZERS[optimizer](model.parameters())
    for update in play(dial).updates:
        versions.append({n: p.detach().clone() for n, p in model.named_parameters()})
        old = model_of("MLP")
        old.load_state_dict(versions[update.made_on])
        batch = whole_batch(update.number, dial.workers)
        loss = squares(old, share(batch, update.worker, dial.workers))
        loss.backward()
        losses.append(loss.item())
        for p, q in zip(model.parameters(), old.parameters(), strict=True):
            p.grad = q.grad / dial.workers
        steps.step()
    return model.state_dict(), losses


STALE = [
    Dial(1, 14, (1, 1, 3)),
    Dial(3, 14, (1, 2, 5)),
    Dial(None, 14, (1, 2, 5)),
    Dial(None, 13, (2, (1, 7), 3)),
]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("dial", STALE, ids=str)
def test_stale_runs_are_those_of_the_paper(worlds, dial, optimizer):
    answers = worlds(4).run(served, dial, "MLP", optimizer)
    want, losses = emulated(dial, optimizer)
    updates, seen = answers[0][1]
    assert updates == play(dial).updates and list(seen) == losses
    assert max(update.staleness for update in updates) > 0
    for weights, _ in answers:  # at the end everybody has the server's
        same(weights, want)
    by_worker = [[x for u, x in zip(updates, seen) if u.worker == w] for w in range(3)]
    assert [list(history.losses) for _, history in answers[1:]] == by_worker


def test_one_worker_is_never_stale(worlds):
    for bound in (0, 2, None):
        (weights, history), _ = worlds(2).run(served, Dial(bound, 6, (3,)))
        same(weights, plain(1, 6))
        assert {update.staleness for update in history.updates} == {0}


def parabola(dial, lr):
    """Train w on w²/2, which every worker sees alike; the losses in the server's order."""
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.ones_(model.weight)
    place = ParameterServer(model, torch.optim.SGD(model.parameters(), lr), dial)
    return place.train(lambda model, worker, number: model.weight.square().sum() / 2).losses


@pytest.mark.parametrize(("lr", "stale_ends"), [(1.70, True), (1.92, False)])
def test_staleness_costs_the_largest_step(worlds, lr, stale_ends):
    """With delay d and steps of lr/w it ends for lr < 2·w·sin(π/(4d + 2)): 1.854, and 2 without.

    (w_t+1 = w_t - lr/w · w_t-d: its largest root is on the circle there; three workers: d = 2.)
    """
    at_once, stale = (
        worlds(4).run(parabola, Dial(bound, 300, (1, 1, 1)), lr)[0] for bound in (0, None)
    )
    assert at_once[-1] < 1e-3 * at_once[0]
    assert (stale[-1] < 1e-3 * stale[0]) == stale_ends
    assert stale_ends or max(stale[-30:]) > 10 * stale[0]


def unruly(dial):
    """A server that lets everybody go on at once, whatever the bound says."""
    admit = Gate.admit

    def everybody(gate):
        free, gate.waiting = gate.waiting[: gate.left], []
        gate.left -= len(free)
        gate.holds = [gate.version if w in free else v for w, v in enumerate(gate.holds)]
        return free

    order = play(Dial(None, dial.gradients, dial.paces))
    Gate.admit = everybody
    try:
        import lib.parallel.server as place

        place.play, kept = (lambda *_, **__: order), place.play
        try:
            return served(dial)
        finally:
            place.play = kept
    finally:
        Gate.admit = admit


def test_the_bound_is_asserted_at_every_update(worlds):
    with pytest.raises(RankError, match="breaks the staleness bound 1: it is 2 ahead"):
        worlds(4).run(unruly, Dial(1, 12, (1, 1, 9)))


def liar(dial):
    """Worker 1 says that it computed on the version after the one that it was sent."""
    from lib.parallel.server import _Message

    pack = _Message.pack

    def later(message, tensors, *head):
        if dist.get_rank() == 2 and len(message.flags):
            head = (head[0] + 1, *head[1:])
        pack(message, tensors, *head)

    _Message.pack = later
    try:
        return served(dial)
    finally:
        _Message.pack = pack


def test_the_version_is_the_workers_own_word(worlds):
    told = "worker 1 made its gradient 0 on version 1, and was sent version 0"
    with pytest.raises(RankError, match=told):
        worlds(4).run(liar, Dial(1, 12, (1, 1, 1)))


# (b) The ledger equals the prediction.


def messages(ledger, rank):
    """What a rank sends and receives, in order; a pair's messages counted from 0."""
    rows = [r for r in ledger.where(rank=rank, lane="comm") if r.op in ("send", "recv")]
    first = {r.members: min(q.number for q in rows if q.members == r.members) for r in rows}
    return [(r.op, r.members, r.number - first[r.members], r.bytes, r.peer) for r in rows]


@pytest.mark.parametrize("dial", [Dial(0, 9, (1, 1, 3)), *STALE], ids=str)
def test_messages_are_those_predicted(worlds, dial):
    ledger = worlds(4).record(served, dial)
    # No time for messages here: it would change who comes first, and the dial alone decides that.
    costs = server.costs(SHAPE.numel * 8, len(SHAPE.parameters), alpha=0, beta=0)
    paper = play(dial, costs).ledger
    for rank in range(4):
        assert messages(ledger, rank) == messages(paper, rank)
    out, into = (ledger.where(rank=0, lane="comm", op=op) for op in ("send", "recv"))
    assert len(out) == dial.gradients + 3 and set(out.column("bytes")) == {costs.pull_bytes}
    assert len(into) == dial.gradients and set(into.column("bytes")) == {costs.push_bytes}
    updates = ledger.where(rank=0, lane="compute", op="update")
    assert len(updates) == (3 if dial.bound == 0 else dial.gradients)
    assert not ledger.where(rank=0, op="gradient") and not ledger.where(rank={1, 2, 3}, op="update")


def test_what_is_not_trained_is_broadcast_once(worlds):
    ledger = worlds(4).record(served, Dial(1, 6, (1, 1, 1)), "hard")
    sizes = sorted(ledger.where(rank=2, op="broadcast", lane="comm").column("bytes").tolist())
    assert sizes == [8 * 8, 8 * 8, 64 * 8]  # the frozen bias, the buffer, the frozen weight
    trained = [p for p in Hard().parameters() if p.requires_grad]
    nbytes = 8 * sum(p.numel() for p in trained)
    pushed = ledger.where(rank=0, op="recv", lane="comm").column("bytes")
    assert set(pushed) == {server.costs(nbytes, len(trained), alpha=0, beta=0).push_bytes}


def memory_of(dial):
    """What is neither weights nor gradients: at the server's peak; before a worker's forward."""
    model, seen = MLP(MLPShape((64, 512, 8))), []
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    place = ParameterServer(model, optimizer, dial)

    def loss_of(model, worker, number):
        seen.append(memory.now["other"])
        return model(torch.ones(1, 64)).sum()

    with Memory(model, optimizer) as memory:
        place.train(loss_of)
    return max(seen, default=memory.at_peak["other"])


@pytest.mark.parametrize("bound", [0, 1])
def test_messages_take_the_memory_predicted(worlds, bound):
    dial, shape = Dial(bound, 6, (1, 1, 1)), MLPShape((64, 512, 8))
    costs = server.costs(shape.nbytes(), len(shape.parameters), alpha=0, beta=0)
    on_server, on_worker = server.kept_bytes(dial, costs)
    for rank, most in enumerate(worlds(4).run(memory_of, dial)):
        want = on_worker if rank else on_server
        assert want <= most < 1.01 * want  # a few small things come and go


# Time: ranks that are as slow as the dial says.


def test_stragglers_take_their_time(worlds):
    """Ranks that sleep: a round takes the slowest one's time, asynchronous runs do not."""
    took = {}
    for bound in (0, None):
        dial = Dial(bound, 24, (1, 1, 4))
        ledger = worlds(4).record(served, dial, tick=0.05)
        took[bound], paper = ledger.makespan, play(dial).ledger.makespan * 0.05
        assert took[bound] >= 0.99 * paper
        slow = list(ledger.where(rank=3, op="gradient"))
        assert slow and all(row.seconds >= 0.99 * 0.2 for row in slow)
    assert took[None] < took[0]


def surprised(dial, order):
    """A run in which worker 0 sleeps, though the dial says that all are alike."""
    model = model_of("MLP")

    def loss_of(model, worker, number):
        time.sleep(0.0 if worker else 0.5)
        return squares(model, whole_batch(number, 1))

    place = ParameterServer(model, OPTIMIZERS["SGD"](model.parameters()), dial)
    return place.train(loss_of, order=order).updates, model.state_dict()


def test_whoever_comes_first_is_taken_first(worlds):
    """The server looks who is there: one who sleeps comes last, and is waited for by default."""
    dial = Dial(None, 7, (1, 1, 1))
    (updates, _), *_ = worlds(4).run(surprised, dial, None)
    assert [u.worker for u in updates] == [0, 1, 2, 0, 1, 2, 0]
    (updates, weights), *others = worlds(4).run(surprised, dial, "arrivals")
    assert [u.worker for u in updates].index(0) == 6 and updates[-1].staleness == 6
    for _, theirs in others:
        same(theirs, weights)


@pytest.mark.parametrize("bound", [0, 1])
def test_the_bound_holds_whoever_comes_first(worlds, bound):
    (_, history), *_ = worlds(4).run(served, Dial(bound, 12, (1, 1, 1)), order="arrivals")
    assert max(u.staleness for u in history.updates) <= server.most_stale(3, bound)
    assert len(history.updates) == 12


def stretched(dial):
    """Workers that compute their gradient as often as their pace says, to be that slow."""
    torch.manual_seed(0)
    model, x = nn.Linear(256, 256, bias=False), torch.ones(1024, 256)

    def loss_of(model, worker, number):
        for _ in range(dial.pace(worker, number) - 1):
            model(x).square().mean().backward()
        return model(x).square().mean()

    place = ParameterServer(model, torch.optim.SGD(model.parameters(), 0.01), dial)
    place.train(loss_of)


@pytest.mark.parametrize("bound", [0, 1, None])
def test_slow_motion_takes_the_time_on_paper(worlds, bound, monkeypatch):
    """On a GPU's clock: messages, queues at the server, waiting for the slow one, as predicted."""
    speeds = SlowMotion("H100", factor=1e5, alpha=1e-7, bandwidth=1e12)
    dial, tried = Dial(bound, 9, (1, 1, 3)), []
    for _ in range(3):  # of a machine that is busy, the try that slipped least
        with monkeypatch.context() as slowly:
            slowly.setattr(worlds(4), "slow_motion", speeds)
            ledger = worlds(4).record(stretched, dial)
        times = [
            float(np.median(ledger.where(rank=rank, op=op).column("seconds")))
            for rank, op in enumerate(["update", "gradient", "gradient", "gradient"])
        ]
        update, *paces = times
        link = {"alpha": speeds.alpha, "beta": 1 / speeds.bandwidth}
        costs = server.costs(256 * 256 * 4, 1, update=update, **link)
        paper = play(replace(dial, paces=tuple(paces)), costs, order=play(dial).order)
        # From the first weights to the last update: not what is made ready before.
        rows = [r for r in ledger.where(rank=0) if r.op in ("send", "recv", "update")]
        first, last = min(r.start for r in rows), max(r.end for r in rows if r.op == "update")
        tried.append(abs((last - first) / paper.times[-1] - 1))
        if tried[-1] < 0.05:
            return
    pytest.fail(f"recorded and predicted differ by {tried}")


# Refused, and in a group


def test_too_few_ranks_are_refused(world):
    with pytest.raises(RankError, match=f"9 workers and a server are 10 ranks.*has {world.size}"):
        world.run(served, Dial(1, 9, (1,) * 9))


def test_an_order_that_cannot_be_is_refused(worlds):
    with pytest.raises(RankError, match="order='first': a sequence of workers, or"):
        worlds(2).run(served, Dial(1, 4, (1,)), order="first")
    with pytest.raises(RankError, match="worker 0 delivered a gradient it was not asked for"):
        worlds(4).run(served, Dial(0, 6, (1, 1, 1)), order=[0, 0, 1, 1, 2, 2])


def two_dtypes():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    return ParameterServer(model, None, Dial(0, 1, (1,)))


def test_several_dtypes_are_refused(worlds):
    with pytest.raises(RankError, match=r"of dtypes torch.float32, torch.float64: one is needed"):
        worlds(2).run(two_dtypes)


def in_two_groups(dial, order):
    """Ranks 0 2 and 1 3: two servers at once, each with one worker."""
    group = mesh(a=2, b=2)["a"].group
    model = model_of("MLP")
    place = ParameterServer(model, OPTIMIZERS["SGD"](model.parameters()), dial, group=group)
    loss_of = lambda model, worker, number: squares(model, whole_batch(number, 1))
    place.train(loss_of, order=order)
    return model.state_dict()


@pytest.mark.parametrize("order", [None, "arrivals"])
def test_in_a_group_of_some_ranks(worlds, order):
    for weights in worlds(4).run(in_two_groups, Dial(1, 4, (1,)), order):
        same(weights, plain(1, 4))


# Local SGD


def local(every, steps, kind="MLP", optimizer="SGD", group=False):
    group = mesh(a=2, b=2)["a"].group if group else None
    model = model_of(kind, seed=dist.get_rank(group))
    trained = LocalSGD(model, OPTIMIZERS[optimizer](model.parameters()), every, group=group)
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


def by_averager(every, steps):
    """PyTorch's own: PeriodicModelAverager after each step."""
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    model = model_of("MLP")
    optimizer, n = OPTIMIZERS["momentum"](model.parameters()), dist.get_world_size()
    averager = PeriodicModelAverager(period=every, warmup_steps=every - 1)
    for number in range(steps):
        model.zero_grad()
        squares(model, share(whole_batch(number, n), dist.get_rank(), n)).backward()
        optimizer.step()
        averager.average_parameters(model.parameters())
    return model.state_dict()


@pytest.mark.parametrize("every", [1, 3])
def test_as_pytorchs_averager(world, every):
    want = world.run(by_averager, every, 7)
    for ours, theirs in zip(world.run(local, every, 7, "MLP", "momentum"), want, strict=True):
        same(ours, theirs, 1e-14)


@pytest.mark.parametrize("every", [1, 2, 5])
def test_local_sgd_sends_as_predicted(world, every):
    ledger = world.record(local, every, 11)
    calls = exchange.local_sgd([shape for _, shape, _ in SHAPE.parameters], 11, every, itemsize=8)
    rows = ledger.where(rank=world.size - 1, lane="comm", op="all_reduce")
    assert [("all_reduce", row.bytes) for row in rows] == calls


def test_between_averages_ranks_differ(worlds):
    """The bite: without the average each rank has a model of its own."""
    for every, alike in ((5, True), (4, False)):
        weights = worlds(4).run(local, every, 5)
        assert all(torch.equal(w["blocks.0.linear.weight"], weights[0]["blocks.0.linear.weight"])
                   for w in weights) == alike  # fmt: skip


def test_local_sgd_in_a_group(worlds):
    for weights in worlds(4).run(local, 1, 4, group=True):
        same(weights, plain(2, 4), 1e-13)


def never():
    LocalSGD(nn.Linear(1, 1), None, 0)


def test_never_averaging_is_refused(worlds):
    with pytest.raises(RankError, match="every=0: weights are averaged after each 1, 2, ... steps"):
        worlds(2).run(never)
