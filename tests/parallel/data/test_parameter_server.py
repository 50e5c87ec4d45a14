"""Parameter server and local SGD: equal to plain training where they must be, and as predicted."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from lib.parallel.data.parameter_server import ParameterServer
from lib.predict.data import parameter_server
from lib.predict.data.parameter_server import Gate, ServerSettings, simulate
from lib.predict.shape import MLPShape
from lib.ranks import RankError
from lib.ranks.memory import Memory
from lib.single import MLP, share, train_step
from tests.conftest import DEVICE

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


def served(settings, kind="MLP", optimizer="SGD", **how):
    """One rank's whole run: its weights by name, and its history."""
    model = model_of(kind, seed=dist.get_rank() if kind == "hard" else 0)

    def loss_of(model, worker, number):
        return squares(
            model, share(whole_batch(number, settings.workers), worker, settings.workers)
        )

    place = ParameterServer(model, OPTIMIZERS[optimizer](model.parameters()), settings)
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
    settings = ServerSettings(0, 5 * workers, tuple(range(workers, 0, -1)))
    answers = worlds(ranks).run(served, settings, kind, optimizer)
    in_order = plain(workers, 5, kind, optimizer, parts=True)
    # Adam divides by what may be next to nothing: weights are close, and the same bits in order.
    whole = plain(workers, 5, kind, optimizer)
    for weights, _ in answers:
        same(weights, in_order, 0.0 if DEVICE == "cpu" else 1e-13)  # a GPU adds in its own order
        same(weights, whole, 1e-9 if optimizer == "AdamW" else 1e-13)


def test_a_gradient_left_out_is_noticed(worlds):
    """The bite: a server that forgets one worker trains on another batch."""
    (weights, _), *_ = worlds(4).run(forgetful, ServerSettings(0, 9, (1, 1, 1)))
    with pytest.raises(AssertionError, match="differs by"):
        same(weights, plain(3, 3), 1e-13)


def forgetful(settings):
    step = ParameterServer._step
    ParameterServer._step = lambda place, messages: step(place, messages[1:])
    try:
        return served(settings)
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
    (weights, _), *_ = worlds(workers + 1).run(
        served, ServerSettings(0, 6 * workers, (1,) * workers)
    )
    same(weights, want, 0.0 if workers <= 2 else 1e-13)  # of three, gloo sums in another order


# Stale runs: the same updates as simulated, and their weights as an emulation has them.


def emulated(settings, optimizer="SGD"):
    """Compute the simulated run on one device: each gradient on the version that it belongs to."""
    model, versions, losses = model_of("MLP"), [], []
    steps = OPTIMIZERS[optimizer](model.parameters())
    for update in simulate(settings).updates:
        versions.append({n: p.detach().clone() for n, p in model.named_parameters()})
        old = model_of("MLP")
        old.load_state_dict(versions[update.computed_on])
        batch = whole_batch(update.number, settings.workers)
        loss = squares(old, share(batch, update.worker, settings.workers))
        loss.backward()
        losses.append(loss.item())
        for p, q in zip(model.parameters(), old.parameters(), strict=True):
            p.grad = q.grad / settings.workers
        steps.step()
    return model.state_dict(), losses


STALE = [
    ServerSettings(1, 14, (1, 1, 3)),
    ServerSettings(3, 14, (1, 2, 5)),
    ServerSettings(None, 14, (1, 2, 5)),
    ServerSettings(None, 13, (2, (1, 7), 3)),
]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("settings", STALE, ids=str)
def test_stale_runs_are_those_simulated(worlds, settings, optimizer):
    answers = worlds(4).run(served, settings, "MLP", optimizer)
    want, losses = emulated(settings, optimizer)
    updates, seen = answers[0][1]
    assert updates == simulate(settings).updates and list(seen) == losses
    assert max(update.staleness for update in updates) > 0
    for weights, _ in answers:  # at the end everybody has the server's
        same(weights, want)
    by_worker = [[x for u, x in zip(updates, seen) if u.worker == w] for w in range(3)]
    assert [list(history.losses) for _, history in answers[1:]] == by_worker


def test_one_worker_is_never_stale(worlds):
    for bound in (0, 2, None):
        (weights, history), _ = worlds(2).run(served, ServerSettings(bound, 6, (3,)))
        same(weights, plain(1, 6))
        assert {update.staleness for update in history.updates} == {0}


def parabola(settings, lr):
    """Train w on w²/2, which every worker sees alike; the losses in the server's order."""
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.ones_(model.weight)
    place = ParameterServer(model, torch.optim.SGD(model.parameters(), lr), settings)
    return place.train(lambda model, worker, number: model.weight.square().sum() / 2).losses


@pytest.mark.parametrize(("lr", "stale_ends"), [(1.70, True), (1.92, False)])
def test_staleness_costs_the_largest_step(worlds, lr, stale_ends):
    """With delay d and steps of lr/w it ends for lr < 2·w·sin(π/(4d + 2)): 1.854, and 2 without.

    (w_t+1 = w_t - lr/w · w_t-d: its largest root is on the circle there; three workers: d = 2.)
    """
    at_once, stale = (
        worlds(4).run(parabola, ServerSettings(bound, 300, (1, 1, 1)), lr)[0] for bound in (0, None)
    )
    assert at_once[-1] < 1e-3 * at_once[0]
    assert (stale[-1] < 1e-3 * stale[0]) == stale_ends
    assert stale_ends or max(stale[-30:]) > 10 * stale[0]


