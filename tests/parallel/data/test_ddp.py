"""Distributed data parallel: spread equals whole, and the bugs that people shipped are seen."""

import pytest
import torch
import torch.distributed as dist

from lib.parallel.data.ddp import DistributedDataParallel, all_reduce_mean
from lib.predict.shape import GPTShape, MLPShape
from lib.single import GPT, MLP, Batches, mean_squares, next_token_loss, share, train_step
from tests.every import every

GPT_SHAPE = GPTShape(width=32, heads=2, layers=2)
GROUPED = GPTShape(width=32, heads=4, layers=2, kv_heads=2, positions="rotary")
MLP_SHAPE = MLPShape((6, 10, 7, 4))
BUCKET = 600  # bytes: several buckets for each model here


def whole(kind):
    """The plain model in float64, its batch, its loss."""
    if kind == "mlp":
        generator = torch.Generator().manual_seed(0)
        x, y = (torch.randn(8, n, generator=generator, dtype=torch.float64) for n in (6, 4))
        return MLP(MLP_SHAPE).double(), (x.requires_grad_(), y), mean_squares
    shape = GROUPED if kind == "grouped" else GPT_SHAPE
    return GPT(shape).double(), Batches(8)[0], next_token_loss


def one_step(model, optimizer, batch, loss):
    outputs = model(batch[0])
    optimizer.zero_grad()
    loss(outputs, batch[1]).backward()
    optimizer.step()
    return {
        "outputs": outputs.detach(),
        "input": batch[0].grad,
        "gradients": [p.grad.clone() for p in model.parameters()],
        "weights": [p.detach().clone() for p in model.parameters()],
    }


def plain(kind, steps):
    model, batch, loss = whole(kind)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(steps):
        if batch[0].grad is not None:
            batch[0].grad = None
        result = one_step(model, optimizer, batch, loss)
    return result


def spread(kind, steps, hook=None):
    model, batch, loss = whole(kind)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if rank:  # what it starts from must not matter
        for parameter in model.parameters():
            parameter.data.add_(rank)
    ddp = DistributedDataParallel(model, bucket_bytes=BUCKET, hook=hook)
    optimizer = torch.optim.SGD(ddp.parameters(), 0.1)
    for _ in range(steps):
        x, y = share(batch, rank, ranks)
        x = x.detach().requires_grad_(x.is_floating_point())
        result = one_step(ddp, optimizer, (x, y), loss)
    return result | {"buckets": len(ddp.buckets)}


def differences(parts, truth, ranks):
    """Relative distances from the plain run: of each tensor on each rank."""
    far = lambda a, b: ((a - b).norm() / b.norm().clamp(min=1e-30)).item()
    found = [far(torch.cat([part["outputs"] for part in parts]), truth["outputs"])]
    if truth["input"] is not None:  # the mean over B/dp samples is dp times as steep as that over B
        found.append(far(torch.cat([part["input"] for part in parts]) / ranks, truth["input"]))
    for part in parts:
        for what in ("gradients", "weights"):
            found += [far(a, b) for a, b in zip(part[what], truth[what], strict=True)]
    return found


@pytest.mark.parametrize("kind", ["gpt", "grouped", "mlp"])
@pytest.mark.parametrize("steps", [1, 3])
def test_spread_equals_whole(world, kind, steps):
    parts, truth = world.run(spread, kind, steps), plain(kind, steps)
    assert max(differences(parts, truth, world.size)) < 1e-13
    assert (parts[0]["buckets"] > 1) == (steps > 1)
    for part in parts[1:]:
        assert every(map(torch.equal, part["weights"], parts[0]["weights"]))


class Done:
    def wait(self):
        pass


def no_hook(bucket, group):
    return Done()


def sum_hook(bucket, group):
    return dist.all_reduce(bucket.flat, group=group, async_op=True)


def all_but_the_last(bucket, group):
    """The partial bucket at the end stays at home."""
    last = bucket.index and bucket.flat.nbytes < BUCKET
    return Done() if last else all_reduce_mean(bucket, group)


@pytest.mark.parametrize("hook", [no_hook, sum_hook, all_but_the_last])
def test_bugs_that_people_shipped_are_seen(worlds, hook):
    parts, truth = worlds(2).run(spread, "mlp", 3, hook), plain("mlp", 3)
    assert max(differences(parts, truth, 2)) > 1e-3


def test_a_hook_that_averages_is_the_default(worlds):
    parts, truth = worlds(4).run(spread, "mlp", 3, all_reduce_mean), plain("mlp", 3)
    assert max(differences(parts, truth, 4)) < 1e-13


def trained(hook):
    model = GPT(GPT_SHAPE)
    ddp = DistributedDataParallel(model, hook=hook)
    optimizer = torch.optim.AdamW(ddp.parameters(), 3e-3)
    batches, rank, ranks = Batches(8), dist.get_rank(), dist.get_world_size()
    losses = [train_step(ddp, optimizer, share(batches[n], rank, ranks)).item() for n in range(12)]
    return losses, next(model.parameters()).detach()


def test_without_any_exchange_the_loss_falls_all_the_same(worlds):
    """Why a falling loss proves nothing: the ledger and the weights do."""
    silent, true = (worlds(2).record(trained, hook) for hook in (no_hook, None))
    assert every(losses[-1] < losses[0] - 1 for losses, _ in silent.results)
    assert len(silent.where(op="all_reduce")) == 0 < len(true.where(op="all_reduce"))
    assert not torch.equal(silent.results[0][1], silent.results[1][1])
    assert torch.equal(true.results[0][1], true.results[1][1])


def local_and_averaged(alike):
    """A rank's own gradient beside the average, with batches shared or drawn alike."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model, batch = GPT(GPT_SHAPE), Batches(8)[0]
    x, y = share(batch, 0 if alike else rank, ranks)
    next_token_loss(model(x), y).backward()
    mine = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    ddp = DistributedDataParallel(model)
    next_token_loss(ddp(x), y).backward()
    return all(torch.allclose(a, p.grad, atol=1e-7) for a, p in zip(mine, model.parameters()))


def test_ranks_that_read_the_same_batch_are_found_by_their_gradients(worlds):
    assert worlds(2).run(local_and_averaged, True) == [True, True]
    assert worlds(2).run(local_and_averaged, False) == [False, False]
