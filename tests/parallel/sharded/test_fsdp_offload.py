"""FSDP whose shards lie in the host's memory: the same training, in two memories, to the byte."""

import sys

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

from lib.parallel.sharded import FSDP, hosted
from lib.predict.shape import MLPShape
from lib.predict.sharded.offload import HostSpeeds
from lib.predict.sharded.offloaded_fsdp import host_bytes, offloaded_fsdp_step
from lib.predict.sharded.units import units_of
from lib.ranks.host_lanes import HostLanes
from lib.ranks.memory import Memory
from lib.ranks.mesh import mesh
from lib.ranks.slow_motion import SlowMotion
from lib.single import MLP, share
from lib.single.host_memory import HostMemory
from tests.every import every
from tests.parallel.sharded import models, steps
from tests.parallel.sharded.steps import differences, plain, ruined, step
from tests.slow_steps import late, least_late


def adamw(parameters):
    return torch.optim.AdamW(parameters, 1e-2, weight_decay=0.1)


def offloaded(kind, options=None, make=adamw, count=3):
    return steps.fsdp(kind, count, {"offload": HostMemory(), **(options or {})}, make)


KINDS = [models.Perceptron, models.Tied, models.Recurrent, models.Twice, models.Frozen,
         models.Unused, models.Seven]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_spread_equals_whole(world, kind):
    found = differences(world.run(offloaded, kind), plain(kind, 3, adamw))
    assert max(found.values()) < 1e-9, found


OPTIONS = [{"prefetch": 0}, {"prefetch": 2}, {"reshard_after_forward": False},
           {"reshard_after_forward": 2}]  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_with_any_option_it_is_what_fsdp_computes(worlds, options):
    """To the bit: which memory holds a number changes no digit of it."""
    mine = worlds(4).run(offloaded, models.Twice, options)
    same(mine, worlds(4).run(steps.fsdp, models.Twice, 3, options, adamw))


def same(mine, others):
    for own, other in zip(mine, others, strict=True):
        for what in ("gradients", "weights"):
            pairs = [(value, other[what][name]) for name, value in own[what].items()]
            assert every(a is b is None or torch.equal(a, b) for a, b in pairs)


def replicated(host):
    return steps.fsdp(
        models.Tied, 2, {"group_or_mesh": mesh(replicate=2, shard=2), "offload": host}
    )


def test_hybrid_sharding_keeps_its_shards_there_too(worlds):
    same(worlds(4).run(replicated, HostMemory()), worlds(4).run(replicated, None))


def several(host):
    """Two backward passes for each step, whose gradients are both sent; then clipped."""
    model = ruined(models.Tied)
    spread = FSDP(model, offload=host)
    optimizer, norms = adamw(spread.parameters()), []
    for n in range(3):
        optimizer.zero_grad()
        for part in range(2):
            x, y = share(model.batch(2 * n + part), dist.get_rank(), dist.get_world_size())
            model.loss(spread(x), y).backward()
        norms.append(spread.clip_grad_norm_(0.1))
        optimizer.step()
    return {"gradients": spread.full_gradients(), "weights": spread.full_state_dict()}, norms


def test_gradients_add_up_and_their_norm_is_clipped(worlds):
    mine, others = (worlds(2).run(several, host) for host in (HostMemory(), None))
    same([found for found, _ in mine], [found for found, _ in others])
    assert mine[0][1] == others[0][1] and every(norm > 0.1 for norm in mine[0][1])


def saved(shards=None, whole=None):
    """Train two steps, from what was saved if there is anything; return what is kept then."""
    model = ruined(models.Tied)
    spread = FSDP(model, offload=HostMemory())
    optimizer = adamw(spread.parameters())
    if whole:
        spread.load_full_state_dict(whole)
    if shards:
        spread.load_sharded_state_dict(shards, optimizer)
    for n in (2, 3) if shards else (0, 1):
        batch = share(model.batch(n), dist.get_rank(), dist.get_world_size())
        step(spread, optimizer, batch, model.loss)
    return spread.sharded_state_dict(optimizer), spread.full_state_dict()


def test_its_states_are_loaded_by_other_numbers_of_ranks(worlds):
    shards = [own for own, _ in worlds(4).run(saved)]
    expected = plain(models.Tied, 4, adamw)["weights"]
    for _, weights in worlds(2).run(saved, shards):
        assert every(torch.allclose(weights[name], expected[name]) for name in expected)


