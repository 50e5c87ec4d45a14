"""The published comparison of 1D, 2D, 2.5D and 3D, recounted from the collectives of a layer."""

from itertools import pairwise

import pytest

from lib.predict.roofline import speeds
from lib.predict.tensor.grid_costs import published, published_1d, recounted
from lib.predict.tensor.grid_traffic import GridMove, latency_steps, linear_moves, sent_bytes
from lib.predict.tensor.grids import RankGrid
from lib.predict.tensor.summa_step import Summa, summa_step
from lib.predict.tensor.where_each_wins import (
    grids_of,
    layer_seconds,
    square_over_hosts,
    where_each_wins,
)

GRIDS = [
    RankGrid("2d", 2), RankGrid("2d", 3), RankGrid("2d", 8),
    RankGrid("2.5d", 2, 2), RankGrid("2.5d", 4, 3),
    RankGrid("3d", 2), RankGrid("3d", 3), RankGrid("3d", 8),
]  # fmt: skip


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_the_published_table_is_recounted(grid):
    said, counted = published(grid), recounted(grid)
    assert counted.bandwidth == pytest.approx(said.bandwidth)
    assert (counted.compute, counted.parameters) == (said.compute, said.parameters)
    steps = 1 if grid.kind == "3d" else grid.side  # the table leaves out that SUMMA takes q steps
    assert counted.latency == said.latency * steps
    kept = grid.side if grid.kind == "3d" else 1  # the table's bandwidth keeps x gathered
    assert counted.activations == pytest.approx(said.activations * kept)


def test_what_the_ledger_counts_besides():
    """Broadcasts in pieces send less; the depth and gathering again send more."""
    square = recounted(RankGrid("2d", 8), pieces=True)
    assert (
        square.bandwidth == pytest.approx(6 / 8) and published(RankGrid("2d", 8)).bandwidth == 5.25
    )
    deep = RankGrid("2.5d", 2, 2)
    assert recounted(deep, depth=True).bandwidth - recounted(deep).bandwidth == 2 * (1 / 2) / 4
    cube, again = RankGrid("3d", 4), recounted(RankGrid("3d", 4), keep_gathered=False)
    assert again.bandwidth == pytest.approx(published(cube).bandwidth * 8 / 6)
    assert again.activations == published(cube).activations and again.latency == 8 * 3


def test_one_dimension_sends_whole_rows():
    assert published_1d(4) == (1 / 4, 1 / 4, 1.0, 1.5, 6)
    sums = GridMove("tp", "all_reduce", 4, 100)  # of dx, which has as many entries as x
    assert (sums.sent / 100, sums.rounds) == published_1d(4)[3:]


def test_the_collectives_of_a_layer():
    moves = linear_moves(RankGrid("2d", 2), 8, 4, 6, itemsize=1)
    x, w = GridMove("column", "broadcast", 2, 8), GridMove("row", "broadcast", 2, 6)
    assert moves.forward == [x, w, x, w]
    weight = [x, GridMove("row", "reduce", 2, 6)] * 2
    assert moves.backward == [
        GridMove("row", "all_reduce", 2, 3), *weight, *[w, GridMove("column", "reduce", 2, 8)] * 2,
    ]  # fmt: skip
    assert sent_bytes(moves.all) == 6 * (8 + 6) + 3 and latency_steps(moves.all) == 12 + 2
    cube = linear_moves(RankGrid("3d", 2), 8, 4, 6, itemsize=1, back=True)
    assert [(m.axis, m.op, m.bytes) for m in cube.forward] == [
        ("z", "all_gather", 8),
        ("x", "all_gather", 6),
        ("y", "reduce_scatter", 12),
    ]
    assert [(m.axis, m.op) for m in cube.backward] == [
        ("y", "all_gather"), ("x,y", "all_reduce"), ("z", "all_gather"), ("x", "all_gather"),
        ("x", "reduce_scatter"), ("z", "reduce_scatter"),
    ]  # fmt: skip


class Unit:
    """A device and a link on which every product takes 1 s, and every broadcast `moves` s."""

    def __init__(self, moves):
        self.moves = moves

    def compute(self, flop, nbytes):
        return 1.0

    def moving(self, op, ranks, nbytes):
        return self.moves


@pytest.mark.parametrize("moves", [0.5, 1.0, 3.0])
def test_overlap_hides_all_broadcasts_but_the_first(moves):
    """A step's two broadcasts take turns on one link, and travel side by side on two."""
    q = 4
    for own_links, b in ((True, moves), (False, 2 * moves)):
        for overlap in (False, True):
            play = Summa(8, 8, 8, q, Unit(moves), overlap, own_links=own_links)
            hidden = b + (q - 1) * max(b, 1) + 1
            expected = hidden if overlap else q * (b + 1)
            assert play.forward(bias=False) == pytest.approx(expected)


@pytest.mark.parametrize("inside, between", [(0.5, 3.0), (3.0, 0.5), (0.25, 0.5)])
def test_a_square_over_hosts_waits_for_the_slower_of_two_links(inside, between):
    """A row of ranks is a host: x [8, 8] travels inside, W and dW [8, 8] between hosts."""
    q, b = 4, max(inside, between)
    play = Summa(8, 8, 8, q, Unit(inside), between=Unit(between))
    assert play.forward(bias=False) == pytest.approx(b + (q - 1) * max(b, 1) + 1)
    play.backward(bias=False)
    moved = {(e.axis, e.op): e.end - e.start for e in play.events if e.lane == "comm"}
    assert set(moved) == {(a, op) for a in ("row", "column") for op in ("broadcast", "reduce")}
    first = [e for e in play.events if e.lane == "comm"][:2]
    assert {e.axis: e.end for e in first} == {"row": between, "column": inside}


