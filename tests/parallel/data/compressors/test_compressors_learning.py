"""Compressors in training: what feedback is worth, what is sent, and what is learned."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from lib.parallel.data.compressors import PowerSGD, Quantized, Sign, TopK
from lib.parallel.data.ddp import DistributedDataParallel
from lib.predict.data import compression
from lib.predict.shape import GPTShape
from lib.ranks import RankError
from lib.ranks.mesh import mesh
from lib.single import GPT, Batches, next_token_loss, share
from tests.every import every
from tests.parallel.data.compressors.test_compressors import (
    METHODS,
    SHAPES,
    averaged,
    every_method,
    gradients,
    majority,
    mean,
    towards,
    with_feedback,
)


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
    return given, sent, dict(hook.residual)


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
    "top-k": lambda shapes, n: compression.top_k(shapes, n, 0.05),
    "4 bits": lambda shapes, n: compression.quantized(shapes, n, 4),
    "sign": lambda shapes, n: compression.sign(shapes, n),
    "PowerSGD": lambda shapes, n: compression.power_sgd(shapes, n, 4),
}


@pytest.mark.parametrize("name", HOOKS)
def test_as_hooks_of_ddp(worlds, name):
    ledger = worlds(4).record(trained, HOOKS[name], 3)
    _, weights, shapes = ledger.results[0]
    for _, others, _ in ledger.results:
        assert every(torch.equal(a, b) for a, b in zip(others, weights, strict=True))
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
        norms.append(sum(rest.norm() ** 2 for rest in hook.residual.values()).sqrt().item())
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
        (lambda: TopK(0), "must be above 0 and at most 1, not 0"),
        (lambda: TopK(1.5), "ratio, the share of entries that is sent, must be .*, not 1.5"),
        (lambda: Quantized(1), "bits must be from 2 to 8, not 1"),
        (lambda: Quantized(9), "bits must be from 2 to 8, not 9"),
        (lambda: PowerSGD(0), "rank, the number of columns of a factor, must be at least 1, not 0"),
    ],
)
def test_what_cannot_be_is_refused(make, told):
    with pytest.raises(ValueError, match=told):
        make()


def mixed():
    TopK(0.5).average([torch.ones(2), torch.ones(2, dtype=torch.float64)])


def test_gradients_of_several_dtypes_are_refused(worlds):
    with pytest.raises(RankError, match="Gradients of several dtypes cannot share a message"):
        worlds(2).run(mixed)
