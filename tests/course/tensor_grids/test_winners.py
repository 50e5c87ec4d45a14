"""What chapter 5 says of the fastest split: grids beside 1D, and beside 1D in hosts of eight."""

import re

import pytest

from lib.course.tensor_grids import lessons, winners
from lib.predict.collectives.formulas import mean_sent
from lib.predict.roofline import speeds
from lib.predict.tensor.grid_traffic import linear_moves
from lib.predict.tensor.grids import RankGrid
from lib.predict.tensor.summa_step import summa_step
from lib.predict.tensor.where_each_wins import (
    grids_of,
    layer_seconds,
    replicated_seconds,
    where_each_wins,
)
from tests.course.stored_chapter import shown, stored_chapter
from tests.every import every


@pytest.fixture(scope="module")
def notebook():
    return stored_chapter("05-tensor-grids")


def text_of(notebook, cell_id: str) -> str:
    return next(cell.source for cell in notebook.cells if cell.id == cell_id)


LINKS = ("NVLink4", "InfiniBand NDR")


def test_where_each_wins_as_the_text_says():
    widths = list(winners.LARGE_WIDTHS)
    for link in LINKS:
        best = where_each_wins([4, 16, 64, 512], widths, speeds("H100", link))
        assert every(best[4, width].name == "1D" for width in widths)
        assert every(best[n, width].name != "1D" for n in (16, 64, 512) for width in widths)


def test_from_how_many_ranks_on_a_grid_wins(notebook):
    """The guess; in ten of these 24 places 1D is impossible, and at 16 ranks in none."""
    both = [speeds("H100", link) for link in LINKS]
    assert winners.a_grid_wins_from(*both) == 16
    assert winners.a_grid_wins_from(both[0]) == winners.a_grid_wins_from(both[1]) == 16
    for link in both:
        best = where_each_wins([16, 64, 512], list(winners.LARGE_WIDTHS), link)
        without = [ranks for (ranks, _), winner in best.items() if "1D" not in winner.seconds_of]
        assert without == [64] + 4 * [512]
    assert "It is 16." in shown(notebook, "winners.of_all_ranks")
    assert "from 16 on a grid wins for this batch wherever 1D is possible" in text_of(
        notebook, "wins0002"
    )


def test_on_four_ranks_1d_is_faster_although_the_square_sends_less(notebook):
    """At 4k and 8k; its all_reduces of dx are hidden to more than nine tenths."""
    tokens, h100 = 64 * 2048, speeds("H100", "NVLink4")
    for width, times in ((4096, 32), (8192, 16)):
        assert tokens == times * width
        sizes = (width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)
        square = sum(
            lessons.sent_by_a_rank(linear_moves(RankGrid("2d", 2), tokens, *io, bias=False).all)
            for io in sizes
        )
        line = 4 * mean_sent("all_reduce", 4, 4 * tokens * width)
        assert square < line
        seconds = layer_seconds(4, width, h100)
        assert seconds["1D"] < seconds["2D, 2×2"]
        one = replicated_seconds(4, width, h100)[4, 1]
        sums = h100.moving("all_reduce", 4, 2 * tokens * width)
        products = one.forward - 2 * sums  # backward has twice as many
        exposed = one.backward - 2 * products
        assert 0 <= exposed < 0.1 * 2 * sums
    assert "where M is 32·D and 16·D" in text_of(notebook, "wins0002")


