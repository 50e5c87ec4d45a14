"""Chapter 11 says which blocks of 8-bit Adam its shards cut, and where a second moment is lost."""

import math

from lib.course.lean_optimizers import sharded
from lib.parallel.optimizers.places import places_of_fsdp
from lib.parallel.sharded import FSDP
from tests.course.stored_chapter import chapter_fixtures

notebook, text = chapter_fixtures("11-lean-optimizers")
SMALLEST = 4096  # tensors with fewer numbers are kept in 32 bits


def firsts() -> dict[str, int]:
    """Give the first number of this rank's piece of each large parameter of which it has a part."""
    model = FSDP(sharded.gpt())
    places = places_of_fsdp(model)
    names = {name: places[parameter] for name, parameter in model.named_parameters()}
    pieces = {name: place for name, place in names.items() if place.last > place.first}
    large = {name: p for name, p in pieces.items() if math.prod(p.shape) >= SMALLEST}
    return {name: place.first for name, place in large.items()}


def test_no_shard_cuts_a_block_of_32_and_one_would_cut_a_block_of_256(worlds, text):
    parts = worlds(2).run(firsts)
    begun = [(name, first) for part in parts for name, first in part.items()]
    assert any(first for _, first in begun)
    assert not [name for name, first in begun if first % sharded.BLOCK]
    assert [name for name, first in begun if first % 256] == ["blocks.2.linear.weight"]
    assert "no shard cuts one of its blocks, which have 32 numbers here" in text
    assert "blocks of 256 numbers, one block of the last layer would be cut" in text


def test_a_gradient_of_a_23rd_has_a_second_moment_that_the_linear_map_loses(text):
    assert 1 / 23**2 < 1 / 510 < 1 / 22**2
    assert "less than 1/23 of the largest, v is less than 1/510 of the maximum" in text
