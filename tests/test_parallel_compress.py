"""Compressed gradients: what is sent, what is left, how many bytes, what training makes of it."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from lib.parallel.compress import PowerSGD, Quantized, Sign, TopK
from lib.parallel.data import DistributedDataParallel
from lib.predict import exchange
from lib.predict.exchange import kept_entries, low_rank
from lib.predict.shape import GPTShape
from lib.ranks import RankError
from lib.ranks.mesh import mesh
from lib.single import GPT, Batches, next_token_loss, share

SHAPES = [(9, 11), (11,), (6, 2, 3, 3), (), (1, 5)]
NUMEL = 99 + 11 + 108 + 1 + 5
METHODS = {
    "top-k": (lambda: TopK(0.1), lambda n, size: exchange.top_k(SHAPES, n, 0.1, size)),
    "3 bits": (
        lambda: Quantized(3, block=50),
        lambda n, size: exchange.quantized(SHAPES, n, 3, 50, size),
    ),
    "sign": (lambda: Sign(), lambda n, size: exchange.sign(SHAPES, n, size)),
    "PowerSGD": (lambda: PowerSGD(2), lambda n, size: exchange.power_sgd(SHAPES, n, 2, size)),
}
every_method = pytest.mark.parametrize("name", METHODS)
with_feedback = pytest.mark.parametrize("name", ["top-k", "sign", "PowerSGD"])


def gradients(rank, step, dtype=torch.float64, shapes=SHAPES):
    """Other ones on each rank and in each step, of very different sizes."""
    noise = torch.Generator("cpu").manual_seed(1000 * step + rank)
    made = []
    for shape in shapes:
        x = torch.randn(shape, generator=noise, dtype=torch.float64)
        made.append((x * torch.rand(shape, generator=noise, dtype=torch.float64) ** 3).to(dtype))
    return made


def averaged(name, steps, dtype=torch.float64, group=None):
    """Give the averages of each step, and what is left at the end."""
    hook, seen = METHODS[name][0](), []
    for step in range(steps):
        mine = gradients(dist.get_rank(), step, dtype)
        hook.average(mine, group)
        seen.append(mine)
    return seen, dict(hook.left), hook.state_bytes


def mean(tensors):
    return sum(tensors) / len(tensors)


# (a) The same on one device, from plain lists: all ranks' gradients in, the averages out.


def one_device(name, ranks, steps):
    """The method on plain lists of rows, one for each rank; nothing is packed, nothing sent."""
    left = [torch.zeros(NUMEL, dtype=torch.float64) for _ in range(ranks)]
    chances = [torch.Generator().manual_seed(rank) for rank in range(ranks)]
    seen = []
    for step in range(steps):
        rows = [torch.cat([g.flatten() for g in gradients(r, step)]) for r in range(ranks)]
        if name == "3 bits":
            sent = [by_chance(row, chance) for row, chance in zip(rows, chances, strict=True)]
        else:
            rows = [row + rest for row, rest in zip(rows, left, strict=True)]
            sent = [{"top-k": largest, "sign": signs}[name](row) for row in rows]
            left = [row - what for row, what in zip(rows, sent, strict=True)]
        seen.append(mean(sent))
    return seen, left


def largest(row):
    order = sorted(range(NUMEL), key=lambda i: -abs(row[i].item()))[: kept_entries(NUMEL, 0.1)]
    return torch.stack([x if i in order else 0 * x for i, x in enumerate(row)])


def signs(row):
    parts, start = [], 0
    for shape in SHAPES:
        part = row[start : start + torch.Size(shape).numel()]
        parts.append(torch.where(part < 0, -1.0, 1.0).double() * part.abs().sum() / part.numel())
        start += part.numel()
    return torch.cat(parts)


def by_chance(row, chance):
    """Entry by entry: three steps on each side of 0, up with the chance that makes it right."""
    coins = torch.rand(NUMEL, generator=chance, dtype=torch.float64)
    sent = []
    for i, x in enumerate(row.tolist()):
        scale = max(abs(y) for y in row[i // 50 * 50 : i // 50 * 50 + 50].tolist())
        place = x / scale * 3
        low = place // 1
        sent.append((low + (coins[i].item() < place - low)) / 3 * scale)
    return torch.tensor(sent, dtype=torch.float64)


@pytest.mark.parametrize("name", ["top-k", "3 bits", "sign"])
def test_as_on_one_device(world, name):
    want, want_left = one_device(name, world.size, 4)
    for rank, (seen, left, _) in enumerate(world.run(averaged, name, 4)):
        for step in range(4):
            flat = torch.cat([g.flatten() for g in seen[step]])
            torch.testing.assert_close(flat, want[step], rtol=1e-13, atol=1e-15)
        if name != "3 bits":
            flat = torch.cat([left[i].flatten() for i in range(len(SHAPES))])
            torch.testing.assert_close(flat, want_left[rank], rtol=1e-13, atol=1e-13)


def test_powersgd_is_that_of_the_mean_gradient(world):
    """It is linear: on the mean of all gradients, on one device, as in the paper (Algorithm 1)."""
    chance = torch.Generator().manual_seed(0)
    rest, q = {}, {}
    answers = world.run(averaged, "PowerSGD", 4)
    for step in range(4):
        for i, shape in enumerate(SHAPES):
            g = mean([gradients(rank, step)[i] for rank in range(world.size)])
            cut = low_rank(shape, 2)
            if cut:
                m = (g + rest.get(i, 0)).reshape(cut[0], cut[1])
                if i not in q:
                    q[i] = torch.randn(cut[1], cut[2], generator=chance).double()
                p = gram_schmidt(m @ q[i])
                q[i] = m.T @ p
                g = (p @ q[i].T).view(shape)
                rest[i] = m.view(shape) - g
            for seen, _, _ in answers:
                torch.testing.assert_close(seen[step][i], g, rtol=1e-11, atol=1e-12)


def gram_schmidt(p):
    columns = []
    for column in p.T:
        for earlier in columns:
            column = column - (earlier @ column) * earlier
        columns.append(column / column.norm())
    return torch.stack(columns, 1)


@every_method
def test_the_same_bits_on_every_rank(worlds, name):
    answers = worlds(4).run(averaged, name, 3, torch.float32)
    for seen, *_ in answers:
        for ours, theirs in zip(seen, answers[0][0], strict=True):
            assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


# What was sent and what is left are all there was.


@with_feedback
def test_nothing_is_lost(world, name):
    steps = 25
    answers = world.run(averaged, name, steps)
    for i in range(len(SHAPES)):
        given = sum(gradients(rank, s)[i] for s in range(steps) for rank in range(world.size))
        sent = sum(seen[i] for seen in answers[0][0]) * world.size
        left = sum(rest.get(i, torch.zeros(SHAPES[i])) for _, rest, _ in answers)
        torch.testing.assert_close(sent + left, given, rtol=1e-13, atol=1e-12)
        if low_rank(SHAPES[i], 2):
            assert left.abs().max() > 1e-3  # and it is not that nothing was left


def test_quantising_keeps_nothing_back(worlds):
    assert worlds(2).run(averaged, "3 bits", 2)[0][1:] == ({}, 0)


# (b) The ledger equals the prediction.


@every_method
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_bytes_are_those_predicted(world, name, dtype):
    ledger = world.record(averaged, name, 2, dtype)
    calls = METHODS[name][1](world.size, dtype.itemsize)
    for rank in range(world.size):
        rows = ledger.where(rank=rank, lane="comm")
        assert [(row.op, row.bytes) for row in rows] == 2 * calls


@with_feedback
def test_memory_is_that_predicted(worlds, name):
    want = exchange.residual_bytes(SHAPES, 4)
    if name == "PowerSGD":  # what is summed whole leaves nothing over
        want = exchange.power_sgd_bytes(SHAPES, 2, 4)
    assert worlds(2).run(averaged, name, 2, torch.float32)[1][2] == want


@every_method
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_comes_close(worlds, name, dtype):
    (want, *_), *_ = worlds(2).run(averaged, name, 1, torch.float64)
    (seen, *_), *_ = worlds(2).run(averaged, name, 1, dtype)
    for ours, theirs in zip(seen[0], want[0], strict=True):
        assert ours.dtype == dtype and ours.isfinite().all()
        if name == "PowerSGD":
            assert (ours.double() - theirs).norm() < 0.05 * theirs.norm()


# Right on average


def rounded(x, copies, bits):
    """Send the same numbers many times; give the mean of what came, by rank."""
    hook = Quantized(bits, block=len(x), seed=3)
    many = [x.repeat(copies)]
    hook.average(many)
    return many[0].view(copies, -1)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_quantising_is_right_on_average(worlds, bits):
    """The mean of T draws is off by less than 5 σ, and σ is at most half a step ÷ √T."""
    x, draws = gradients(0, 0)[0][0], 20_000
    got = worlds(1).run(rounded, x, draws, bits)[0]
    step = x.abs().max() / (2 ** (bits - 1) - 1)
    assert ((got - x).abs() <= step * (1 + 1e-12)).all()
    near = 5 * step / 2 / draws**0.5
    assert ((got.mean(0) - x).abs() < near).all()
    # The bite: rounding to the nearest, always the same way, is not.
    nearest = (x / step).round() * step
    assert bits == 8 or ((nearest - x).abs() > near).any()


def test_ranks_round_each_in_its_own_way(worlds):
    """Four times the same numbers: if chance is independent, the mean's variance is a quarter."""
    x, draws = gradients(0, 0)[0][0], 20_000
    one = worlds(1).run(rounded, x, draws, 2)[0].var(0).sum()
    four = worlds(4).run(rounded, x, draws, 2)[0].var(0).sum()
    assert four / one == pytest.approx(1 / 4, rel=0.05)


