"""A GPT under FSDP and under tensor parallelism, trained by Adafactor and SM3 as on one device."""

import pytest
import torch
import torch.distributed as dist

from lib.parallel.optimizers import ShardedAdafactor, ShardedSM3
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
from lib.predict.optimizers.traffic import of_adafactor
from lib.predict.shape import GPTShape
from lib.single import GPT, next_token_loss, share
from lib.single.optimizers import SM3, Adafactor
from tests.every import every

SHAPE = GPTShape(vocabulary=39, sequence=8, width=16, heads=4, layers=2, hidden=24, tied=True)
GROUPED = GPTShape(vocabulary=40, sequence=8, width=16, heads=4, layers=1, kv_heads=2)
STEPS = 3
KINDS = {"adafactor": (Adafactor, ShardedAdafactor), "sm3": (SM3, ShardedSM3)}


def gpt(shape=SHAPE):
    """A GPT without keys' biases, which rounding alone moves, and with an unused parameter."""
    model = GPT(shape, seed=1).double()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.endswith("qkv.bias"))
    model.unused = torch.nn.Parameter(torch.ones(3, 2, dtype=torch.float64))
    return model


def batch(step):
    generator = torch.Generator().manual_seed(3 + step)
    tokens = torch.randint(39, (8, 9), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def train(model, optimizer, loss, cut=lambda part: part):
    for step in range(STEPS):
        inputs, targets = (cut(part) for part in batch(step))
        optimizer.zero_grad()
        loss(model(inputs), targets).backward()
        optimizer.step()


def plain(kind):
    model = gpt()
    train(model, KINDS[kind][0](model.parameters()), next_token_loss)
    return {name: value.clone() for name, value in model.state_dict().items()}


def fsdp(kind):
    model = FSDP(gpt())
    optimizer = KINDS[kind][1](model.parameters(), places_of_fsdp(model))
    train(model, optimizer, next_token_loss,
          lambda part: share(part, dist.get_rank(), dist.get_world_size()))  # fmt: skip
    return model.full_state_dict()


def fsdp_naive(kind):
    model = FSDP(gpt())
    train(model, KINDS[kind][0](model.parameters()), next_token_loss,
          lambda part: share(part, dist.get_rank(), dist.get_world_size()))  # fmt: skip
    return model.full_state_dict()


def tensor(kind):
    model = tensor_parallel(gpt())
    places = places_of_tensor_parallel(model, placements(model))
    train(model, KINDS[kind][1](model.parameters(), places), vocab_parallel_cross_entropy)
    return to_plain(model)


def tensor_naive(kind):
    model = tensor_parallel(gpt())
    train(model, KINDS[kind][0](model.parameters()), vocab_parallel_cross_entropy)
    return to_plain(model)


def far(found, expected):
    assert found.keys() == expected.keys()
    pairs = [(found[name], expected[name]) for name in expected]
    return max(((a - b).norm() / b.norm().clamp(min=1e-30)).item() for a, b in pairs)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", [fsdp, tensor])
def test_weights_are_those_of_one_device(world, method, kind):
    expected = plain(kind)
    for found in world.run(method, kind):
        assert far(found, expected) < 1e-10
        assert torch.equal(found["unused"], torch.ones(3, 2, dtype=torch.float64))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", [fsdp_naive, tensor_naive])
def test_the_plain_optimizer_on_shards_is_another_step(worlds, method, kind):
    assert far(worlds(2).run(method, kind)[0], plain(kind)) > 1e-4


def kinds_of_places():
    model = tensor_parallel(gpt())
    places = places_of_tensor_parallel(model, placements(model))
    named = {name: places[p] for name, p in model.named_parameters()}
    return {name: (type(place), place.shape, getattr(place, "dim", None))
            for name, place in named.items()}  # fmt: skip


def test_places_of_a_tensor_parallel_model(worlds):
    found = worlds(2).run(kinds_of_places)[0]
    whole = {name: tuple(p.shape) for name, p in gpt().named_parameters()}
    assert {name: shape for name, (_, shape, _) in found.items()} == whole
    block = "blocks.1."
    assert found[block + "mlp.up.weight"] == (Cut, (24, 16), 0)
    assert found[block + "mlp.down.weight"] == (Cut, (16, 24), 1)
    assert found[block + "attention.qkv.weight"] == (Cut, (48, 16), 0)
    assert found[block + "norm1.weight"][0] is Whole
    assert found["blocks.0.tokens.weight"] == (Cut, (39, 16), 0)  # of 40 rows with the padding


def shared_keys():
    model = tensor_parallel(gpt(GROUPED))
    try:
        places_of_tensor_parallel(model, placements(model))
    except ValueError as error:
        return str(error)
    return ""


def test_keys_that_ranks_share_are_refused(worlds):
    assert (
        "2 ranks have the same keys and values of blocks.1.attention.qkv.weight"
        in worlds(4).run(shared_keys)[0]
    )


def test_fsdp_sends_what_is_predicted(worlds):
    ledger = worlds(2).record(fsdp, "adafactor")
    trained = [(tuple(p.shape), "flat") for name, p in gpt().named_parameters()
               if p.requires_grad and name != "unused"]  # fmt: skip
    flags, sums, updates = (exchange.bytes for exchange in of_adafactor(trained, 2, 8))
    calls = [flags + 1, sums, updates]  # the unused parameter is asked for, and then left out
    rows = sorted(ledger.where(rank=0, lane="comm"), key=lambda row: row.number)
    found = [row.bytes for row in rows if row.op == "all_reduce"]
    assert found == calls * STEPS


def again(kind, break_at=None):
    """Train under FSDP; at a step go on with a new optimizer, which loads this rank's state."""
    model = FSDP(gpt())
    make = lambda: KINDS[kind][1](model.parameters(), places_of_fsdp(model))
    optimizer = make()
    for step in range(STEPS):
        if step == break_at:
            saved, optimizer = optimizer.state_dict(), make()
            optimizer.load_state_dict(saved)
        inputs, targets = (
            share(part, dist.get_rank(), dist.get_world_size()) for part in batch(step)
        )
        optimizer.zero_grad()
        next_token_loss(model(inputs), targets).backward()
        optimizer.step()
    try:
        model.sharded_state_dict(optimizer)
    except ValueError as error:
        return model.full_state_dict(), str(error)
    return model.full_state_dict(), ""


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_go_on_from_their_own_states_and_others_are_refused(worlds, kind):
    (found, refusal), (expected, _) = (worlds(2).run(again, kind, at)[0] for at in (2, None))
    assert all_equal(found, expected)
    assert "cannot be cut for other ranks" in refusal


def all_equal(found, expected):
    return every(torch.equal(found[name], value) for name, value in expected.items())


def flat_shapes():
    model = FSDP(gpt())
    return [place.shape for place in places_of_fsdp(model).values() if isinstance(place, Flat)]


def test_every_parameter_of_fsdp_has_a_flat_place(worlds):
    shapes = sorted(tuple(p.shape) for p in gpt().parameters())
    assert sorted(worlds(2).run(flat_shapes)[0]) == shapes