def test_replicas_beside_grids_as_the_text_says(notebook):
    """1D × data in the same prediction: where it loses, and where FSDP would."""
    text, lost, close, lost_by_fsdp = text_of(notebook, "wins0004"), {}, 0, 0
    clear, lost_in_4_bytes, lost_if_both_are = 0, 0, 0
    for link in LINKS:
        h100 = speeds("H100", link)
        for (ranks, width), best in where_each_wins(
            list(winners.MANY_RANKS), list(winners.LARGE_WIDTHS), h100
        ).items():
            grid = min(time for name, time in best.seconds_of.items() if name != "1D")
            found = replicated_seconds(ranks, width, h100)
            ours = min(times.exposed for times in found.values())
            if ours > grid:
                lost[link, ranks, width] = ours / grid - 1
            clear += ours < 0.99 * grid
            close += grid * 0.999 < ours <= grid
            lost_by_fsdp += min(t.exposed + t.sums / 2 for t in found.values()) > grid
            in_4_bytes = min(t.exposed + t.sums for t in found.values())
            lost_in_4_bytes += in_4_bytes > grid
            lost_if_both_are += in_4_bytes > min(with_depth_in_4_bytes(ranks, width, h100))
    assert list(lost) == [("NVLink4", 64, 32_768)] and close == 2
    assert round(100 * lost["NVLink4", 64, 32_768]) == 7
    told = "In 37 of the 40 places 1D × data is at least 1 % faster than the fastest grid."
    assert clear == 37 and told in text
    assert "A grid wins only on 64 ranks over NVLink 4 at width 32,768." in text
    assert lost_by_fsdp == 4 and lost_in_4_bytes == lost_if_both_are == 7
    told = "a grid wins in 4 places with FSDP, and in 7 with gradients in 4 bytes or with sequence"
    assert told in text


def test_overlapped_replicas_win_everywhere(notebook):
    """Also with sums in 4 bytes, and against a 2.5D grid whose sum over depth takes no time."""
    text, places = text_of(notebook, "wins0004"), 0
    for link in LINKS:
        h100 = speeds("H100", link)
        for (ranks, width), best in where_each_wins(
            list(winners.MANY_RANKS), list(winners.LARGE_WIDTHS), h100
        ).items():
            found = replicated_seconds(ranks, width, h100).values()
            grids = {str(grid): grid for grid in grids_of(ranks)}
            for name, seconds in best.seconds_of.items():
                if name != "1D":
                    tile = 12 * width**2 // grids[name].weight_ranks * 2
                    free = seconds - h100.moving("all_reduce", grids[name].depth or 1, tile)
                    assert min(times.overlapped for times in found) < free
                    in_4_bytes = min(t.forward + max(t.backward, 2 * t.sums) for t in found)
                    assert in_4_bytes < free
            places += 1
    assert places == 40
    told = (
        "overlapped as far as possible, 1D × data wins everywhere, also with gradients in 4 bytes"
    )
    assert told in text


def with_depth_in_4_bytes(ranks: int, width: int, at) -> list[float]:
    """Return each grid's seconds for a layer if its sum over depth takes 4 bytes a number.

    The two bytes more are never hidden, so these are the longest that it could take.
    """
    grids, times = {str(grid): grid for grid in grids_of(ranks)}, []
    for name, seconds in layer_seconds(ranks, width, at).items():
        if name != "1D":
            more = 12 * width**2 // grids[name].weight_ranks * 2
            times.append(seconds + at.moving("all_reduce", grids[name].depth or 1, more))
    return times