def test_zero_stays_zero(worlds):
    for name in METHODS:
        for seen in worlds(2).run(zeros, name):
            assert all(not g.any() for g in seen)


def zeros(name):
    hook, nothing = METHODS[name][0](), [torch.zeros(shape) for shape in SHAPES]
    hook.average(nothing)
    hook.average(nothing)
    return nothing


def late():
    """A gradient that is zero for two steps and then is not, as of an expert nobody chose."""
    hook = PowerSGD(2, feedback=False)
    for step in range(30):
        mine = [g * (step >= 2) for g in gradients(7, 0)]
        hook.average(mine)
    return mine[0]


def test_powersgd_finds_back_from_zero(worlds):
    """From then on its factors become the best two there are, as power iteration does."""
    want = gradients(7, 0)[0]
    best = torch.linalg.svdvals(want)[2:].norm()
    for got in worlds(2).run(late):
        assert best * (1 - 1e-9) <= (got - want).norm() < 1.001 * best


# Without error feedback


def towards(make, steps, lr, targets):
    """Ranks that pull towards targets of their own: their mean is what all want together."""
    hook, w = make(), torch.zeros_like(targets[0])
    for _ in range(steps):
        gradient = [w - targets[dist.get_rank()]]
        hook.average(gradient)
        w -= lr * gradient[0]
    return (w - mean(targets)).norm().item()


