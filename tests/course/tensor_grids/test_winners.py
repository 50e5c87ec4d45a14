"""What chapter 5 says of the fastest split: grids beside 1D, and beside 1D in hosts of eight."""

import re

import pytest
import torch
import torch.distributed as dist

from lib.course.tensor_grids import lessons
from lib.predict.roofline import speeds
from lib.predict.tensor.summa_step import summa_step
from lib.predict.tensor.where_each_wins import layer_seconds, where_each_wins
from lib.ranks.mesh import mesh
from tests.course.stored_chapter import shown, stored_chapter
from tests.every import every


def test_where_each_wins_as_the_text_says():
    widths = list(lessons.LARGE_WIDTHS)
    worst = {}
    for link in ("NVLink4", "InfiniBand NDR"):
        hardware = speeds("H100", link)
        best = where_each_wins([4, 16, 64], widths, hardware)
        assert all(best[4, width].name == "1D" for width in widths)
        assert all(best[n, width].name != "1D" for n in (16, 64) for width in widths)
        lost = []
        for width in widths:
            seconds = layer_seconds(8, width, hardware)
            lost.append(1 - min(seconds.values()) / seconds["1D"])
        worst[link] = round(100 * max(lost))
        assert max(lost) == lost[0]  # at width 4,096
    assert worst == {"NVLink4": 16, "InfiniBand NDR": 35}


def test_what_links_of_their_own_would_change():
    """The text names the six of 40 places in which another split would win."""
    changed = {}
    for link in ("NVLink4", "InfiniBand NDR"):
        shared, apart = (
            where_each_wins(
                list(lessons.MANY_RANKS), list(lessons.LARGE_WIDTHS), speeds("H100", link),
                own_links=own,
            )
            for own in (False, True)
        )  # fmt: skip
        assert len(shared) == len(apart) == 20
        changed |= {(link, *at): apart[at].name for at in shared
                    if apart[at].name != shared[at].name}  # fmt: skip
    assert changed == {
        ("NVLink4", 64, 16_384): "2D, 8×8",
        ("NVLink4", 512, 16_384): "2.5D, 8×8×8",
        ("NVLink4", 512, 32_768): "2.5D, 2×16×16",
        ("InfiniBand NDR", 64, 4096): "2.5D, 4×4×4",
        ("InfiniBand NDR", 64, 8192): "2.5D, 4×4×4",
        ("InfiniBand NDR", 64, 16_384): "2.5D, 4×4×4",
    }


@pytest.fixture(scope="module")
def notebook():
    return stored_chapter("05-tensor-grids")


def text_of(notebook, cell_id: str) -> str:
    return next(cell.source for cell in notebook.cells if cell.id == cell_id)


def test_the_table_of_winners_says_how_their_times_differ_from_1d(notebook):
    stored = shown(notebook, "lessons.winners")
    for link in ("NVLink4", "InfiniBand NDR"):
        written = lessons.winners(speeds("H100", link))
        assert written in stored and every(len(line) <= 45 for line in written.splitlines())
        width, *lines = written.splitlines()
        assert width.split() == ["width", "4k", "8k", "16k", "32k"]
        for line in lines:
            ranks, cells = int(line[:5]), [line[5 + 10 * n : 15 + 10 * n].split() for n in range(4)]
            for size, (kind, *more) in zip(lessons.LARGE_WIDTHS, cells):
                seconds = layer_seconds(ranks, size, speeds("H100", link))
                best = min(seconds, key=seconds.get)
                assert best.split(",")[0] == kind and bool(more) == (kind != "1D")
                if more == ["-"]:
                    assert "1D" not in seconds
                elif more:
                    gain = seconds[best] / seconds["1D"] - 1
                    assert int(more[0].rstrip("%")) == pytest.approx(100 * gain, abs=0.51)


def test_the_winners_have_the_sides_that_the_text_names(notebook):
    assert "2D is 4 × 4 or 8 × 8, and the others have equal sides" in text_of(notebook, "cost0002")
    for link in ("NVLink4", "InfiniBand NDR"):
        wins = where_each_wins(
            list(lessons.MANY_RANKS), list(lessons.LARGE_WIDTHS), speeds("H100", link)
        )
        for best in wins.values():
            if best.name != "1D":
                kind, sides = best.name.split(", ")
                assert len(set(sides.split("×"))) == 1
                assert kind != "2D" or sides in ("4×4", "8×8")


def test_hosts_of_eight_beside_grids(notebook):
    lines, stored = lessons.hosts_beside_grids(), shown(notebook, "lessons.real_hosts")
    hosts, sums, slow, fast = (list(line.values()) for line in lines.values())
    assert lessons.real_hosts() in stored and every(len(s) <= 45 for s in stored.splitlines())
    ratios = [grid / host for grid, host in zip(slow, hosts)]
    told = re.search(r"is ([\d.]+) to ([\d.]+) times as fast", text_of(notebook, "wins0004"))
    assert (round(min(ratios), 1), round(max(ratios), 1)) == (float(told[1]), float(told[2]))
    assert every(host - hidden < grid for host, hidden, grid in zip(hosts, sums, fast))
    for width, seconds in zip(lessons.LARGE_WIDTHS[1:], sums[1:]):  # a ring among 8 hosts
        more = 2 * 12 * (width**2 - 4096**2) / 8  # bytes of gradients; the latency falls out
        assert seconds - sums[0] == pytest.approx(2 * 7 / 8 * more / 50e9, rel=1e-6)


def test_both_pictures_of_overlap_have_one_scale_and_one_name_for_products():
    h100 = speeds("H100", "NVLink4")
    apart, over = lessons.with_and_without_overlap(16_384, 12_288, 12_288, h100)
    assert apart.makespan == over.makespan
    for ledger, overlap in ((apart, False), (over, True)):
        step = summa_step(16_384, 12_288, 12_288, 2, h100, overlap=overlap, itemsize=2)
        rows = ledger.where(rank=0, lane="compute")
        assert len(rows) == len(step.where(rank=0, lane="compute"))
        assert [row.op for row in rows].count("mm") == 6
        moved = lambda rows: sum(row.bytes for row in rows if row.lane == "comm")
        assert moved(ledger) == moved(step.where(rank=0))


def weight_gradient_on_a_square(source: str) -> bool:
    """Run the chapter's loop for dW on every rank; return whether its tile is right."""
    names = {"torch": torch, "dist": dist}
    exec(source, names)
    here = mesh(row=2, column=2)
    row, column = here["row"], here["column"]
    draw = torch.Generator("cpu").manual_seed(0)
    x, dy = (torch.randn(8, n, generator=draw, dtype=torch.float64, device="cpu") for n in (6, 10))
    tile = lambda full: full.chunk(2)[row.rank].chunk(2, 1)[column.rank].contiguous()
    return torch.allclose(names["weight_gradient"](tile(x), tile(dy), row, column), tile(x.T @ dy))


def test_the_loop_for_the_gradient_of_the_weights(notebook, worlds):
    text = text_of(notebook, "furt0001")
    (source,) = re.findall(r"```python\n(def weight_gradient.*?)```", text, re.S)
    assert worlds(4).run(weight_gradient_on_a_square, source) == [True] * 4
