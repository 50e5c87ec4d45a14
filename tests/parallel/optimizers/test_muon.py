"""Muon on parts equals the plain one, whichever rank computes; each shard alone does not."""

import pytest
import torch
import torch.distributed as dist
from torch.utils.flop_counter import FlopCounterMode

from lib.parallel.optimizers import ShardedMuon
from lib.parallel.optimizers.places import (
    Cut,
    Flat,
    Whole,
    places_of_fsdp,
    places_of_tensor_parallel,
)
from lib.parallel.sharded import FSDP
from lib.parallel.tensor import tensor_parallel, to_plain, vocab_parallel_cross_entropy
from lib.parallel.tensor.transform import placements
from lib.predict.optimizers.muon import flop_by_rank, of_muon, sent_numbers
from lib.predict.shape import GPTShape
from lib.single import GPT, next_token_loss, share
from lib.single.optimizers import AdamW, Muon, split_parameters
from lib.single.optimizers.muon import hidden_matrices, newton_schulz
from tests.every import every
from tests.parallel.optimizers.parts import cut_all, places_of, plain, predicted_parts, whole

SETS = {
    "rows": [((8, 6), 0), ((4, 12), 0), ((12, 4), 0), ((5, 7), None)],
    "columns": [((6, 8), 1), ((3, 4), 1), ((9, 4), 1)],
    "both": [((8, 6), 0), ((6, 8), 1), ((4, 4), 0), ((4, 4), 1), ((8, 12), 1)],
    "flat": [((5, 7), "flat"), ((6, 4), "flat"), ((9, 1), "flat"), ((3, 5), "flat")],
    "one": [((4, 8), 0)],  # fewer matrices than ranks
}
STEPS = 3
OPTIONS = {"lr": 0.1, "ns_dtype": None, "adjust_lr_fn": "match_rms_adamw"}
WAYS = {
    "gather": {"method": "gather"},
    "balanced": {"method": "distributed"},
    "round robin": {"method": "distributed", "rule": "round robin"},
}
every_way = pytest.mark.parametrize("way", WAYS)
every_set = pytest.mark.parametrize("name", SETS)


def on_parts(make, name, options, naive=False, dtype=torch.float64):
    """Step on this rank's parts; `naive` runs the plain Muon on each of them."""
    parts, rank, ranks = SETS[name], dist.get_rank(), dist.get_world_size()
    shapes = [shape for shape, _ in parts]
    weights = [
        torch.nn.Parameter(piece.to(dtype))
        for piece in cut_all(whole(shapes, -1), parts, rank, ranks)
    ]
    places = [] if naive else [dict(zip(weights, places_of(parts, rank, ranks)))]
    optimizer = make(weights, *places, **options)
    for step in range(STEPS):
        for weight, gradient in zip(weights, cut_all(whole(shapes, step), parts, rank, ranks)):
            weight.grad = gradient.to(dtype) if weight.numel() else None  # as FSDP leaves it
        optimizer.step()
    return [weight.detach() for weight in weights]


def expected_parts(name, options, ranks):
    values = plain(Muon, SETS[name], options, STEPS)
    return [cut_all(values, SETS[name], rank, ranks) for rank in range(ranks)]