def quarrel():
    """Two ranks want the first number to be 10 and -10, and agree on all others: 1."""
    targets = torch.ones(2, 10, dtype=torch.float64)
    targets[:, 0] = torch.tensor([10.0, -10.0])
    return list(targets)


def majority():
    """Three ranks want -1 everywhere, the fourth 7: the mean is 1, most signs say -1."""
    return list(torch.tensor([[-1.0], [-1.0], [-1.0], [7.0]], dtype=torch.float64).expand(4, 16)
                * torch.linspace(0.5, 1.5, 16, dtype=torch.float64))  # fmt: skip


def test_top_k_without_feedback_never_learns_what_is_small(worlds):
    """The bite: the quarrel is all that is ever sent, and it adds up to nothing."""
    start = mean(quarrel()).norm().item()
    stuck = worlds(2).run(towards, lambda: TopK(0.1, feedback=False), 700, 0.01, quarrel())
    assert stuck == [start, start]
    came = worlds(2).run(towards, lambda: TopK(0.1), 700, 0.01, quarrel())
    assert max(came) < 0.1 * start


def test_signs_without_feedback_follow_the_many(worlds):
    """The bite: without feedback it ends where the signs cancel, not where the gradients do."""
    start = mean(majority()).norm().item()
    stuck = worlds(4).run(towards, lambda: Sign(feedback=False), 250, 0.04, majority())
    came = worlds(4).run(towards, lambda: Sign(), 250, 0.04, majority())
    assert min(stuck) > 0.2 * start and max(came) < 0.1 * start


