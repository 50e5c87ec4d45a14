"""Predicted buckets equal those that PyTorch's own function makes, and those of a real step."""

import random

import pytest
import torch
import torch.distributed as dist

from lib.parallel.data.ddp import DistributedDataParallel
from lib.predict.data.buckets import CAP, FIRST, assign, construction, exchanges, limits_of
from lib.predict.shape import GPTShape, MLPShape
from lib.single import GPT, MLP, Batches, mean_squares, next_token_loss, share


@pytest.mark.parametrize("limits", [[100], [40, 400], [1], [10**9]])
@pytest.mark.parametrize("seed", range(4))
def test_one_type_of_number_is_put_as_pytorch_puts_it(limits, seed):
    draw = random.Random(seed)
    tensors = [torch.empty(draw.randint(1, 60)) for _ in range(25)]
    theirs, _ = dist._compute_bucket_assignment_by_size(tensors, limits)
    assert assign([t.nbytes for t in tensors], limits) == theirs


def test_types_are_not_mixed_and_who_is_full_first_comes_first():
    kinds = "aabaab"
    assert assign([4] * 6, [8], kinds) == [[0, 1], [3, 4], [2, 5]]
    assert assign([4] * 6, [100], kinds) == [[0, 1, 3, 4], [2, 5]]
    assert assign([4, 4, 4], [4, 8]) == [[0], [1, 2]]
    assert assign([], [4]) == []


def test_limits():
    assert limits_of(None) == (FIRST, CAP) == (2**20, 25 * 2**20)
    assert limits_of(100) == (100,)
    with pytest.raises(ValueError, match="bucket_bytes must be at least 1, not 0"):
        limits_of(0)


def three_steps(shape, bucket_bytes):
    """Build on every rank and take three steps, without changing a weight."""
    gpt = isinstance(shape, GPTShape)
    model = DistributedDataParallel((GPT if gpt else MLP)(shape), bucket_bytes=bucket_bytes)
    for n in range(3):
        batch = Batches(8, shape.sequence)[n] if gpt else (torch.ones(8, 6), torch.ones(8, 4))
        x, y = share(batch, dist.get_rank(), dist.get_world_size())
        (next_token_loss if gpt else mean_squares)(model(x), y).backward()


@pytest.mark.parametrize("bucket_bytes", [None, 20_000, 1])
@pytest.mark.parametrize(
    "shape",
    [GPTShape(width=32, layers=2), GPTShape(width=32, layers=2, tied=True), MLPShape((6, 99, 4))],
    ids=["gpt", "tied", "mlp"],
)
def test_the_ledger_holds_these_exchanges_and_no_others(world, shape, bucket_bytes):
    ledger = world.record(three_steps, shape, bucket_bytes)
    predicted = construction(shape, world.size)
    for step in range(3):
        predicted += exchanges(shape, step, bucket_bytes)
    for rank in range(world.size):
        rows = sorted(ledger.where(rank=rank, lane="comm"), key=lambda row: row.number)
        assert [(row.op, row.bytes) for row in rows] == predicted
