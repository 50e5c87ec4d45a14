"""Compressed gradients: what is sent, what is left, how many bytes, what training makes of it."""

import pytest
import torch
import torch.distributed as dist

from lib.parallel.data.compressors import PowerSGD, Quantized, Sign, TopK
from lib.predict.data import compression
from lib.predict.data.compression import kept_entries, low_rank
from tests.every import every

SHAPES = [(9, 11), (11,), (6, 2, 3, 3), (), (1, 5)]
NUMEL = 99 + 11 + 108 + 1 + 5
METHODS = {
    "top-k": (lambda: TopK(0.1), lambda n, size: compression.top_k(SHAPES, n, 0.1, size)),
    "3 bits": (
        lambda: Quantized(3, block=50),
        lambda n, size: compression.quantized(SHAPES, n, 3, 50, size),
    ),
    "sign": (lambda: Sign(), lambda n, size: compression.sign(SHAPES, n, size)),
    "PowerSGD": (lambda: PowerSGD(2), lambda n, size: compression.power_sgd(SHAPES, n, 2, size)),
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
    return seen, dict(hook.residual), hook.state_bytes


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
    """It is linear: on the mean of all gradients, on one device, as published (Algorithm 1)."""
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
            assert every(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


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
    want = compression.residual_bytes(SHAPES, 4)
    if name == "PowerSGD":  # what is summed whole leaves nothing over
        want = compression.power_sgd_bytes(SHAPES, 2, 4)
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
            assert every(not g.any() for g in seen)


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