def unruly(settings):
    """A server that lets everybody go on at once, whatever the bound says."""
    admit = Gate.admit

    def everybody(gate):
        free, gate.waiting = gate.waiting[: gate.left], []
        gate.left -= len(free)
        gate.computing_on = [
            gate.version if w in free else v for w, v in enumerate(gate.computing_on)
        ]
        return free

    order = simulate(ServerSettings(None, settings.gradients, settings.compute_times))
    Gate.admit = everybody
    try:
        import lib.parallel.data.parameter_server as place

        place.simulate, kept = (lambda *_, **__: order), place.simulate
        try:
            return served(settings)
        finally:
            place.simulate = kept
    finally:
        Gate.admit = admit


def test_the_bound_is_asserted_at_every_update(worlds):
    with pytest.raises(RankError, match="breaks the staleness bound 1: the worker is 2 ahead"):
        worlds(4).run(unruly, ServerSettings(1, 12, (1, 1, 9)))


def liar(settings):
    """Worker 1 says that it computed on the version after the one that it was sent."""
    from lib.parallel.data.parameter_server import _Message

    pack = _Message.pack

    def later(message, tensors, *head):
        if dist.get_rank() == 2 and len(message.flags):
            head = (head[0] + 1, *head[1:])
        pack(message, tensors, *head)

    _Message.pack = later
    try:
        return served(settings)
    finally:
        _Message.pack = pack


def test_the_version_is_the_workers_own_word(worlds):
    told = "Worker 1 computed its gradient 0 on version 1, but the server had sent it version 0"
    with pytest.raises(RankError, match=told):
        worlds(4).run(liar, ServerSettings(1, 12, (1, 1, 1)))


# (b) The ledger equals the prediction.


def messages(ledger, rank):
    """What a rank sends and receives, in order; a pair's messages counted from 0."""
    rows = [r for r in ledger.where(rank=rank, lane="comm") if r.op in ("send", "recv")]
    first = {r.members: min(q.number for q in rows if q.members == r.members) for r in rows}
    return [(r.op, r.members, r.number - first[r.members], r.bytes, r.peer) for r in rows]


@pytest.mark.parametrize("settings", [ServerSettings(0, 9, (1, 1, 3)), *STALE], ids=str)
def test_messages_are_those_predicted(worlds, settings):
    ledger = worlds(4).record(served, settings)
    # Messages take no time here, so that the settings alone decide the order.
    costs = parameter_server.message_costs(SHAPE.numel * 8, len(SHAPE.parameters), alpha=0, beta=0)
    predicted = simulate(settings, costs).ledger
    for rank in range(4):
        assert messages(ledger, rank) == messages(predicted, rank)
    out, into = (ledger.where(rank=0, lane="comm", op=op) for op in ("send", "recv"))
    assert len(out) == settings.gradients + 3 and set(out.column("bytes")) == {costs.pull_bytes}
    assert len(into) == settings.gradients and set(into.column("bytes")) == {costs.push_bytes}
    updates = ledger.where(rank=0, lane="compute", op="update")
    assert len(updates) == (3 if settings.bound == 0 else settings.gradients)
    assert not ledger.where(rank=0, op="gradient") and not ledger.where(rank={1, 2, 3}, op="update")


def test_what_is_not_trained_is_broadcast_once(worlds):
    ledger = worlds(4).record(served, ServerSettings(1, 6, (1, 1, 1)), "hard")
    sizes = sorted(ledger.where(rank=2, op="broadcast", lane="comm").column("bytes").tolist())
    assert sizes == [8 * 8, 8 * 8, 64 * 8]  # the frozen bias, the buffer, the frozen weight
    trained = [p for p in Hard().parameters() if p.requires_grad]
    nbytes = 8 * sum(p.numel() for p in trained)
    pushed = ledger.where(rank=0, op="recv", lane="comm").column("bytes")
    assert set(pushed) == {
        parameter_server.message_costs(nbytes, len(trained), alpha=0, beta=0).push_bytes
    }


def memory_of(settings):
    """What is neither weights nor gradients: at the server's peak; before a worker's forward."""
    model, seen = MLP(MLPShape((64, 512, 8))), []
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    place = ParameterServer(model, optimizer, settings)

    def loss_of(model, worker, number):
        seen.append(memory.now["other"])
        return model(torch.ones(1, 64)).sum()

    with Memory(model, optimizer) as memory:
        place.train(loss_of)
    return max(seen, default=memory.at_peak["other"])


@pytest.mark.parametrize("bound", [0, 1])
def test_messages_take_the_memory_predicted(worlds, bound):
    settings, shape = ServerSettings(bound, 6, (1, 1, 1)), MLPShape((64, 512, 8))
    costs = parameter_server.message_costs(shape.nbytes(), len(shape.parameters), alpha=0, beta=0)
    on_server, on_worker = parameter_server.kept_bytes(settings, costs)
    for rank, most in enumerate(worlds(4).run(memory_of, settings)):
        want = on_worker if rank else on_server
        assert want <= most < 1.01 * want  # a few small things come and go
