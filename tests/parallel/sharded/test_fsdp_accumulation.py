"""Gradients of several backwards that send none: in which dtype they are added up."""

import pytest
import torch
import torch.distributed as dist

from lib.parallel.sharded import FSDP
from lib.predict.shape import MLPShape
from lib.single import MLP, mean_squares, share
from tests.every import every

BF16, FP32 = torch.bfloat16, torch.float32
PARTS = 4


def model_and_batches(rank, ranks):
    torch.manual_seed(0)
    draw = torch.Generator().manual_seed(0)
    model = MLP(MLPShape((16, 32, 8), bias=False))
    batches = [tuple(torch.randn(8, n, generator=draw) for n in (16, 8)) for _ in range(PARTS)]
    return model, [share(batch, rank, ranks) for batch in batches]


def accumulated(reduce_dtype):
    """The whole gradients after three backwards that send none and one that does."""
    model, batches = model_and_batches(dist.get_rank(), dist.get_world_size())
    fsdp = FSDP(model, units=[], param_dtype=BF16, reduce_dtype=reduce_dtype)
    for n, (x, y) in enumerate(batches):
        if n < PARTS - 1:
            with fsdp.no_sync():
                mean_squares(fsdp(x).float(), y).backward()
        else:
            mean_squares(fsdp(x).float(), y).backward()
    return fsdp.full_gradients()


def on_one_device(ranks, reduce_dtype):
    """The same from plain bf16 gradients, added up in `reduce_dtype` on each rank and then over two
    ranks."""
    sums = []
    for rank in range(ranks):
        model, batches = model_and_batches(rank, ranks)
        model, total = model.to(BF16), 0
        for x, y in batches:
            model.zero_grad()
            mean_squares(model(x.to(BF16)).float(), y).backward()
            total = total + torch.cat([p.grad.flatten() for p in model.parameters()]).to(
                reduce_dtype
            )
        sums.append(total)
    mean = (sum(sums[1:], sums[0]) / ranks).float()
    sizes = [p.numel() for p in model.parameters()]
    return [part.view(p.shape) for part, p in zip(mean.split(sizes), model.parameters())]


@pytest.mark.parametrize("reduce_dtype", [BF16, FP32], ids=str)
@pytest.mark.parametrize("ranks", [1, 2])
def test_gradients_are_added_up_in_reduce_dtype_bit_for_bit(worlds, ranks, reduce_dtype):
    expected = on_one_device(ranks, reduce_dtype)
    for gradients in worlds(ranks).run(accumulated, reduce_dtype):
        assert every(map(torch.equal, gradients.values(), expected))


def test_sums_in_bf16_are_others():
    """The bite: the two dtypes that the test above has give different gradients."""
    both = zip(on_one_device(2, BF16), on_one_device(2, FP32))
    assert every(not torch.equal(a, b) for a, b in both)