# (d) Buckets: cut anew, of parameters in other orders, several under way.


def bucket_of(index, params, values):
    flat = torch.cat([values[name].flatten() for name in params])
    parts = flat.split([values[name].numel() for name in params])
    views = [part.view(values[name].shape) for part, name in zip(parts, params)]
    return SimpleNamespace(index=index, flat=flat, params=params, views=views)


def rebuilt(name):
    """Two steps in one bucket, three in two others; everything given, sent and left, by name."""
    hook = METHODS[name][0]()
    given, sent = {}, {}
    for step in range(5):
        values = dict(zip("abcde", gradients(dist.get_rank(), step)))
        cuts = ["abcde"] if step < 2 else ["ec", "bda"]
        buckets = [bucket_of(i, tuple(names), values) for i, names in enumerate(cuts)]
        given = {n: given.get(n, 0) + values[n].clone() for n in values}
        for under_way in [hook(bucket) for bucket in buckets]:
            under_way.wait()
        for bucket in buckets:
            for n, view in zip(bucket.params, bucket.views):
                sent[n] = sent.get(n, 0) + view
    return given, sent, dict(hook.left)


@with_feedback
def test_what_is_left_follows_its_parameter(worlds, name):
    answers = worlds(4).run(rebuilt, name)
    for n in "abcde":
        given = sum(answer[0][n] for answer in answers)
        left = sum(answer[2].get(n, torch.zeros(())) for answer in answers)
        torch.testing.assert_close(4 * answers[0][1][n] + left, given, rtol=1e-13, atol=1e-12)


def in_a_group(name):
    return averaged(name, 1, group=mesh(a=2, b=2)["a"].group)[0][0]


@every_method
def test_in_a_group_of_some_ranks(worlds, name):
    answers = worlds(4).run(in_a_group, name)
    for a, b in ((0, 2), (1, 3)):
        for ours, theirs in zip(answers[a], answers[b], strict=True):
            assert torch.equal(ours, theirs)
    assert not torch.equal(answers[0][0], answers[1][0])


# With our DistributedDataParallel

SHAPE = GPTShape(width=32, heads=2, layers=2)
HOOKS = {
    "top-k": lambda: TopK(0.05),
    "4 bits": lambda: Quantized(4),
    "sign": lambda: Sign(),
    "PowerSGD": lambda: PowerSGD(4),
}


