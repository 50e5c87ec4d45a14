"""ZeRO-R's fused buffers: whole gradients take the predicted bytes, few in any depth."""

from unittest import mock

import pytest
import torch.distributed as dist

from lib.parallel.sharded import ShardedDataParallel
from lib.predict.shape import GPTShape
from lib.predict.sharded.zero_step import fused_buffer_bytes
from lib.single import GPT, Batches, next_token_loss, share

BUCKET = 20_000


def shape_of(layers, tied=False):
    return GPTShape(width=16, heads=2, layers=layers, sequence=16, tied=tied)


def held(shape, bucket_bytes):
    """The most bytes of whole gradients, filling or sent, whenever one has arrived."""
    spread = ShardedDataParallel(GPT(shape), bucket_bytes=bucket_bytes)
    kind, most = type(spread.flats[0]), 0
    take = kind.take

    def counted(bucket, n):
        nonlocal most
        take(bucket, n)
        buffers = [b for flat in spread.flats for b in (flat.whole, flat.sent) if b is not None]
        most = max(most, sum(buffer.nbytes for buffer in buffers))

    x, y = share(Batches(8, shape.sequence)[0], dist.get_rank(), dist.get_world_size())
    with mock.patch.object(kind, "take", counted):
        next_token_loss(spread(x), y).backward()
    return most


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("layers", [2, 4])
def test_whole_gradients_take_the_predicted_bytes(world, layers, tied):
    shape = shape_of(layers, tied)
    assert world.run(held, shape, BUCKET) == [fused_buffer_bytes(shape, world.size, BUCKET)] * (
        world.size
    )


def test_a_deeper_model_needs_no_more(worlds):
    """The bite: without a limit the one buffer grows with the model."""
    bounded = [fused_buffer_bytes(shape_of(layers), 4, BUCKET) for layers in (4, 8, 16, 64)]
    largest = max(p.numel for p in shape_of(4).parameters) * 4
    assert max(bounded) < 2 * (BUCKET + largest)  # where buckets end depends on the depth
    unbounded = [fused_buffer_bytes(shape_of(layers), 4, 10**12) for layers in (2, 4)]
    numels = [sum(p.numel for p in shape_of(layers).parameters) for layers in (2, 4)]
    assert unbounded == [4 * (-(-numel // 4) * 4) for numel in numels]
    assert worlds(2).run(held, shape_of(4), 10**12)[0] == fused_buffer_bytes(shape_of(4), 2, 10**12)
