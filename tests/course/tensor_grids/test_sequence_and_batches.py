"""What chapter 5 says of 1D with sequence parallelism, and of batches with fewer tokens."""

import re

import pytest

from lib.course.tensor_grids import lessons, winners
from lib.predict.collectives.exchange import sent_bytes
from lib.predict.roofline import speeds
from lib.predict.shape import GPTShape
from lib.predict.tensor import grid_memory, memory, sequence
from lib.predict.tensor.grids import RankGrid
from lib.predict.tensor.where_each_wins import layer_seconds, replicated_seconds
from tests.course.stored_chapter import shown, stored_chapter
from tests.every import every

LINKS = ("NVLink4", "InfiniBand NDR")


@pytest.fixture(scope="module")
def notebook():
    return stored_chapter("05-tensor-grids")


def text_of(notebook, cell_id: str) -> str:
    return next(cell.source for cell in notebook.cells if cell.id == cell_id)


def test_with_sequence_parallelism_1d_keeps_less_than_the_square_and_sends_more(notebook):
    sizes = (lessons.SHAPE, 4, lessons.SAMPLES)
    kept = sequence.activations(*sizes, itemsize=8)
    square = grid_memory.activations(lessons.SHAPE, RankGrid("2d", 2), lessons.SAMPLES, itemsize=8)
    assert 0.98 * square < kept < square < memory.activations(*sizes, itemsize=8) / 2
    sent = sent_bytes(sequence.of_step(*sizes, itemsize=8))
    of_square = re.search(r"2D, 2×2 .*", shown(notebook, "lessons.compared"))[0].split()[5]
    assert round(100 * sent / int(of_square.replace(",", ""))) == 120
    (line,) = re.findall(r"1D, with SP .*", shown(notebook, "lessons.compared"))
    assert line.split()[5:7] == [f"{kept:,}", f"{sent:,.0f}"]
    text = text_of(notebook, "grid0004")
    assert "1D with sequence parallelism keeps slightly less. But it sends 20 % more than" in text


def test_what_gpt_3_keeps_on_16_ranks(notebook):
    """With a vocabulary that 16 ranks can divide."""
    shape = GPTShape(vocabulary=50_304, sequence=2048, width=12_288, heads=96, layers=96)
    with_sequence = sequence.activations(shape, 16, 16, itemsize=2)
    square = grid_memory.activations(shape, RankGrid("2d", 4), 16, itemsize=2)
    assert with_sequence == pytest.approx(square, rel=1e-3)
    assert f"{with_sequence / 1e9:.1f}" == f"{square / 1e9:.1f}" == "77.5"
    told = "keeps as many activations on each of 16 ranks as a square, 77.5 GB."
    assert told in text_of(notebook, "wins0004")
    card = text_of(notebook, "card0001")
    assert "With sequence parallelism, 1D keeps about as few activations as a square." in card


def with_sequence(ranks: int, width: int, at) -> list[tuple[float, float]]:
    """Return the seconds of 1D × data with sequence parallelism and nothing of it hidden.

    Forward gathers and scatters twice; backward gathers four times and scatters twice. Gives for
    each pair of sizes the seconds if the gradients' all_reduce is exposed, and if it is overlapped.
    """
    times = []
    for (size, groups), plain in replicated_seconds(ranks, width, at).items():
        whole = 2 * 64 * 2048 // groups * width
        gather, scatter = (at.moving(op, size, whole) for op in ("all_gather", "reduce_scatter"))
        products = plain.forward - 2 * at.moving("all_reduce", size, whole)
        forward = products + 2 * (gather + scatter)
        backward = 2 * products + 2 * (2 * gather + scatter)
        times.append((forward + backward + plain.sums, forward + max(backward, plain.sums)))
    return times


def test_1d_with_sequence_parallelism_beside_grids(notebook):
    exposed, overlapped = [], []
    for link in LINKS:
        h100 = speeds("H100", link)
        for ranks in winners.MANY_RANKS:
            for width in winners.LARGE_WIDTHS:
                seconds = layer_seconds(ranks, width, h100)
                grid = min(time for name, time in seconds.items() if name != "1D")
                apart, beside = zip(*with_sequence(ranks, width, h100))
                exposed.append(min(apart) < grid)
                overlapped.append(min(beside) < grid)
    assert len(overlapped) == 40 and every(overlapped) and exposed.count(False) == 7
    text = text_of(notebook, "wins0004")
    overlap, bytes_more = re.findall(r"^\* \*\*(?:Overlap|More bytes)\..*", text, re.M)
    assert overlap.endswith("or with sequence parallelism.")
    assert "in 7 with gradients in 4 bytes or with sequence parallelism." in bytes_more


def test_with_fewer_tokens_1d_wins_more_often(notebook):
    """In the places of 8 and 16 ranks; on 16 over InfiniBand at every width."""
    wins = {}
    for link in LINKS:
        for batch in (8, 16, 64):
            for ranks in (8, 16):
                for width in winners.LARGE_WIDTHS:
                    seconds = layer_seconds(ranks, width, speeds("H100", link), batch)
                    wins[link, batch, ranks, width] = min(seconds, key=seconds.get) == "1D"
    count = lambda tokens: sum(won for key, won in wins.items() if key[1] * 2048 == tokens)
    assert count(16_384) > count(32_768) > count(131_072)
    few = [won for (link, batch, ranks, _), won in wins.items()
           if link == "InfiniBand NDR" and (batch, ranks) == (8, 16)]  # fmt: skip
    assert len(few) == 4 and every(few)
    text = text_of(notebook, "wins0002")
    assert "With fewer tokens 1D wins more often, because a grid also sends weights." in text


def test_how_few_tokens_are_few_for_a_square(notebook):
    """The limit falls from 5·D at width 4,096 to 2·D at 32,768."""
    h100 = speeds("H100", "InfiniBand NDR")
    for batch in (8, 16, 32, 64):
        for width in winners.LARGE_WIDTHS:
            seconds, tokens = layer_seconds(16, width, h100, batch), batch * 2048
            ratio = seconds["2D, 4×4"] / seconds["1D"]
            if tokens <= width:
                assert ratio > 1.3
            elif tokens <= 2 * width:
                assert ratio > 0.97
            elif tokens >= 8 * width:
                assert ratio < 0.9
    for width, below in ((4096, 5), (32_768, 2)):
        for batch in range(4, 65, 4):
            seconds = layer_seconds(16, width, h100, batch)
            few = batch * 2048 < below * width
            assert (seconds["1D"] < seconds["2D, 4×4"]) == few
    told = "(on 4 × 4 over InfiniBand, below about 5·D at width 4,096 and 2·D at 32,768)"
    assert told in text_of(notebook, "card0001")
    assert 4 * max(winners.LARGE_WIDTHS) == 64 * 2048
    tables = "The tables of *Where does each win?* have 4·D tokens or more."
    assert tables in text_of(notebook, "card0001")