def test_over_nvlink_overlapped_replicas_beat_the_grid_also_with_sums_in_four_bytes(notebook):
    """NVLink 4 joins all 64 GPUs, for both; four bytes are Megatron-LM's default."""
    nvlink, text = speeds("H100", "NVLink4"), text_of(notebook, "host0002")
    for width in winners.LARGE_WIDTHS:
        grid = min(time for name, time in layer_seconds(64, width, nvlink).items() if name != "1D")
        in_4_bytes = []
        for (group, groups), times in replicated_seconds(64, width, nvlink).items():
            sums = nvlink.moving("all_reduce", groups, 4 * 12 * width**2 // group)
            in_4_bytes.append(times.forward + max(times.backward, sums))
        assert min(in_4_bytes) < grid
    assert "The same holds if gradients are summed in 4 bytes, Megatron-LM's default." in text


def test_fsdp_sends_half_as_many_bytes_more_than_an_all_reduce():
    """Two all_gathers of the weights and a reduce_scatter of their gradients."""
    more = 2 * mean_sent("all_gather", 8, 1) + mean_sent("reduce_scatter", 8, 1)
    assert more == pytest.approx(1.5 * mean_sent("all_reduce", 8, 1))


def test_why_small_groups_are_fast():
    """A rank sums its group's activations four times, and gradients once, in few of the bytes."""
    tokens, width = 64 * 2048, 8192
    of_all = 4 * mean_sent("all_reduce", 64, 2 * tokens * width)
    of_four = 4 * mean_sent("all_reduce", 4, 2 * tokens // 16 * width)
    gradients = mean_sent("all_reduce", 16, 2 * 12 * width**2 // 4)
    assert of_four + gradients < of_all / 10


def test_the_table_of_replicas(notebook):
    stored = shown(notebook, "winners.of_replicas")
    for link in LINKS:
        written, h100 = winners.of_replicas(speeds("H100", link)), speeds("H100", link)
        assert written in stored and every(len(line) <= 45 for line in written.splitlines())
        for line in written.splitlines()[1:]:
            ranks, *words = line.split()
            for width, pair, gain in zip(winners.LARGE_WIDTHS, words[::2], words[1::2]):
                group, groups = map(int, pair.split("×"))
                assert group * groups == int(ranks)
                found = replicated_seconds(int(ranks), width, h100)
                assert found[group, groups].exposed == min(t.exposed for t in found.values())
                seconds = layer_seconds(int(ranks), width, h100)
                grid = min(time for name, time in seconds.items() if name != "1D")
                times = found[group, groups].exposed / grid
                assert int(gain) == pytest.approx(100 * (times - 1), abs=0.51)


def test_a_group_of_all_ranks_is_1d_and_groups_of_one_are_data_parallelism():
    h100 = speeds("H100", "NVLink4")
    found = replicated_seconds(8, 8192, h100)
    assert list(found) == [(1, 8), (2, 4), (4, 2), (8, 1)]
    assert found[8, 1].exposed == pytest.approx(layer_seconds(8, 8192, h100)["1D"])
    flop = 6 * 12 * 8192**2 * 64 * 2048 / 8  # of a rank, forward and backward
    alone = found[1, 8]
    assert alone.forward + alone.backward == pytest.approx(flop / h100.peak)
    assert alone.sums == h100.moving("all_reduce", 8, 2 * 12 * 8192**2)


def test_what_links_of_their_own_would_change(notebook):
    """The text says that another split would win in five of 40 places."""
    changed = {}
    for link in ("NVLink4", "InfiniBand NDR"):
        shared, apart = (
            where_each_wins(
                list(winners.MANY_RANKS), list(winners.LARGE_WIDTHS), speeds("H100", link),
                own_links=own,
            )
            for own in (False, True)
        )  # fmt: skip
        assert len(shared) == len(apart) == 20
        changed |= {(link, *at): apart[at].name for at in shared
                    if apart[at].name != shared[at].name}  # fmt: skip
    assert changed == {
        ("NVLink4", 8, 16_384): "2.5D, 2×2×2",
        ("NVLink4", 512, 16_384): "2.5D, 8×8×8",
        ("NVLink4", 512, 32_768): "2.5D, 8×8×8",
        ("InfiniBand NDR", 8, 32_768): "3D, 2×2×2",
        ("InfiniBand NDR", 64, 16_384): "2.5D, 4×4×4",
    }
    assert "another split would win in 5 places of the tables." in text_of(notebook, "grid0004")


def test_the_table_of_winners_says_how_their_times_differ_from_1d(notebook):
    stored = shown(notebook, "winners.of_all_ranks")
    for link in ("NVLink4", "InfiniBand NDR"):
        written = winners.of_all_ranks(speeds("H100", link))
        assert written in stored and every(len(line) <= 45 for line in written.splitlines())
        width, *lines = written.splitlines()
        assert width.split() == ["D", "4k", "8k", "16k", "32k"]
        for line in lines:
            ranks, *cells = (field.split() for field in re.split(" {2,}", line))
            ranks = int(ranks[0])
            for size, (kind, *more) in zip(winners.LARGE_WIDTHS, cells):
                seconds = layer_seconds(ranks, size, speeds("H100", link))
                best = min(seconds, key=seconds.get)
                assert best.split(",")[0] == kind and bool(more) == (kind != "1D")
                if more == ["-"]:
                    assert "1D" not in seconds
                elif more:
                    gain = seconds[best] / seconds["1D"] - 1
                    assert int(more[0].rstrip("%")) == pytest.approx(100 * gain, abs=0.51)


def test_the_winners_have_the_sides_that_the_text_names(notebook):
    told = "Only squares, cubes and stacks no deeper than wide were compared."
    assert told in text_of(notebook, "grid0004")
    for grid in (grid for ranks in winners.MANY_RANKS for grid in grids_of(ranks)):
        ranks = {"2d": grid.side**2, "3d": grid.side**3}
        assert grid.depth <= grid.side if grid.kind == "2.5d" else grid.ranks == ranks[grid.kind]
    for link in ("NVLink4", "InfiniBand NDR"):
        wins = where_each_wins(
            list(winners.MANY_RANKS), list(winners.LARGE_WIDTHS), speeds("H100", link)
        )
        for best in wins.values():
            if best.name != "1D":
                kind, sides = best.name.split(", ")
                assert len(set(sides.split("×"))) == 1
                assert kind != "2D" or sides in ("4×4", "8×8")


def test_hosts_of_eight_beside_grids(notebook):
    lines, stored = winners.hosts_beside_grids(), shown(notebook, "winners.real_hosts")
    hosts, backward, sums, over, square, slow, fast, wide = (
        list(seconds.values()) for seconds in lines.values()
    )
    assert winners.real_hosts() in stored and every(len(s) <= 45 for s in stored.splitlines())
    ratios, text = [grid / host for grid, host in zip(slow, hosts)], text_of(notebook, "host0002")
    told = re.search(r"is ([\d.]+) to ([\d.]+) times as fast", text)
    assert (round(min(ratios), 1), round(max(ratios), 1)) == (float(told[1]), float(told[2]))
    for width, seconds in zip(winners.LARGE_WIDTHS[1:], sums[1:]):  # a ring among 8 hosts
        more = 2 * 12 * (width**2 - 4096**2) / 8  # bytes of gradients; the latency falls out
        assert seconds - sums[0] == pytest.approx(2 * 7 / 8 * more / 50e9, rel=1e-6)
    # overlap hides at most the shorter of both
    for host, back, moved, hidden in zip(hosts, backward, sums, over):
        assert hidden == pytest.approx(host - min(back, moved))
    assert every(hidden < grid for hidden, grid in zip(wide, fast))  # NVLink 4 for both
    nvlink = speeds("H100", "NVLink4")
    for width, seconds in zip(winners.LARGE_WIDTHS, wide):
        times = replicated_seconds(64, width, nvlink).values()
        assert seconds == min(t.forward + max(t.backward, t.sums) for t in times)
    pairs = re.findall(r"\(([\d.]+) and ([\d.]+) ms\)", text)
    compared = [(hosts, square, 2), (hosts, square, 3), (wide, fast, 3)]
    assert pairs == [(f"{1e3 * a[n]:.1f}", f"{1e3 * b[n]:.1f}") for a, b, n in compared]
    # the square over hosts wins where nothing of the all_reduce is hidden and products are long
    assert [grid < host for grid, host in zip(square, hosts)] == [False, False, True, True]
    shares = [grid / hidden for grid, hidden in zip(square, over)]
    told = re.search(r"takes ([\d.]+) to ([\d.]+) times as long", text)
    assert (round(min(shares), 1), round(max(shares), 1)) == (float(told[1]), float(told[2]))
    on_main_path = f"take {told[1]} to {told[2]} times as long as overlapped 1D × data"
    assert on_main_path in text_of(notebook, "wins0004")


def test_both_pictures_of_overlap_have_one_scale_and_name_products_after_results():
    h100 = speeds("H100", "NVLink4")
    apart, over = lessons.with_and_without_overlap(16_384, 12_288, 12_288, h100)
    assert apart.makespan == over.makespan
    for ledger, overlap in ((apart, False), (over, True)):
        step = summa_step(16_384, 12_288, 12_288, 2, h100, overlap=overlap, itemsize=2)
        rows = ledger.where(rank=0, lane="compute")
        assert len(rows) == len(step.where(rank=0, lane="compute"))
        names = [row.op for row in rows if row.op in ("y", "dW", "dx", "mm", "addmm_")]
        assert names == ["y", "y", "dW", "dW", "dx", "dx"]
        moved = lambda rows: sum(row.bytes for row in rows if row.lane == "comm")
        assert moved(ledger) == moved(step.where(rank=0))
