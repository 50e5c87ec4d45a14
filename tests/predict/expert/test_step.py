"""The predicted step of a layer of experts: its messages, its arithmetic, and who waits."""

import pytest

from lib.predict.expert.step import expert_step
from lib.predict.expert.traffic import exchanges
from lib.predict.roofline import speeds

SIZES = {"width": 64, "hidden": 128, "experts": 8, "k": 2, "tokens": 32}


def predicted(ranks, **more):
    return expert_step(**SIZES, ranks=ranks, speeds=speeds("H100"), **more)


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_it_launches_what_an_even_layer_launches(ranks):
    table = [[64 // ranks] * ranks for _ in range(ranks)]
    forward, backward = exchanges(table, 0, 8, 64)
    rows = predicted(ranks).where(rank=0, lane="comm")
    found = [(row.op, row.bytes) for row in rows]
    gate = ("all_reduce", 64 * 8 * 4)
    assert found == [(move.op, move.bytes) for move in (*forward, *backward)] + [gate]


def test_forward_multiplies_twice_and_backward_four_times():
    """A rank has 64 rows: 6 products with its experts, 3 with the gate."""
    seconds = speeds("H100").compute
    rows, d, f, own = 64, 64, 128, 2
    product = seconds(2 * rows * d * f, 4 * (rows * d + own * d * f + rows * f))
    gate = seconds(2 * 32 * d * 8, 4 * (32 * d + d * 8 + 32 * 8))
    found = [row.seconds for row in predicted(4).where(rank=1, op="mm")]
    assert sorted(found) == pytest.approx(sorted([product] * 6 + [gate] * 3))


def test_ranks_wait_for_the_one_with_most_rows():
    run = predicted(4, arriving=[16, 208, 16, 16])
    waits = {rank: sum(r.waiting for r in run.where(rank=rank, lane="comm")) for rank in range(4)}
    assert waits[1] == 0 and waits[0] == waits[2] == waits[3] > 0
    assert run.makespan > predicted(4).makespan
    assert {row.bytes for row in run.where(op="all_to_all")} == {208 * 64 * 4}


@pytest.mark.parametrize("arriving", [[64, 64], [64, 64, 64, 63]])
def test_rows_that_do_not_add_up_are_refused(arriving):
    with pytest.raises(ValueError, match="4 ranks send 256 rows"):
        predicted(4, arriving=arriving)


def test_experts_are_shared_equally():
    with pytest.raises(ValueError, match="There are 8 experts"):
        predicted(3)
