"""Weights gathered in 8 bits on ranks: shards rounded with one scale are the rounded whole."""

import torch
import torch.distributed as dist

from lib.predict.precision.fp8 import matrix_bytes
from lib.single.precision.scaled import Scaled, scaled, scales_of

ROWS, COLUMNS = 16, 24


def full_weight():
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(ROWS, COLUMNS, generator=generator)
    return weight * torch.arange(1, ROWS + 1)[:, None]  # so the shards' maxima differ


def gathered(shared):
    """Each rank rounds its rows and gathers those of all: (the decoded weight, bytes, in order)."""
    rank, size = dist.get_rank(), dist.get_world_size()
    shard = full_weight().chunk(size)[rank]
    scale = scales_of(shard, "e4m3")
    if shared:
        dist.all_reduce(scale, dist.ReduceOp.MAX)
    own = scaled(shard, "e4m3", scale=scale)
    codes = torch.empty(ROWS, COLUMNS, dtype=torch.uint8, device=shard.device)
    dist.all_gather_into_tensor(codes, own.codes.view(torch.uint8))
    whole = Scaled(codes.view(torch.float8_e4m3fn), scale, (0, 0))
    return whole.decode().tolist(), codes.nbytes


def test_shards_with_the_scale_of_the_whole_are_the_rounded_whole(world):
    expected = scaled(full_weight(), "e4m3").decode()
    ledger = world.record(gathered, True)
    for found, nbytes in ledger.results:
        assert torch.equal(torch.tensor(found), expected)
        assert nbytes + 4 == matrix_bytes(ROWS, COLUMNS, "tensor", weight=True)
    calls = [(row.op, row.bytes) for row in ledger.where(rank=0, lane="comm")]
    assert calls == [("all_reduce", 4), ("all_gather", ROWS * COLUMNS)]


def test_shards_with_scales_of_their_own_are_not(worlds):
    """A bite: the gathered codes have several scales, and no rank knows the others'."""
    expected = scaled(full_weight(), "e4m3").decode()
    far = [
        (torch.tensor(found) - expected).abs().max() for found, _ in worlds(4).run(gathered, False)
    ]
    assert max(far) > 1