def theirs(policy):
    model = models.Tokens()
    blocks = list(model.blocks.values())
    if policy:
        for block in blocks:
            fully_shard(block, offload_policy=CPUOffloadPolicy(pin_memory=False))
        spread = fully_shard(model, offload_policy=CPUOffloadPolicy(pin_memory=False))
    else:
        spread = FSDP(model, units=blocks, offload=HostMemory())
    optimizer = adamw(spread.parameters())
    for n in range(5):
        x, y = share(model.batch(n), dist.get_rank(), dist.get_world_size())
        optimizer.zero_grad()
        model.loss(spread(x), y).backward()
        optimizer.step()
    state = spread.state_dict()
    return {n: v.full_tensor() if hasattr(v, "full_tensor") else v for n, v in state.items()}


def test_it_is_fully_shards_cpu_offload_bit_for_bit(worlds):
    if torch.device(worlds(2).device).type != "cpu":
        pytest.skip("fully_shard gathers DTensors of the CPU over gloo only.")
    mine, oracle = (worlds(2).run(theirs, policy)[0] for policy in (False, True))
    assert every(torch.equal(mine[name], value) for name, value in oracle.items())


def not_fetched():
    with pytest.MonkeyPatch.context() as patch:
        take = hosted.HostShard.take
        patch.setattr(hosted.HostShard, "take", lambda own: torch.zeros_like(take(own)))
        return offloaded(models.Perceptron, count=1)


def test_without_the_way_up_it_is_wrong(worlds):
    found = differences(worlds(2).run(not_fetched), plain(models.Perceptron, 1, adamw))
    assert found["outputs"] > 1e-3


# --- two memories, and the link between them

SHAPE, BATCH = MLPShape((256,) * 7, bias=False), 256
SPEEDS = SlowMotion("H100", link="NVLink4", factor=1e5, alpha=1e-8, bandwidth=1.3e12)
HOST = HostSpeeds(1e-8, 6e11, 1.2e12)  # as fast as the device computes


def build(prefetch, make=torch.optim.SGD):
    kept = sys.modules["__main__"].__dict__
    kept["fsdp"] = FSDP(MLP(SHAPE), prefetch=prefetch, offload=HostMemory(HostLanes(HOST)))
    kept["optimizer"] = make(kept["fsdp"].parameters(), lr=1e-6)
    kept["batch"] = [torch.randn(BATCH, 256) for _ in range(2)]


def one_step():
    kept = sys.modules["__main__"].__dict__
    fsdp, optimizer, (x, gradient) = kept["fsdp"], kept["optimizer"], kept["batch"]
    optimizer.zero_grad()
    fsdp(x).backward(gradient)
    optimizer.step()


def held(prefetch, make):
    build(prefetch, make)
    kept = sys.modules["__main__"].__dict__
    one_step()
    with Memory(kept["fsdp"], kept["optimizer"]) as memory:
        one_step()
    most = max(row.bytes for row in memory.rows if row.op == "parameters")
    return most, memory.now, memory.host


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
@pytest.mark.parametrize("prefetch", [0, 1, 2])
def test_bytes_in_both_memories_are_as_predicted(world, prefetch, kind):
    make = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[kind]
    predicted = offloaded_fsdp_step(SHAPE, [BATCH] * world.size, SPEEDS, HOST, prefetch=prefetch)
    shown = [row.bytes for row in predicted.where(rank=0, lane="memory", op="parameters")]
    for rank, (most, now, host) in enumerate(world.run(held, prefetch, make)):
        assert most == max(shown)
        assert now["parameters"] == now["gradients"] == now["optimizer"] == 0
        assert host == host_bytes(units_of(SHAPE), world.size, rank, kind)


@pytest.mark.parametrize("prefetch", [0, 1])
def test_a_step_takes_the_predicted_time(worlds, prefetch):
    worlds(4, device="cpu").run(build, prefetch)
    ledger = least_late(worlds(4, device="cpu"), SPEEDS, one_step)
    predicted = offloaded_fsdp_step(SHAPE, [BATCH] * 4, SPEEDS, HOST, prefetch=prefetch)
    assert abs(ledger.makespan / predicted.makespan - 1) <= 0.05 + late(ledger)
    for op in ("to_device", "to_host"):
        mine, others = (one.where(rank=0, lane="comm", op=op) for one in (ledger, predicted))
        assert mine.column("bytes").tolist() == others.column("bytes").tolist()