def trained(make, steps, lr=0.3, model=None):
    """Train the small GPT; give losses, weights, and the shapes in each bucket at the end."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    ddp = DistributedDataParallel(model or GPT(SHAPE), bucket_bytes=40_000, hook=make and make())
    optimizer, batches = torch.optim.SGD(ddp.parameters(), lr), Batches(16, 64)
    losses = []
    for number in range(steps):
        tokens, targets = share(batches[number], rank, ranks)
        optimizer.zero_grad()
        loss = next_token_loss(ddp(tokens), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    shapes = [[tuple(p.shape) for p in bucket.params] for bucket in ddp.buckets]
    return losses, [p.detach().clone() for p in ddp.parameters()], shapes


CALLS = {
    "top-k": lambda shapes, n: exchange.top_k(shapes, n, 0.05),
    "4 bits": lambda shapes, n: exchange.quantized(shapes, n, 4),
    "sign": lambda shapes, n: exchange.sign(shapes, n),
    "PowerSGD": lambda shapes, n: exchange.power_sgd(shapes, n, 4),
}


@pytest.mark.parametrize("name", HOOKS)
def test_as_hooks_of_ddp(worlds, name):
    ledger = worlds(4).record(trained, HOOKS[name], 3)
    _, weights, shapes = ledger.results[0]
    for _, others, _ in ledger.results:
        assert all(torch.equal(a, b) for a, b in zip(others, weights, strict=True))
    calls = [CALLS[name](inside, 4) for inside in shapes]
    want = [call for bucket in calls for call in bucket]
    if name == "PowerSGD":  # the first sums leave while backward runs, the second ones after it
        want = [bucket[0] for bucket in calls] + [c for bucket in calls for c in bucket[1:]]
    rows = [(r.op, r.bytes) for r in ledger.where(rank=1, lane="comm")]
    assert len(shapes) > 2 and rows[-len(want) :] == want


@pytest.fixture(scope="module")
def plain_losses(worlds):
    """The losses of plain gradients, the mean over two ranks."""
    return torch.tensor([losses for losses, *_ in worlds(2).run(trained, None, 60)]).mean(0)


@pytest.mark.parametrize("name", HOOKS)
def test_training_goes_on(worlds, plain_losses, name):
    """Sixty steps: the loss falls at least 85 % as far as it does with plain gradients."""
    plain = plain_losses
    ours = torch.tensor([r[0] for r in worlds(2).run(trained, HOOKS[name], 60)]).mean(0)
    fell = plain[0] - plain[-5:].mean()
    assert ours[0] == pytest.approx(plain[0].item(), abs=1e-6)
    assert plain[0] - ours[-5:].mean() > 0.85 * fell > 0.85


def conv():
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3))
    return model.to(memory_format=torch.channels_last)


def pictures(last):
    """A step of PowerSGD on convolutions whose memory is channels last, or is not."""
    model = conv() if last else conv().to(memory_format=torch.contiguous_format)
    ddp = DistributedDataParallel(model, hook=PowerSGD(2))
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(dist.get_rank()))
    for _ in range(3):
        model.zero_grad()
        ddp(x).square().mean().backward()
    return [p.grad.contiguous() for p in model.parameters()]


def test_powersgd_on_memory_in_another_order(worlds):
    plain, last = (worlds(2).run(pictures, last)[0] for last in (False, True))
    for a, b in zip(plain, last, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-7)


# Everything sent is nothing compressed.


def two_ways(make):
    hook, mine = make(), gradients(dist.get_rank(), 0)
    flat = torch.cat([g.flatten() for g in mine])
    dist.all_reduce(flat)
    hook.average(mine)
    return torch.cat([g.flatten() for g in mine]), flat / dist.get_world_size()


@pytest.mark.parametrize("make", [lambda: TopK(1.0), lambda: PowerSGD(100)], ids=["all", "full"])
def test_all_entries_or_full_rank_are_the_plain_mean(world, make):
    for ours, plain in world.run(two_ways, make):
        if world.size <= 2:  # of four, gloo sums in another order
            assert torch.equal(ours, plain)
        torch.testing.assert_close(ours, plain, rtol=1e-13, atol=1e-14)


# (e) The oracle: PyTorch's own PowerSGD, as a hook of its DistributedDataParallel.


class Batch(torch.nn.Module):
    """Parameters whose gradients are what it is given."""

    def __init__(self):
        super().__init__()
        made = [torch.zeros(s, dtype=torch.float64) for s in SHAPES if s]
        self.params = torch.nn.ParameterList(made)

    def forward(self, wanted):
        return sum((p * g).sum() for p, g in zip(self.params, wanted))


def torchs(steps, rank, feedback, warm):
    """Gradients after PyTorch's hook: its first two steps are plain, ours begins after them."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as theirs

    model = Batch()
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    state = theirs.PowerSGDState(
        None, rank, start_powerSGD_iter=2, min_compression_rate=1, use_error_feedback=feedback,
        warm_start=warm, random_seed=5)  # fmt: skip
    ddp.register_comm_hook(state, theirs.powerSGD_hook)
    seen = []
    for step in range(steps + 2):
        model.zero_grad()
        wanted = [g for g in gradients(dist.get_rank(), max(step - 2, 0)) if g.dim()]
        ddp(wanted).backward()
        seen.append([p.grad.clone() for p in model.params])
    return seen[2:]


