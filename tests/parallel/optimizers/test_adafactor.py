"""Adafactor on parts equals the plain one; each shard with its own factors does not."""

import pytest
import torch

from lib.parallel.optimizers import ShardedAdafactor
from lib.predict.optimizers.traffic import of_adafactor
from lib.single.optimizers import Adafactor
from tests.every import every
from tests.parallel.optimizers.parts import SETS, STEPS, expected_parts, on_parts

OPTIONS = {
    "defaults": {},
    "momentum": {"momentum": 0.9, "lr": 0.1, "weight_decay": 0.1},
    "absolute": {"relative_step": False, "scale_parameter": False, "clip": 0.5},
}


def far(found, expected):
    """The largest relative distance of any part on any rank; an empty part has none."""
    distances = []
    for ours, theirs in zip(found, expected, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert a.shape == b.shape
            if a.numel():
                distances.append(((a - b).norm() / b.norm()).item())
    return max(distances)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=list(OPTIONS))
@pytest.mark.parametrize("name", SETS)
def test_parts_are_those_of_the_plain_step(world, name, options):
    found = world.run(on_parts, ShardedAdafactor, name, options)
    assert far(found, expected_parts(Adafactor, name, options, world.size)) < 1e-13


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", ["rows", "columns"])
def test_factors_of_each_shard_alone_are_another_step(worlds, name, ranks):
    found = worlds(ranks).run(on_parts, Adafactor, name, {}, naive=True)
    assert far(found, expected_parts(Adafactor, name, {}, ranks)) > 1e-4


@pytest.mark.parametrize("scale", [True, False], ids=["scaled", "not scaled"])
@pytest.mark.parametrize("name", SETS)
def test_a_step_sends_what_is_predicted(world, name, scale):
    ledger = world.record(on_parts, ShardedAdafactor, name, {"scale_parameter": scale})
    predicted = of_adafactor(SETS[name], world.size, 8, scale_parameter=scale)
    calls = [(exchange.op, exchange.bytes) for exchange in predicted]
    assert len(calls) == 3
    for rank in range(world.size):
        rows = sorted(ledger.where(rank=rank, lane="comm"), key=lambda row: row.number)
        assert [(row.op, row.bytes) for row in rows] == calls * STEPS


def test_numbers_of_two_bytes_travel_in_four(worlds):
    ledger = worlds(2).record(on_parts, ShardedAdafactor, "rows", {}, dtype=torch.bfloat16)
    predicted = of_adafactor(SETS["rows"], 2, 2)
    rows = sorted(ledger.where(rank=0, lane="comm"), key=lambda row: row.number)
    assert [row.bytes for row in rows] == [exchange.bytes for exchange in predicted] * STEPS
    assert every(part.dtype == torch.bfloat16 for part in ledger.results[0])


def test_bytes_by_hand():
    """A matrix [6, 4] in each way, in fp32, and a vector: flags, sums, sums of updates."""
    sizes = {0: 4 + 1, 1: 6 + 1, "flat": 10 + 1}
    for cut, sums in sizes.items():
        found = of_adafactor([((6, 4), cut), ((6,), 0), ((3, 3), None)], 2)
        assert [exchange.bytes for exchange in found] == [2, 4 * (sums + 1), 4 * 2]
    assert of_adafactor([((3, 3), None)], 2) == []


def without_places():
    weight = torch.nn.Parameter(torch.ones(2))
    try:
        ShardedAdafactor([weight], {})
    except ValueError as error:
        return str(error)
    return ""


def test_a_parameter_without_a_place_is_refused(worlds):
    assert worlds(2).run(without_places)[0].startswith("A parameter of the shape [2] has no place.")
