"""A step with offload, computed by hand and by its parts."""

import pytest

from lib.predict.recompute import BlockCost, none, use_of
from lib.predict.recompute.costs import backward_of, costs_of
from lib.predict.recompute.offload import (
    items_of,
    kept_blocks,
    offload_use,
    step_with_offload,
)
from lib.predict.roofline import speeds
from lib.predict.shape import GPTShape
from lib.predict.sharded.offload import HostSpeeds, host_speeds
from lib.predict.step import backward
from tests.every import every

COSTS = [BlockCost(2, 8, 1.0)] * 4
BACK = [2.0] * 4
LINK = HostSpeeds(0.5, 10.0, 1.0)  # 1.5 s for the 10 bytes of a block


def test_a_step_by_hand():
    """F 0-1, copy 1-2.5; F 1-2, wait 2.5; F 2.5-3.5, copy to 4 (launched at 2); and so on."""
    ledger = step_with_offload(COSTS, BACK, LINK)
    rows = [(row.op, row.start, row.end) for row in ledger.where(lane="comm")]
    assert rows[:3] == [("to_host", 1.0, 2.5), ("to_host", 2.0, 4.0), ("to_host", 3.5, 5.5)]
    waits = [(row.start, row.end) for row in ledger.where(lane="wait")]
    assert waits == [(2.0, 2.5), (3.5, 4.0), (5.0, 5.5)]
    assert rows[3:] == [("to_device", 5.5, 7.0), ("to_device", 7.5, 9.0), ("to_device", 9.5, 11.0)]
    use = offload_use(COSTS, BACK, LINK)
    assert use == (13.5, 12.0, 4.5, 4.5, 1.5, 10, 20, 30)
    assert ledger.makespan == 13.5 and use.exposed == pytest.approx(1.5)


def test_all_is_exposed_with_nothing_ahead():
    use = offload_use(COSTS, BACK, LINK, keep=0, ahead=0)
    assert use.exposed == use.to_host + use.to_device == 12.0
    assert (use.after_forward, use.peak, use.host) == (0, 10, 40)


def test_everything_kept_is_the_plain_step():
    use = offload_use(COSTS, BACK, LINK, keep=4)
    plain = use_of(none(4), COSTS)
    assert (use.seconds, use.exposed, use.host) == (12.0, 0.0, 0)
    assert (use.after_forward, use.peak) == (plain.after_forward, plain.peak)


def test_a_checkpoint_keeps_its_input_and_computes_again():
    items = items_of(COSTS, BACK, (0, (1, (2, 3))))
    assert items[0] == (10, 0, 1.0, 2.0)
    # Backward of the checkpoint runs 1, 2 and 3, and 2 and 3 once more: 5 s, and 6 s of its own.
    # Then block 1 holds 10 bytes, and 2 and 3 hold 20.
    assert items[1] == (2, 30 - 2, 3.0, 11.0)
    use = offload_use(COSTS, BACK, LINK, keep=0, ahead=0, plan=((0, 1), (2, 3)))
    assert use.host == 4 and use.computing == 16.0 and use.peak == 20


def test_times_and_bytes_of_a_model_are_those_of_its_step():
    shape, device = GPTShape(layers=4), speeds("H100")
    costs, back = costs_of(shape, 4, device), backward_of(shape, 4, device)
    assert sum(back) == pytest.approx(
        sum(device.compute(op.flop, op.bytes) for op in backward(shape, 4))
    )
    use = offload_use(costs, back, host_speeds("H100"))
    assert use.computing == pytest.approx(sum(back) + sum(cost.forward for cost in costs))
    assert use.after_forward + use.host == sum(cost.kept for cost in costs)


def test_memory_rows_end_at_nothing_and_reach_the_peak():
    for keep, ahead in ((1, 1), (0, 2), ({0, 2}, 1)):
        held = step_with_offload(COSTS, BACK, LINK, keep, ahead).where(lane="memory")
        held = held.column("bytes").tolist()
        assert held[-1] == 0 and max(held) == offload_use(COSTS, BACK, LINK, keep, ahead).peak


def test_the_last_blocks_stay_whose_copies_would_not_be_over():
    assert kept_blocks(5, 0, 2) == {3, 4} == kept_blocks(5, [4], 2)
    assert kept_blocks(5, 3, 1) == {2, 3, 4} and kept_blocks(5, (0,), 0) == {0}
    assert every(kept_blocks(n, 0, 9) == set(range(n)) for n in (1, 5))
