"""8-bit Adam on parts equals the plain one to the bit; parts that cut blocks alone do not."""

import pytest
import torch
import torch.distributed as dist

from lib.parallel.optimizers import ShardedAdam8bit
from lib.parallel.optimizers.places import Cut, places_of_fsdp
from lib.parallel.sharded import FSDP
from lib.predict.optimizers.adam_8bit import cut_blocks, kept_bytes, of_adam_8bit
from lib.predict.shape import GPTShape
from lib.single import GPT, next_token_loss, share
from lib.single.optimizers import Adam8bit
from tests.every import every
from tests.parallel.optimizers.parts import cut_all, places_of, predicted_parts, whole

SETS = {
    "whole blocks": [((16, 8), 0), ((64,), 0), ((3, 64), 1), ((5, 7), None)],
    "cut rows": [((12, 5), 0), ((20,), 0), ((4, 3), 0)],
    "flat": [((5, 7), "flat"), ((23,), "flat"), ((6, 4), "flat"), ((9, 1), "flat")],
    "within a block": [((2, 5), "flat"), ((8,), 0)],  # four ranks share one block
}
OPTIONS = {"lr": 0.05, "block": 16, "smallest": 0, "weight_decay": 0.1}
STEPS = 4


def values(name, step):
    return [value.float() for value in whole([shape for shape, _ in SETS[name]], step)]


def plain(name, options):
    weights = [torch.nn.Parameter(value) for value in values(name, -1)]
    optimizer = Adam8bit(weights, **options)
    for step in range(STEPS):
        for weight, gradient in zip(weights, values(name, step)):
            weight.grad = gradient
        optimizer.step()
    return [weight.detach() for weight in weights]


def on_parts(name, options, naive=False):
    """Step on this rank's parts; return them, and the bytes of the states."""
    parts, rank, ranks = SETS[name], dist.get_rank(), dist.get_world_size()
    pieces = cut_all(values(name, -1), parts, rank, ranks)
    weights = [torch.nn.Parameter(piece) for piece in pieces]
    places = dict(zip(weights, places_of(parts, rank, ranks)))
    if naive:
        optimizer = Adam8bit(weights, **options)
    else:
        optimizer = ShardedAdam8bit(weights, places, **options)
    for step in range(STEPS):
        for weight, gradient in zip(weights, cut_all(values(name, step), parts, rank, ranks)):
            weight.grad = gradient if weight.numel() else None  # as FSDP leaves it
        optimizer.step()
    kept = sum(t.nbytes for state in optimizer.state.values() for t in state.values())
    return [weight.detach() for weight in weights], kept


def equal(found, name, options):
    """Whether the parts of all ranks are those of the plain weights, to the bit."""
    expected = plain(name, options)
    return [
        all(torch.equal(a, b)
            for a, b in zip(ours, cut_all(expected, SETS[name], rank, len(found)), strict=True))
        for rank, (ours, _) in enumerate(found)
    ]  # fmt: skip


@pytest.mark.parametrize("more", [{}, {"smallest": 30}, {"block": None, "smallest": 40},
                                  {"kind": "linear"}], ids=str)  # fmt: skip
@pytest.mark.parametrize("name", SETS)
def test_parts_are_those_of_the_plain_step_to_the_bit(world, name, more):
    if name == "whole blocks" and "block" in more:
        more = {"block": 8}  # columns refuse one maximum for all
    options = OPTIONS | more
    found = world.run(on_parts, name, options)
    assert equal(found, name, options) == [True] * world.size


@pytest.mark.parametrize("ranks", [2, 4])
def test_parts_of_whole_blocks_need_nothing_else(worlds, ranks):
    found = worlds(ranks).run(on_parts, "whole blocks", OPTIONS, naive=True)
    assert equal(found, "whole blocks", OPTIONS) == [True] * ranks


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", ["cut rows", "flat"])
def test_parts_that_cut_blocks_have_other_maxima(worlds, name, ranks):
    """A part alone begins its first block where it begins, and so its codes are others."""
    found = worlds(ranks).run(on_parts, name, OPTIONS, naive=True)
    assert False in equal(found, name, OPTIONS)


@pytest.mark.parametrize("smallest", [0, 24])
@pytest.mark.parametrize("name", SETS)
def test_bytes_kept_and_sent_are_as_predicted(world, name, smallest):
    options = {"block": 16, "smallest": smallest}
    ledger = world.record(on_parts, name, OPTIONS | options)
    parts = predicted_parts(SETS[name], world.size)
    flat = sum(cut == "flat" for _, cut in SETS[name])
    spans = [("all_gather", 16 * flat * world.size)] if flat else []  # when it is made
    calls = [(call.op, call.bytes) for call in of_adam_8bit(parts, world.size, **options)]
    for rank, (_, kept) in enumerate(ledger.results):
        assert kept == kept_bytes(parts, rank, **options)
        rows = sorted(ledger.where(rank=rank, lane="comm"), key=lambda row: row.number)
        assert [(row.op, row.bytes) for row in rows] == spans + calls * STEPS


def test_cut_blocks_by_hand():
    assert cut_blocks([16, 16, 32], 16) == []
    assert cut_blocks([10, 10, 30, 0, 14], 16) == [0, 1, 3]
    assert cut_blocks([5, 5, 5], 16) == [0]
    assert cut_blocks([0, 40, 0], 16) == []


# A GPT under FSDP, with the defaults.

SHAPE = GPTShape(vocabulary=39, sequence=8, width=32, heads=4, layers=2, hidden=70)


def batch(step):
    generator = torch.Generator().manual_seed(3 + step)
    tokens = torch.randint(39, (8, 9), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def train(model, optimizer, rank=0, ranks=1):
    for step in range(3):
        inputs, targets = (share(part, rank, ranks) for part in batch(step))
        optimizer.zero_grad()
        next_token_loss(model(inputs), targets).backward()
        optimizer.step()


def one_device():
    model = GPT(SHAPE).double()
    train(model, Adam8bit(model.parameters(), smallest=1000))
    return {name: value.clone() for name, value in model.state_dict().items()}


def fsdp():
    model = FSDP(GPT(SHAPE).double())
    optimizer = ShardedAdam8bit(model.parameters(), places_of_fsdp(model), smallest=1000)
    train(model, optimizer, dist.get_rank(), dist.get_world_size())
    return model.full_state_dict()


def test_a_gpt_under_fsdp_gets_the_weights_of_one_device(world):
    """Gradients are sums in another order, so a code may be the next one: hence not to the bit."""
    expected = one_device()
    for found in world.run(fsdp):
        for name, value in expected.items():
            assert (found[name] - value).norm() < 1e-4 * value.norm().clamp(min=1e-2), name


def refused():
    weight = torch.nn.Parameter(torch.zeros(3, 20))
    try:
        ShardedAdam8bit([weight], {weight: Cut((3, 40), 1)}, block=16, smallest=0)
    except ValueError as error:
        return str(error)
    return ""


def test_columns_that_cut_every_row_are_refused(worlds):
    said = worlds(2).run(refused)
    assert every("each rank has 20 numbers in a row of it" in text for text in said)
    assert every("Choose a block that divides 20." in text for text in said)