def test_a_square_over_equal_links_is_that_with_links_of_its_own():
    nvlink, infiniband = (speeds("H100", link) for link in ("NVLink4", "InfiniBand NDR"))
    for width in (4096, 16_384):
        same = layer_seconds(64, width, nvlink, own_links=True)["2D, 8×8"]
        assert square_over_hosts(8, width, nvlink, nvlink) == pytest.approx(same)
        slower = layer_seconds(64, width, infiniband, own_links=True)["2D, 8×8"]
        assert same < square_over_hosts(8, width, nvlink, infiniband) < slower


@pytest.mark.parametrize("overlap", [False, True])
def test_only_on_links_of_their_own_do_two_axes_send_at_once(overlap):
    """Both ledgers have the same collectives; a shared link is never in use twice at a time."""
    h100 = speeds("H100", "NVLink4")
    shared, apart = (
        summa_step(16_384, 12_288, 12_288, 2, h100, overlap=overlap, itemsize=2, own_links=own)
        for own in (False, True)
    )
    comm = lambda step: step.where(rank=0, lane="comm")
    same = lambda step: sorted((r.group, r.number, r.op, r.bytes) for r in comm(step))
    assert same(shared) == same(apart) and shared.makespan > apart.makespan
    for step, twice in ((shared, False), (apart, True)):
        spans = sorted((r.end - h100.moving(r.op, 2, r.bytes), r.end) for r in comm(step))
        overlaps = [a[1] > b[0] + 1e-9 for a, b in pairwise(spans)]
        assert len(overlaps) == 12 and any(overlaps) == twice


def test_a_step_of_summa_has_the_collectives_of_a_layer():
    device = speeds("H100", "NVLink4")
    for overlap in (False, True):
        ledger = summa_step(64, 32, 16, 2, device, overlap=overlap)
        play = Summa(64, 32, 16, 2, device, overlap)
        play.forward()
        assert ledger.makespan == pytest.approx(play.backward())
        for axis in ("row", "column"):
            rows = sorted(ledger.where(rank=3, lane="comm", group=axis), key=lambda r: r.number)
            moves = linear_moves(RankGrid("2d", 2), 64, 32, 16).all
            expected = [(m.op, m.ranks, m.bytes) for m in moves if m.axis == axis]
            assert [(r.op, len(r.members), r.bytes) for r in rows] == expected
    with pytest.raises(ValueError, match="The product has 9 inputs; 2 ranks cannot share them"):
        summa_step(64, 9, 16, 2, device)


def test_where_each_wins():
    """More ranks than heads leave 1D out; few tokens favour it, because grids send weights too."""
    assert [str(g) for g in grids_of(64)] == ["2.5D, 4×4×4", "3D, 4×4×4", "2D, 8×8"]
    assert [str(g) for g in grids_of(8)] == ["2.5D, 2×2×2", "3D, 2×2×2"] and not grids_of(6)
    device = speeds("H100", "NVLink4")
    assert "1D" not in layer_seconds(64, 4096, device) and "1D" in layer_seconds(64, 8192, device)
    winners = where_each_wins([4, 6, 512], [4096, 12288], device)
    assert (6, 4096) not in winners and (6, 12288) in winners  # 96 heads, and no grid of 6
    best = winners[512, 4096]
    assert best.name == "3D, 8×8×8" and best.seconds == min(best.seconds_of.values())
    few, many = (layer_seconds(16, 8192, device, batch=16, sequence=s) for s in (64, 4096))
    assert few["1D"] < few["2D, 4×4"] and many["1D"] > many["2D, 4×4"]  # 1D sends no weights


def test_links_of_their_own_are_faster_for_grids_alone():
    device = speeds("H100", "InfiniBand NDR")
    shared, apart = (layer_seconds(64, 8192, device, own_links=own) for own in (False, True))
    faster = {name for name in shared if apart[name] < shared[name]}
    assert faster == {"2D, 8×8", "2.5D, 4×4×4", "3D, 4×4×4"} and shared["1D"] == apart["1D"]


def test_the_cube_of_the_prediction_is_the_one_that_the_library_builds():
    """It gathers x and W again in backward, and hides dW's reduce_scatter under dx's product."""
    device, grid, tokens, width = speeds("H100", "InfiniBand NDR"), RankGrid("3d", 4), 2**17, 8192
    again = kept = 0.0
    for i, o in ((1, 3), (1, 1), (1, 4), (4, 1)):
        sizes = tokens, width * i, width * o
        product = device.compute(2 * tokens * width**2 * i * o / 64, 0)
        for keep in (False, True):
            moves = linear_moves(grid, *sizes, bias=False, itemsize=2, keep_gathered=keep).all
            waited = sum(device.moving(move.op, move.ranks, move.bytes) for move in moves)
            hidden = min(device.moving(moves[-2].op, 4, moves[-2].bytes), product)
            assert (moves[-2].axis, moves[-2].op) == ("x", "reduce_scatter")
            if keep:
                kept += waited - hidden + 3 * product
            else:
                again += waited - hidden + 3 * product
    found = layer_seconds(64, width, device)["3D, 4×4×4"]
    assert found == pytest.approx(again) and found > 1.1 * kept
