"""What chapter 3 says of the bytes that DDP and `fully_shard` send in mixed precision."""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from lib.course.fsdp import lessons
from lib.predict.shape import GPTShape
from lib.single import GPT, Batches, next_token_loss, share
from tests.course.stored_chapter import stored_chapter, text_of

SHAPE = GPTShape(width=16, layers=2, heads=2, sequence=16)
BATCH = Batches(8, sequence=16)[0]


def sharded(model):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks.values():
        fully_shard(block, mp_policy=policy)
    return fully_shard(model, mp_policy=policy)


def one_step(wrap, autocast):
    """Run forward and backward of a wrapped model in bfloat16."""
    model = wrap(GPT(SHAPE))
    x, y = share(BATCH, dist.get_rank(), dist.get_world_size())
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = next_token_loss(model(x), y)
    loss.backward()


def test_ddp_with_autocast_sends_as_much_as_fully_shard_in_bfloat16(worlds):
    world = worlds(4)
    ddp = world.record(partial(one_step, DistributedDataParallel, True))
    fsdp = world.record(partial(one_step, sharded, False))
    numbers = sum(p.numel() for p in GPT(SHAPE).parameters())
    reduced = sum(row.bytes for row in ddp.where(rank=0, lane="comm", op="all_reduce"))
    assert reduced == 4 * numbers, "the gradients are float32"
    assert lessons.sent(fsdp) == pytest.approx(3 / 4 * 8 * numbers, rel=0.01)
    assert 2 * 3 / 4 * reduced == pytest.approx(lessons.sent(fsdp), rel=0.01)
    text = text_of(stored_chapter("03-fsdp"))
    assert "DDP with autocast, whose gradients are float32, sends as much: 2 × 4." in text
    assert "the model fits (at equal precision DDP sends less)" in text
