"""Sparse gradients in data parallel: equal to dense ones, counted, and refused in words."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from lib.parallel.data import sparse as exchange
from lib.parallel.data.ddp import DistributedDataParallel
from lib.predict.data import sparse
from lib.ranks import RankError
from tests.every import every

ROWS, WIDTH = 40, 6


class Words(nn.Module):
    """A table of word vectors below a linear layer."""

    def __init__(self, is_sparse=True, dtype=torch.float64):
        super().__init__()
        self.table = nn.Embedding(ROWS, WIDTH, sparse=is_sparse, dtype=dtype)
        self.head = nn.Linear(WIDTH, 2, dtype=dtype)

    def forward(self, words):
        return self.head(self.table(words))


def words(rank, step):
    """Different numbers of different words on every rank, some of them twice."""
    draw = torch.Generator("cpu").manual_seed(50 * step + rank)
    return torch.randint(0, ROWS, (4 + 3 * rank,), generator=draw, device="cpu")


def build(is_sparse=True, dtype=torch.float64):
    torch.manual_seed(0)
    return Words(is_sparse, dtype)


def steps(is_sparse=True, count=3, dtype=torch.float64):
    """Gradients of the table in each step, and the weights at the end."""
    model = build(is_sparse, dtype)
    ddp, seen = DistributedDataParallel(model), []
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    for step in range(count):
        optimizer.zero_grad()
        ddp(words(dist.get_rank(), step).to(model.head.weight.device)).square().mean().backward()
        grad = model.table.weight.grad
        assert grad.is_sparse == is_sparse and (not is_sparse or grad.is_coalesced())
        seen.append(grad.to_dense().clone())
        optimizer.step()
    return seen, [p.detach().clone() for p in model.parameters()]


def whole(ranks, count=3):
    """The same on one device, with dense gradients: the mean of the ranks' losses."""
    model, seen = build(False), []
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    for step in range(count):
        optimizer.zero_grad()
        losses = [model(words(rank, step)).square().mean() for rank in range(ranks)]
        (sum(losses) / ranks).backward()
        seen.append(model.table.weight.grad.clone())
        optimizer.step()
    return seen, [p.detach().clone() for p in model.parameters()]


def test_spread_equals_whole(world):
    gradients, weights = whole(world.size)
    for seen, ended in world.run(steps):
        for a, b in zip([*seen, *ended], [*gradients, *weights], strict=True):
            torch.testing.assert_close(a.cpu(), b, rtol=1e-12, atol=1e-14)


def test_sparse_equals_dense(worlds):
    for dtype, close in ((torch.float32, 1e-5), (torch.bfloat16, 0.05)):
        ours, dense = (worlds(2).run(steps, kind, 1, dtype)[0][0][0] for kind in (True, False))
        torch.testing.assert_close(ours, dense, rtol=close, atol=close)


def test_the_ledger_equals_the_prediction(world):
    ledger = world.record(steps)
    expected = []
    for step in range(3):
        counts = [len(words(rank, step).unique()) for rank in range(world.size)]
        expected += sparse.gathered_rows(counts, WIDTH, itemsize=8)
    for rank in range(world.size):
        rows = list(ledger.where(rank=rank, lane="comm", op="all_gather"))
        own = [(row.op, row.bytes) for row in rows][-len(expected) :]
        assert own == expected
        sums = ledger.where(rank=rank, lane="comm", op="all_reduce")
        assert set(sums.column("bytes").tolist()) == {(WIDTH * 2 + 2) * 8}  # the head, dense


def test_rows_that_are_not_gathered_are_noticed(worlds):
    """The bite: with the second all_gather left out, each rank keeps its own rows."""
    answers = worlds(2).run(forgetful_step)
    assert not torch.equal(*(seen.cpu() for seen in answers))


def forgetful_step():
    wait = exchange.SparseSum.wait
    exchange.SparseSum.wait = lambda self: self.work.wait()
    try:
        model = build()
        DistributedDataParallel(model)(words(dist.get_rank(), 0)).square().mean().backward()
        return model.table.weight.grad.to_dense()
    finally:
        exchange.SparseSum.wait = wait


def odd_ranks_only():
    """A table of which even ranks use no row."""
    model = build()
    ddp = DistributedDataParallel(model)
    own = words(dist.get_rank(), 0) if dist.get_rank() % 2 else torch.zeros(0, dtype=torch.long)
    ddp(own).square().sum().backward()
    return model.table.weight.grad.to_dense()


def test_a_rank_may_have_no_rows(worlds):
    model = build(False)
    losses = [model(words(rank, 0)).square().sum() for rank in (1, 3)]
    (sum(losses) / 4).backward()
    for seen in worlds(4).run(odd_ranks_only):
        torch.testing.assert_close(seen.cpu(), model.table.weight.grad, rtol=1e-12, atol=1e-14)


def in_order():
    own = torch.sparse_coo_tensor([[2, 0, 2]], torch.ones(3, 4), (5, 4))
    bucket = type("Bucket", (), {"flat": own})()
    exchange.SparseSum(bucket).wait()
    return bucket.flat.is_coalesced(), bucket.flat.to_dense()[:, 0]


def test_a_row_that_occurs_twice_is_sent_once(worlds):
    ledger = worlds(2).record(in_order)
    assert every(
        is_coalesced and column.tolist() == [2, 0, 4, 0, 0]
        for is_coalesced, column in ledger.results
    )
    gathered = ledger.where(rank=0, lane="comm", op="all_gather").column("bytes").tolist()
    assert gathered == [call.bytes for call in sparse.gathered_rows([2, 2], 4)]


def huge():
    own = torch.sparse_coo_tensor([[0]], torch.ones(1, 1), (2**31, 1))
    exchange.SparseSum(type("Bucket", (), {"flat": own})())


def test_a_table_with_too_many_rows_is_refused(worlds):
    with pytest.raises(RankError, match="2,147,483,648 rows, but an index of 4 bytes counts to"):
        worlds(2).run(huge)
