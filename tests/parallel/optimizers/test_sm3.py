"""SM3 on parts is the plain one to the bit; with maxima of each shard alone it is not."""

import pytest
import torch

from lib.parallel.optimizers import ShardedSM3
from lib.parallel.optimizers.places import Flat
from lib.predict.optimizers.traffic import of_sm3
from lib.single.optimizers import SM3
from tests.every import every
from tests.parallel.optimizers.parts import SETS, STEPS, expected_parts, on_parts

OPTIONS = {
    "II": {},
    "I": {"version": "I"},
    "II without momentum": {"momentum": 0.0},
    "I without momentum": {"version": "I", "momentum": 0.0},
}


def same(found, expected):
    pairs = [pair for own, theirs in zip(found, expected, strict=True) for pair in zip(own, theirs)]
    return every(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=list(OPTIONS))
@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_parts_are_those_of_the_plain_step_to_the_bit(worlds, ranks, name, options):
    """On the CPU, where the plain step is too: a GPU may round a root otherwise."""
    found = worlds(ranks, device="cpu").run(on_parts, ShardedSM3, name, options)
    assert same(found, expected_parts(SM3, name, options, ranks))


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", ["rows", "columns"])
def test_maxima_of_each_shard_alone_are_another_step(worlds, name, ranks):
    found = worlds(ranks).run(on_parts, SM3, name, {}, naive=True)
    assert not same(found, expected_parts(SM3, name, {}, ranks))


@pytest.mark.parametrize("name", SETS)
def test_a_step_sends_what_is_predicted(world, name):
    ledger = world.record(on_parts, ShardedSM3, name, {})
    calls = [(exchange.op, exchange.bytes) for exchange in of_sm3(SETS[name], world.size, 8)]
    assert len(calls) == 2
    for rank in range(world.size):
        rows = sorted(ledger.where(rank=rank, lane="comm"), key=lambda row: row.number)
        assert [(row.op, row.bytes) for row in rows] == calls * STEPS


def test_bytes_by_hand():
    sizes = {0: 4, 1: 6, "flat": 10}
    for cut, maxima in sizes.items():
        found = of_sm3([((6, 4), cut), ((6,), 0)], 2)
        assert [exchange.bytes for exchange in found] == [2, 4 * maxima]
    assert [exchange.bytes for exchange in of_sm3([((6,), 0)], 2)] == [1]


def test_a_flat_piece_of_three_dims_is_refused():
    with pytest.raises(ValueError, match=r"A flat piece of a parameter of the shape \[2, 3, 4\]"):
        Flat((2, 3, 4), 0, 5)
