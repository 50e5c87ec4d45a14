"""What every rank does in a step of FSDP, action by action, and what is whole meanwhile."""

import pytest

from lib.predict.shape import GPTShape, MLPShape
from lib.predict.sharded.units import KINDS, UnitAction, actions, alive, units_of
from tests.every import every

EQUAL = MLPShape((8,) * 6, bias=False)  # five units of 64


def words(*more, **settings):
    return " · ".join(map(str, actions(*more, **settings)))


def test_two_units_without_prefetch():
    assert words(2, 0) == (
        "gather 0 · wait 0 · forward 0 · gather 1 · wait 1 · forward 1 · free 1 · gather 2 · "
        "wait 2 · forward 2 · free 2 · forward 0 · backward 0 · gather 2 · wait 2 · backward 2 · "
        "free 2 · copy 2 · reduce 2 · gather 1 · wait 1 · backward 1 · free 1 · settle 2 · "
        "copy 1 · reduce 1 · backward 0 · free 0 · settle 1 · copy 0 · reduce 0 · settle 0"
    )


def test_prefetch_launches_the_next_gather_before_a_unit_computes():
    assert words(2, 1) == (
        "gather 0 · wait 0 · gather 1 · forward 0 · wait 1 · gather 2 · forward 1 · free 1 · "
        "wait 2 · forward 2 · free 2 · forward 0 · gather 2 · backward 0 · wait 2 · gather 1 · "
        "backward 2 · free 2 · copy 2 · reduce 2 · wait 1 · backward 1 · free 1 · settle 2 · "
        "copy 1 · reduce 1 · backward 0 · free 0 · settle 1 · copy 0 · reduce 0 · settle 0"
    )


def test_a_first_unit_whose_inputs_need_no_gradient_is_freed_at_the_end():
    assert words(2, 1, ends=True).endswith(
        "wait 1 · backward 1 · settle 2 · copy 1 · reduce 1 · backward 0 · free 1 · free 0 · "
        "settle 1 · copy 0 · reduce 0 · settle 0"
    )
    held = {str(state.action): state for state in alive(units_of(EQUAL), 2)}
    assert (held["copy 1"].whole, held["copy 1"].gradients) == (256, 512)
    assert held["free 1"].whole == 0
    inside = {str(state.action): state for state in alive(units_of(EQUAL, ends=False), 2)}
    assert inside["copy 1"].whole == 2 * 256  # of the root, which has both ends


@pytest.mark.parametrize("units", [1, 2, 5])
@pytest.mark.parametrize("prefetch", [0, 1, 2, 9])
@pytest.mark.parametrize("resharded", [True, False])
def test_each_unit_is_whole_when_it_computes_and_reduced_once(units, prefetch, resharded):
    whole, gathered, copied, reduced, settled, most = set(), set(), [], [], [], 0
    for kind, unit in actions(units, prefetch, resharded=resharded):
        assert kind in KINDS
        if kind == "gather":
            assert unit not in gathered, "it is whole already"
            gathered.add(unit)
            most = max(most, len(gathered - {0}))
        elif kind == "wait":
            whole.add(unit)
        elif kind == "free":
            whole.remove(unit)
            gathered.remove(unit)
        elif kind in ("forward", "backward"):
            assert unit in whole
        else:
            {"copy": copied, "reduce": reduced, "settle": settled}[kind].append(unit)
    assert not gathered and copied == reduced == settled == [*range(units, -1, -1)]
    assert most == (min(1 + prefetch, units) if resharded else units)


def test_units_are_blocks_and_the_root_has_what_two_of_them_share():
    tied = GPTShape(layers=2, tied=True)
    root, *units = units_of(tied)
    assert [p.name for p in root.parameters] == ["blocks.0.tokens.weight"]
    assert [unit.blocks for unit in units] == [(0,), (1,), (2,), (3,)]
    assert root.numel + sum(unit.numel for unit in units) == tied.numel
    grouped = units_of(GPTShape(layers=2, kv_heads=1, positions="rotary"))
    assert [u.numel for u in grouped][:3] == [0, 256 * 64, units[1].numel - 2 * 3 * 16 * 65]
    root, *pairs = units_of(GPTShape(layers=2), [1, 2, 1])
    assert root.numel == 0 and [unit.name for unit in pairs] == [
        "block 0",
        "blocks 1 to 2",
        "block 3",
    ]
    alone = units_of(tied, [4])
    assert alone[0].numel == 0 and alone[1].numel == tied.numel  # nobody else shares it
    with pytest.raises(ValueError, match=r"Units of \[1, 2\] blocks do not hold 4 blocks of the"):
        units_of(tied, [1, 2])


def test_both_ends_can_belong_to_the_root():
    shape = GPTShape(layers=3)
    root, *layers = units_of(shape, ends=False)
    assert root.blocks == (0, 4) and [unit.blocks for unit in layers] == [(1,), (2,), (3,)]
    assert root.numel == 2 * 256 * 64 + 64 * 64 + 2 * 64
    assert root.numel + sum(unit.numel for unit in layers) == shape.numel
    held = list(alive(units_of(shape, ends=False), 2))
    first = next(state for state in held if state.action.kind == "backward")
    assert first.gradients == 4 * (256 * 64 + 2 * 64), "the head's gradient comes first"
    copying = next(state for state in held if state.action == UnitAction("copy", 0))
    assert copying.gradients == 2 * 4 * root.length(2), "a copy is there beside what is copied"
    assert len(units_of(MLPShape((4, 4, 4)), ends=False)) == 3, "two blocks have nothing between"


def test_a_unit_is_padded_to_equal_shares():
    _, unit = units_of(MLPShape((7, 1), bias=False))
    assert (unit.numel, unit.share(4), unit.length(4)) == (7, 2, 8)
    root, *_ = units_of(MLPShape((7, 1), bias=False))
    assert root.share(4) == root.length(4) == 0


@pytest.mark.parametrize("prefetch", [0, 1, 2])
def test_one_unit_more_than_is_prefetched_is_whole_at_once(prefetch):
    held = list(alive(units_of(EQUAL), 2, prefetch=prefetch))
    assert max(state.whole for state in held) == (1 + prefetch) * 64 * 4
    assert max(state.gradients for state in held) == 2 * 64 * 4  # one grows, one is reduced
    assert held[-1].total == 0 and held[-1].action == UnitAction("settle", 0)
    assert every(state.total == state.whole + state.gradients for state in held)


def test_without_resharding_everything_is_whole_after_forward():
    held = list(alive(units_of(EQUAL), 2, resharded=False, param_bytes=2))
    assert max(state.whole for state in held) == 5 * 64 * 2
    unit = list(alive(units_of(EQUAL, [5]), 2))
    assert max(state.whole for state in unit) == 5 * 64 * 4, (
        "a unit that is everything saves nothing"
    )