class SameStart(PowerSGD):
    """Draws its Q as PyTorch's hook does: a new seed for each step, in the order of the bucket."""

    def seed(self):
        import numpy as np

        self.dice = getattr(self, "dice", None) or np.random.RandomState(5)
        self.chance = torch.Generator().manual_seed(int(self.dice.randint(1_000_000_000)))

    def start(self, p, columns, rank, like):
        if p not in self.factors or not self.warm:
            drawn = torch.randn(1, columns, rank, generator=self.chance, dtype=torch.float64)
            self.factors[p] = drawn[0]
        return self.factors[p]


def ours(steps, rank, feedback, warm):
    hook, seen = SameStart(rank, feedback=feedback, warm=warm), []
    for step in range(steps):
        if step == 0 or not warm:
            hook.seed()
        # PyTorch's bucket holds the last parameter first.
        mine = [g for g in gradients(dist.get_rank(), step) if g.dim()][::-1]
        hook.average(mine)
        seen.append(mine[::-1])
    return seen


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize(("feedback", "warm"), [(True, True), (True, False), (False, True)])
def test_as_pytorchs_powersgd(worlds, ranks, rank, feedback, warm):
    theirs = worlds(ranks).run(torchs, 6, rank, feedback, warm)
    mine = worlds(ranks).run(ours, 6, rank, feedback, warm)
    for a, b in zip(mine[0], theirs[0], strict=True):
        for x, y in zip(a, b, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-10)


def torchs_rest(steps):
    """The norm of what PyTorch's hook has left over on this rank, after each step of the same."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as theirs

    model, norms = Batch(), []
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    state = theirs.PowerSGDState(None, 2, start_powerSGD_iter=2, min_compression_rate=1)
    ddp.register_comm_hook(state, theirs.powerSGD_hook)
    for _ in range(steps + 2):
        model.zero_grad()
        ddp([g for g in gradients(dist.get_rank(), 0) if g.dim()]).backward()
        norms += [rest.norm().item() for rest in state.error_dict.values()]
    return norms


def our_rest(steps):
    hook, norms = PowerSGD(2), []
    for _ in range(steps):
        hook.average([g for g in gradients(dist.get_rank(), 0) if g.dim()])
        norms.append(sum(rest.norm() ** 2 for rest in hook.left.values()).sqrt().item())
    return norms


def test_what_ranks_differ_by_does_not_add_up(worlds):
    """Ranks that bring the same again and again, each its own: ours levels off, theirs grows."""
    grown = {}
    for job in (our_rest, torchs_rest):
        norms = worlds(4).run(job, 60)
        grown[job] = max(max(n[-10:]) / max(n[5:15]) for n in norms)
    assert grown[our_rest] < 1.5 and grown[torchs_rest] > 3


# Refused


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: TopK(0), "ratio=0: the share of entries that is sent, above 0, up to 1"),
        (lambda: TopK(1.5), "ratio=1.5"),
        (lambda: Quantized(1), "bits=1: an entry is sent in 2 to 8 bits"),
        (lambda: Quantized(9), "bits=9"),
        (lambda: PowerSGD(0), "rank=0: the factors have 1, 2, ... columns"),
    ],
)
def test_what_cannot_be_is_refused(make, told):
    with pytest.raises(ValueError, match=told):
        make()


def mixed():
    TopK(0.5).average([torch.ones(2), torch.ones(2, dtype=torch.float64)])


def test_gradients_of_several_dtypes_are_refused(worlds):
    with pytest.raises(RankError, match="gradients of several dtypes share no message"):
        worlds(2).run(mixed)
