"""FSDP in mixed precision: where gradients are rounded, what is kept, and whether a step counts."""

import pytest
import torch
import torch.distributed as dist

from lib.parallel.sharded import FSDP
from lib.parallel.sharded.flat_parameters import first_divisor
from lib.predict.shape import GPTShape, MLPShape
from lib.predict.sharded.units import alive, units_of
from lib.ranks.memory import Memory
from lib.single import GPT, MLP, mean_squares, next_token_loss, share
from lib.single.precision.summing_order import in_turn
from tests.every import every

SHAPE = MLPShape((16, 32, 8), bias=False)
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


def model_and_batch():
    torch.manual_seed(0)
    draw = torch.Generator().manual_seed(0)
    return MLP(SHAPE), tuple(torch.randn(8, n, generator=draw) for n in (16, 8))


# Where gradients are rounded


def reduced(reduce_dtype):
    """The whole gradients after a backward in bf16."""
    model, batch = model_and_batch()
    x, y = share(batch, dist.get_rank(), dist.get_world_size())
    fsdp = FSDP(model, units=[], param_dtype=BF16, reduce_dtype=reduce_dtype)
    mean_squares(fsdp(x).float(), y).backward()
    return fsdp.full_gradients()


def on_one_device(ranks, reduce_dtype):
    """The same from plain gradients: cast, added in the order of gloo's ring, divided, as fp32."""
    model, batch = model_and_batch()
    model, rows = model.to(BF16), []
    for rank in range(ranks):
        x, y = share(batch, rank, ranks)
        model.zero_grad()
        mean_squares(model(x.to(BF16)).float(), y).backward()
        rows.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    x = torch.stack(rows).to(reduce_dtype)
    pieces = [
        in_turn(piece[[(rank - 1 - k) % ranks for k in range(ranks)]])
        for rank, piece in enumerate(x.chunk(ranks, 1))
    ]
    sizes = [p.numel() for p in model.parameters()]
    flat = torch.cat(pieces).div(ranks).float()
    return [part.view(p.shape) for part, p in zip(flat.split(sizes), model.parameters())]


@pytest.mark.parametrize("reduce_dtype", [BF16, FP32])
def test_gradients_are_summed_in_reduce_dtype_bit_for_bit(world, reduce_dtype):
    expected = on_one_device(world.size, reduce_dtype)
    for gradients in world.run(reduced, reduce_dtype):
        assert every(g.dtype == FP32 for g in gradients.values())
        assert every(map(torch.equal, gradients.values(), expected))


def test_a_sum_in_bf16_is_another_one(worlds):
    """The bite: the bits differ, and bf16 is several times further from the exact sum."""
    found = {kind: worlds(4).run(reduced, kind)[0] for kind in (BF16, FP32)}
    exact = on_one_device(4, torch.float64)
    off = {kind: sum((g - e).norm() for g, e in zip(found[kind].values(), exact)) for kind in found}
    assert off[BF16] > 10 * off[FP32]


# fp16: the sum may overflow where the mean does not


def overflowing(gradient, divided):
    """All ranks have the same gradient of one weight, and their sum is beyond fp16's 65,504."""
    model = torch.nn.Linear(1, 1, bias=False)
    fsdp = FSDP(model, units=[], param_dtype=FP16, reduce_dtype=FP16)
    if not divided:
        for flat in fsdp.flats():
            flat.divided = 1
    (fsdp(torch.ones(1, 1)) * gradient).sum().backward()
    return fsdp.full_gradients()["weight"].item()


@pytest.mark.parametrize(("ranks", "gradient"), [(2, 40_000.0), (4, 30_000.0)])
def test_a_mean_in_fp16_is_divided_before_it_overflows(worlds, ranks, gradient):
    assert worlds(ranks).run(overflowing, gradient, True) == pytest.approx([gradient] * ranks, 1e-3)
    assert worlds(ranks).run(overflowing, gradient, False) == [float("inf")] * ranks


def test_a_large_mean_overflows_all_the_same(worlds):
    """On 4 ranks the first divisor is 2, so that sums are still twice as large as means."""
    assert worlds(4).run(overflowing, 40_000.0, True) == [float("inf")] * 4


def test_the_first_divisor_is_near_the_root():
    assert [first_divisor(n) for n in (1, 2, 3, 4, 6, 8, 16, 64, 1024)] == [
        1, 2, 2, 2, 4, 4, 4, 8, 32]  # fmt: skip


# What is kept


GPT_SHAPE = GPTShape(width=16, heads=2, layers=3, sequence=16)


def held(options):
    """The largest bytes of parameters and of gradients in a step, and what is left after it."""
    model = GPT(GPT_SHAPE)
    fsdp = FSDP(model, units=list(model.blocks.values())[1:-1], **options)
    text = torch.randint(256, (2, 17), generator=torch.Generator().manual_seed(dist.get_rank()))
    for _ in range(2):
        fsdp.zero_grad()
        with Memory(fsdp) as memory:
            next_token_loss(fsdp(text[:, :-1]).float(), text[:, 1:]).backward()
    largest = {
        kind: max(row.bytes for row in memory.rows if row.op == kind)
        for kind in ("parameters", "gradients")
    }
    return largest, memory.now


@pytest.mark.parametrize("reduce_dtype", [FP32, BF16], ids=str)
@pytest.mark.parametrize("prefetch", [0, 1])
def test_whole_weights_take_two_bytes_and_shards_four(world, prefetch, reduce_dtype):
    options = {"prefetch": prefetch, "param_dtype": BF16, "reduce_dtype": reduce_dtype}
    units, n = units_of(GPT_SHAPE, ends=False), world.size
    shards = 4 * sum(unit.share(n) for unit in units)
    sizes = {"param_bytes": 2, "reduce_bytes": reduce_dtype.itemsize}
    states = list(alive(units, n, prefetch=prefetch, **sizes))
    for largest, now in world.run(held, options):
        assert largest["parameters"] == shards + max(state.whole for state in states)
        assert (now["parameters"], now["gradients"]) == (shards, shards)
        assert largest["gradients"] == max(shards, *(state.gradients for state in states))


# Whether a step counts


def one_infinity(ask):
    """One gradient of one weight is infinite: who sees it in its shard, and who knows of it?"""
    model, batch = model_and_batch()
    x, y = share(batch, dist.get_rank(), dist.get_world_size())
    fsdp = FSDP(model, units=[])
    loss = mean_squares(fsdp(x), y)
    whole = model.get_parameter(next(name for name, _ in model.named_parameters()))
    poison = torch.zeros_like(whole)
    poison[0, 0] = float("inf")
    (loss + (whole * poison).nansum()).backward()
    gradients = [p.grad for p in fsdp.parameters() if p.grad is not None]
    own = torch.tensor(float(any(not g.isfinite().all() for g in gradients)))
    return (fsdp.found_anywhere(own) if ask else own).item()


@pytest.mark.parametrize("ranks", [2, 4])
def test_an_infinity_in_one_shard_is_known_to_all(worlds, ranks):
    assert worlds(ranks).run(one_infinity, True) == [1.0] * ranks
    assert worlds(ranks).run(one_infinity, False) == [1.0] + [0.0] * (ranks - 1)
