"""FSDP beside PyTorch's `fully_shard`, ZeRO-1 beside its ZeroRedundancyOptimizer."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer as Theirs
from torch.nn.parallel import DistributedDataParallel

from lib.parallel.sharded import FSDP, ShardedDataParallel, ZeroRedundancyOptimizer
from lib.parallel.sharded.units import find_units
from lib.single import share
from tests import bench_sharded as bench
from tests.every import every
from tests.parallel.sharded import models
from tests.parallel.sharded.steps import state_of


def adamw(parameters):
    return torch.optim.AdamW(parameters, 1e-2, weight_decay=0.1)


def units_of(model):
    """Return the blocks, without those that share weights: fully_shard refuses these."""
    units = list(find_units(model).values())
    return units[1:-1] if isinstance(model, models.Tied) else units


def ours(model, policy=None):
    dtypes = {"param_dtype": policy[0], "reduce_dtype": policy[1]} if policy else {}
    return FSDP(model, units=units_of(model), **dtypes)


def theirs(model, policy=None):
    options = {"mp_policy": MixedPrecisionPolicy(*policy)} if policy else {}
    for unit in units_of(model):
        fully_shard(unit, **options)
    return fully_shard(model, **options)


def ten_steps(kind, make, **options):
    torch.manual_seed(0)
    model = kind()
    wrapped = make(model, **options)
    wrapped, optimizer_of = wrapped if isinstance(wrapped, tuple) else (wrapped, adamw)
    optimizer, losses = optimizer_of(wrapped.parameters()), []
    for n in range(10):
        x, y = share(model.batch(n, torch.float32), dist.get_rank(), dist.get_world_size())
        optimizer.zero_grad()
        loss = model.loss(wrapped(x).float(), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    state = wrapped.state_dict()
    whole = {n: v.full_tensor() if hasattr(v, "full_tensor") else v for n, v in state.items()}
    return losses, {name: value.clone() for name, value in whole.items()}


# fully_shard takes neither frozen biases beside trained weights nor two dtypes in one unit.
KINDS = [models.Perceptron, models.Tokens, models.Tied, models.Recurrent, models.Images,
         models.Twice, models.Unused]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_ten_steps_are_fully_shards_bit_for_bit(worlds, kind):
    """On 2 ranks: a sum of two numbers is the same in any order."""
    mine, oracle = (worlds(2).run(ten_steps, kind, make) for make in (ours, theirs))
    for (losses, state), (their_losses, their_state) in zip(mine, oracle):
        assert losses == their_losses
        assert list(state) == list(their_state)
        assert every(torch.equal(state[name], their_state[name]) for name in state)


POLICIES = [
    (torch.bfloat16, torch.float32),
    (torch.bfloat16, torch.bfloat16),
    (torch.bfloat16, None),
    (torch.float32, torch.bfloat16),
    (torch.float16, torch.float32),
    (torch.float16, torch.float16),
]


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_mixed_precision_is_fully_shards_bit_for_bit(worlds, policy):
    mine, oracle = (
        worlds(2).run(ten_steps, models.Tokens, make, policy=policy) for make in (ours, theirs)
    )
    assert mine[0][0] == oracle[0][0]
    assert every(torch.equal(mine[0][1][name], value) for name, value in oracle[0][1].items())


def stage_2(model):
    """ZeRO-2, whose optimizer is made from the wrapped model."""
    wrapped = ShardedDataParallel(model, bucket_bytes=300)
    make = lambda _: ZeroRedundancyOptimizer(wrapped, torch.optim.AdamW, lr=1e-2, weight_decay=0.1)
    return wrapped, make


def kept_whole(model):
    """PyTorch's ZeRO-2: `fully_shard` whose weights stay whole from forward to backward."""
    for unit in units_of(model):
        fully_shard(unit, reshard_after_forward=False)
    return fully_shard(model, reshard_after_forward=False), adamw


@pytest.mark.parametrize("kind", [models.Perceptron, models.Tokens, models.Tied, models.Recurrent])
def test_zero2_is_fully_shard_without_resharding_bit_for_bit(worlds, kind):
    mine, oracle = (worlds(2).run(ten_steps, kind, make) for make in (stage_2, kept_whole))
    for (losses, state), (their_losses, their_state) in zip(mine, oracle):
        assert losses == their_losses and list(state) == list(their_state)
        assert every(torch.equal(state[name], their_state[name]) for name in state)


def ddp_with(kind, make):
    torch.manual_seed(0)
    model = kind()
    wrapped = DistributedDataParallel(model)
    optimizer, losses = make(model), []
    for n in range(10):
        x, y = share(model.batch(n, torch.float32), dist.get_rank(), dist.get_world_size())
        optimizer.zero_grad()
        loss = model.loss(wrapped(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, state_of(model)


def my_zero(model):
    return ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-2)


def their_zero(model):
    return Theirs(model.parameters(), torch.optim.AdamW, lr=1e-2)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("kind", [models.Tied, models.Recurrent, models.Images, models.Seven])
def test_ten_steps_are_pytorchs_zero_bit_for_bit(worlds, kind, ranks):
    mine, oracle = (worlds(ranks).run(ddp_with, kind, make) for make in (my_zero, their_zero))
    for (losses, state), (their_losses, their_state) in zip(mine, oracle):
        assert losses == their_losses
        assert every(torch.equal(state[name], their_state[name]) for name in state)


@pytest.mark.parametrize("ranks", [2, 4])
def test_no_rank_holds_more_than_with_pytorch(worlds, ranks):
    """Peak bytes of a whole step, after two others: what `make bench` measures too."""
    for build in (bench.fsdp, bench.zero1):
        peaks = [worlds(ranks).run(bench.peak, build, kind) for kind in ("ours", "theirs")]
        assert 0 < max(peaks[0]) <= max(peaks[1])
