"""What chapter 5 says of 2.5D beside the other grids, of groups' copies, and of both pictures."""

from collections import Counter

import pytest

from lib.course.tensor_grids import winners
from lib.predict.roofline import speeds
from lib.predict.tensor.where_each_wins import layer_seconds
from tests.course.stored_chapter import shown, stored_chapter


@pytest.fixture(scope="module")
def notebook():
    return stored_chapter("05-tensor-grids")


def text_of(notebook, cell_id: str) -> str:
    return next(cell.source for cell in notebook.cells if cell.id == cell_id)


def fastest(ranks: int, *, stacks: bool) -> Counter:
    """Count the fastest kinds over both links and all widths, with or without 2.5D."""
    kinds = Counter()
    for link in ("NVLink4", "InfiniBand NDR"):
        for width in winners.LARGE_WIDTHS:
            seconds = layer_seconds(ranks, width, speeds("H100", link))
            left = {name: t for name, t in seconds.items() if stacks or "2.5D" not in name}
            kinds[min(left, key=left.get).split(",")[0]] += 1
    return kinds


def test_the_fastest_kinds_on_the_card(notebook):
    """Also where the squares of a stack must not be data parallel."""
    assert fastest(16, stacks=True) == {"2D": 8} and fastest(512, stacks=True) == {"3D": 8}
    assert fastest(64, stacks=True) == {"2.5D": 5, "3D": 2, "2D": 1}
    assert fastest(64, stacks=False) == {"3D": 6, "2D": 2}
    told = "On 64 it is often 2.5D, or 3D if squares must not be data parallel."
    assert told in text_of(notebook, "card0001")


def test_the_comparison_with_one_line_favours_stacks(notebook):
    """Without them 1D would be the fastest on 8 ranks over NVLink 4 also at width 8,192."""
    seconds = layer_seconds(8, 8192, speeds("H100", "NVLink4"))
    assert seconds["2.5D, 2×2×2"] < seconds["1D"] < seconds["3D, 2×2×2"]
    told = "(This favours 2.5D, whose squares are data parallel.)"
    assert told in text_of(notebook, "grid0004")


def test_memory_of_the_groups_copies(notebook):
    """Weights and gradients in 2 bytes each, halved by a group of two, as the table has at 32k."""
    nbytes = 12 * 32_768**2 / 2 * (2 + 2)
    assert round(nbytes / 1e9) == 26
    assert "keeps 26 GB of weights and gradients for each layer on each rank." in text_of(
        notebook, "wins0004"
    )
    assert "2×2  -4" in winners.of_replicas(speeds("H100", "NVLink4")).splitlines()[1]


def test_what_each_rank_of_both_pictures_sends(notebook):
    cube, square = text_of(notebook, "cube0002"), shown(notebook, 'shards("2d"')
    assert "sent by all ranks: 218,103,808 bytes" in shown(notebook, 'shards("3d")')
    assert "sent by all ranks: 150,994,944 bytes" in square
    assert (round(218_103_808 / 8e6), round(150_994_944 / 4e6)) == (27, 38)
    assert "eight ranks sends 27 MB, and each of the square's four sends 38 MB." in cube