def far(found, expected):
    """The largest relative distance of any part on any rank; an empty part has none."""
    distances = []
    for ours, theirs in zip(found, expected, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert a.shape == b.shape
            if a.numel():
                distances.append(((a - b).norm() / b.norm()).item())
    return max(distances)


@every_way
@every_set
def test_parts_are_those_of_the_plain_step(world, name, way):
    found = world.run(on_parts, ShardedMuon, name, OPTIONS | WAYS[way])
    assert far(found, expected_parts(name, OPTIONS, world.size)) < 1e-12


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", ["rows", "columns", "both"])
def test_newton_schulz_of_each_shard_alone_is_another_step(worlds, name, ranks):
    options = OPTIONS | {"adjust_lr_fn": None}
    found = worlds(ranks).run(on_parts, Muon, name, options, naive=True)
    assert far(found, expected_parts(name, options, ranks)) > 1e-2


def test_shards_alone_make_singular_values_too_large(worlds):
    """Four shards with values near 1 each: the whole has up to 2 = √4."""

    def joined():
        update = torch.ones(8, 6, dtype=torch.float64)
        update += 1e-3 * whole([(8, 6)], 0)[0]
        own = newton_schulz(update.chunk(4)[dist.get_rank()], steps=5)
        shards = [torch.empty_like(own) for _ in range(4)]
        dist.all_gather(shards, own)
        return torch.cat(shards), newton_schulz(update)

    alone, together = worlds(4).run(joined)[0]
    assert torch.linalg.svdvals(alone).max() > 1.3  # 2 · 0.68 at least
    assert torch.linalg.svdvals(together).max() < 1.25


# What is sent, and who computes.


@pytest.mark.parametrize("ns_dtype", [None, torch.bfloat16], ids=["8 bytes", "2 bytes"])
@every_way
@every_set
def test_a_step_sends_what_is_predicted(world, name, way, ns_dtype):
    ledger = world.record(on_parts, ShardedMuon, name, WAYS[way] | {"ns_dtype": ns_dtype})
    parts, size = predicted_parts(SETS[name], world.size), 2 if ns_dtype else 8
    flat = sum(cut == "flat" for _, cut in SETS[name])
    spans = [("all_gather", 16 * flat * world.size)] if flat else []  # when it is made
    for rank in range(world.size):
        calls = of_muon(parts, world.size, rank, size, **WAYS[way])
        rows = sorted(ledger.where(rank=rank, lane="comm"), key=lambda row: row.number)
        found = [(row.op, row.bytes) for row in rows]
        assert found == spans + [(call.op, call.bytes) for call in calls] * STEPS


def counted(name, options):
    with FlopCounterMode(display=False) as counter:
        on_parts(ShardedMuon, name, options)
    return counter.get_total_flops()


@every_way
@every_set
def test_each_rank_computes_what_is_predicted(world, name, way):
    flop = flop_by_rank(predicted_parts(SETS[name], world.size), world.size, **WAYS[way])
    assert world.run(counted, name, WAYS[way]) == [STEPS * one for one in flop]


def test_distributed_sends_half_on_four_ranks_and_computes_a_quarter():
    parts = [((64, 64), [1024] * 4)] * 8
    gathered = [sent_numbers(parts, 4, rank, method="gather") for rank in range(4)]
    spread = [sent_numbers(parts, 4, rank) for rank in range(4)]
    assert gathered == [3 * 8 * 1024] * 4 and spread == [3 * 4 * 1024] * 4
    whole_flop = flop_by_rank(parts, 4, "gather")[0]
    assert flop_by_rank(parts, 4) == [whole_flop // 4] * 4


def test_in_bf16_nothing_is_lost_on_the_way(worlds):
    """What travels is rounded as Newton-Schulz would round it: the plain step, nearly to the bit.

    Only nearly, because a product of bf16 may be added in another order in another process.
    """
    options = {"lr": 0.1}
    for way in WAYS.values():
        found = worlds(2).run(on_parts, ShardedMuon, "both", options | way)
        assert far(found, expected_parts("both", options, 2)) < 1e-3


# A GPT under FSDP and under tensor parallelism.

SHAPE = GPTShape(vocabulary=39, sequence=8, width=16, heads=4, layers=2, hidden=24, tied=True)


def gpt():
    """A GPT with an unused matrix and a frozen one."""
    model = GPT(SHAPE, seed=1).double()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.endswith("qkv.bias"))
    model.blocks["1"].mlp.up.weight.requires_grad_(False)
    model.blocks["1"].unused = torch.nn.Linear(4, 4, bias=False).double()
    torch.nn.init.ones_(model.blocks["1"].unused.weight)
    return model


def batch(step):
    generator = torch.Generator().manual_seed(3 + step)
    tokens = torch.randint(39, (8, 9), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def train(model, optimizers, loss, cut=lambda part: part):
    for step in range(STEPS):
        inputs, targets = (cut(part) for part in batch(step))
        model.zero_grad()
        loss(model(inputs), targets).backward()
        for optimizer in optimizers:
            optimizer.step()


def one_device():
    model = gpt()
    hidden, rest = split_parameters(model)
    optimizers = [Muon(hidden, 0.02, ns_dtype=None), AdamW(rest)]
    train(model, optimizers, next_token_loss)
    return {name: value.clone() for name, value in model.state_dict().items()}


def both(model, names, places, way):
    """Muon for the hidden matrices and AdamW for the rest, each on this rank's parts."""
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    hidden = [p for name, p in trained if name in names]
    rest = [p for name, p in trained if name not in names]
    muon = ShardedMuon(hidden, places, lr=0.02, ns_dtype=None, **way)
    return [muon, AdamW(rest)]


def fsdp(way):
    model = gpt()
    names = hidden_matrices(model)
    model = FSDP(model)
    optimizers = both(model, names, places_of_fsdp(model), way)
    train(model, optimizers, next_token_loss,
          lambda part: share(part, dist.get_rank(), dist.get_world_size()))  # fmt: skip
    return model.full_state_dict()


def tensor(way):
    model = gpt()
    names = hidden_matrices(model)
    tensor_parallel(model)
    optimizers = both(model, names, places_of_tensor_parallel(model, placements(model)), way)
    train(model, optimizers, vocab_parallel_cross_entropy)
    return to_plain(model)


@every_way
@pytest.mark.parametrize("method", [fsdp, tensor])
def test_a_gpt_gets_the_weights_of_one_device(world, method, way):
    expected = one_device()
    for found in world.run(method, WAYS[way]):
        assert found.keys() == expected.keys()
        assert max((found[n] - expected[n]).norm() / expected[n].norm().clamp(min=1e-30)
                   for n in expected) < 1e-9  # fmt: skip
        assert every(found["blocks.1.unused.weight"].flatten() == 1)


# Refusals.


def refused(place, options, first=0):
    weight = torch.nn.Parameter(torch.zeros(6))
    if isinstance(place, Flat):
        place = Flat(place.shape, first, first + 6)
    try:
        ShardedMuon([weight], {weight: place} if place else {}, **options)
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("place", "options", "words"),
    [
        (Flat((12,)), {}, "Muon updates matrices, but a parameter has the shape [12]"),
        (None, {}, "Muon updates matrices, but a parameter has the shape [6]"),
        (Flat((3, 4)), {"method": "ring"}, "No method is called 'ring'. Choose gather or"),
        (Flat((3, 4)), {"rule": "fair"}, "No rule is called 'fair'"),
        (Flat((3, 4)), {}, "one begins at 0, after one that ends at 6"),
        (Cut((3, 4), 0), {}, "Dim 0 has 3 entries; 2 ranks cannot share them equally"),
        (Whole((2, 3)), {"momentum": 1.0}, "momentum must be below 1"),
    ],
)
def test_what_cannot_be_is_refused_on_every_rank(worlds, place, options, words):
    assert every(words in said for said in worlds(2).run(refused, place, options))
