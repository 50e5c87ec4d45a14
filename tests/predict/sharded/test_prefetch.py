"""Units on one clock: by hand, as the predicted step has them, and what prefetch trades."""

import pytest

from lib.predict.collectives.formulas import time_of
from lib.predict.shape import MLPShape
from lib.predict.sharded.fsdp_step import fsdp_step
from lib.predict.sharded.prefetch import Bar, play_units

FOUR = {"nbytes": [256] * 4, "forward": [1.0] * 4, "backward": [1.0, 2.0, 2.0, 2.0]}
LINK = {"ranks": 2, "alpha": 0.0, "bandwidth": 256.0}  # half a second for a unit


class Speeds:
    def compute(self, flop, nbytes):
        return 1.0 if flop else 0.0

    def moving(self, op, ranks, nbytes):
        return time_of(op, ranks, nbytes, alpha=0.0, beta=1 / 256)


@pytest.mark.parametrize("prefetch", [0, 1, 2, 5])
@pytest.mark.parametrize("resharded", [True, False])
def test_it_is_the_predicted_step_of_equal_layers(prefetch, resharded):
    more = {"prefetch": prefetch, "resharded": resharded}
    run = play_units(**FOUR, **LINK, **more)
    ledger = fsdp_step(MLPShape((8,) * 5, bias=False), [1, 1], Speeds(), **more)
    moved = [(bar.kind, bar.end) for bar in run.bars if "ward" not in bar.kind]
    rows = sorted(ledger.where(rank=0, lane="comm"), key=lambda row: row.number)
    assert moved == [(row.op, row.end) for row in rows]
    assert run.end == ledger.makespan and run.computing == 11.0
    waits = ledger.where(rank=0, lane="wait").column("seconds").sum()
    assert run.exposed == pytest.approx(waits)


def test_one_unit_by_hand():
    run = play_units([256], [1.0], [2.0], **LINK)
    assert run.bars == (
        Bar("all_gather", 0, 0.0, 0.5), Bar("forward", 0, 0.5, 1.5), Bar("all_gather", 0, 1.5, 2.0),
        Bar("backward", 0, 2.0, 4.0), Bar("reduce_scatter", 0, 4.0, 4.5),
    )  # fmt: skip
    assert run.held == (
        (0.0, 0, 0), (0.0, 256, 0), (1.5, 0, 0), (1.5, 256, 0), (2.0, 256, 256), (4.0, 0, 256),
        (4.5, 0, 0),
    )  # fmt: skip
    assert (run.exposed, run.peak) == (1.5, 512)


def test_prefetch_trades_memory_for_exposed_time():
    runs = [play_units(**FOUR, **LINK, prefetch=n) for n in range(4)]
    assert runs[0].exposed > runs[1].exposed
    assert [max(whole for _, whole, _ in run.held) for run in runs] == [256, 512, 768, 1024]
    kept = play_units(**FOUR, **LINK, resharded=False)
    assert kept.exposed < runs[1].exposed and kept.peak > runs[1].peak


def test_times_are_needed_for_each_unit():
    with pytest.raises(
        ValueError, match="There are 2 units, 1 times of forward and 2 of backward."
    ):
        play_units([1, 1], [1.0], [1.0, 1.0], **LINK)
