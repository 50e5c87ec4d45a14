"""Blocks of attention on a still: whose they are, in which step, and how long each rank takes."""

import re

import pytest

from lib.draw import attention_blocks
from lib.draw.parts import style
from lib.predict.sequence import blocks
from tests.draw.marks import boxes, swatch, texts, tint
from tests.every import every

DOCUMENTS = (0, 700, 1500, 1600, 4096)


def block_marks(picture, rank: int, step: int) -> list:
    """The blocks that a rank is drawn to compute in a step, in the matrix."""
    start = f"rank {rank}, step {step}: queries "
    return [mark for mark in picture.marks if mark.about.startswith(start)]


def planned(layout, ranks, documents=None):
    return blocks.ring_blocks(4096, ranks, layout, documents)


@pytest.mark.parametrize("documents", [None, DOCUMENTS], ids=["one", "packed"])
@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("layout", ["contiguous", "zigzag"])
def test_each_block_lies_where_its_queries_and_keys_are(layout, ranks, documents):
    picture = attention_blocks(layout, ranks=ranks, documents=documents)
    frame = next(mark for mark in picture.marks if mark.kind == "box")
    for number, step in enumerate(planned(layout, ranks, documents)):
        for rank, own in enumerate(step):
            marks = block_marks(picture, rank, number)
            assert len(marks) == len(own)
            for mark, block in zip(marks, own):
                assert mark.fill == style.piece(rank)
                unit, about = frame.w / 4096, mark.about
                assert f"{block.scores:,} score" in about and ("masked" in about) == block.masked
                if block.masked:
                    assert mark.kind == "area" and len(mark.points) == 3
                    (x, y) = mark.points[0]
                else:
                    x, y = mark.x, mark.y
                    assert mark.w == pytest.approx(unit * len(block.keys), abs=0.01)
                assert x == pytest.approx(frame.x + unit * block.keys.start, abs=0.01)
                assert y == pytest.approx(frame.y + unit * block.queries.start, abs=0.01)


def test_what_is_to_come_is_pale():
    picture = attention_blocks("contiguous", step=2)
    assert every(mark.fill == style.piece(3) for mark in block_marks(picture, 3, 1))
    pale = tint(style.piece(3), 0.22)
    assert every(mark.fill == pale for mark in block_marks(picture, 3, 2))
    assert swatch(picture, "to come").fill == tint(style.piece(0), 0.22)


def test_the_bars_are_as_long_as_the_scores_and_waits_are_hatched():
    picture = attention_blocks("contiguous")
    run = blocks.play_ring(blocks.work(planned("contiguous", 4)))
    first, last = (sum(mark.w for mark in boxes(picture, f"rank {rank}, step ") if mark.h == 18)
                   for rank in (0, 3))  # fmt: skip
    assert last / first == pytest.approx(run.span / run.ends[0][0])
    waits = boxes(picture, "rank 0 waits")
    assert sum(mark.w for mark in waits) == pytest.approx(last - first)
    assert every(mark.hatch for mark in waits) and not boxes(picture, "rank 3 waits")
    assert f"{run.span:,} scores one after the other" in texts(picture)


def test_all_layouts_have_one_scale():
    """A bar of zigzag is shorter than the longest of contiguous, as its time is."""
    longest = {}
    for layout in ("contiguous", "zigzag", "heads"):
        marks = [m for m in boxes(attention_blocks(layout), "rank 3, step ") if m.h == 18]
        longest[layout] = sum(mark.w for mark in marks)
    spans = [
        blocks.play_ring(blocks.work(planned(layout, 4))).span
        for layout in ("contiguous", "zigzag")
    ]
    assert longest["zigzag"] / longest["contiguous"] == pytest.approx(spans[1] / spans[0])
    assert longest["heads"] == pytest.approx(longest["zigzag"])


def test_split_by_heads_each_rank_has_all_tokens():
    picture = attention_blocks("heads", ranks=2)
    triangles = [mark for mark in picture.marks if mark.kind == "area"]
    assert [mark.fill for mark in triangles] == [style.piece(0), style.piece(1)]
    assert "heads of rank 1" in texts(picture)


def test_the_words_say_what_the_numbers_are():
    picture = attention_blocks("contiguous")
    assert picture.caption.startswith("Predicted: scores of one head, of 4,096")
    assert picture.caption.endswith("Nothing was run.")
    assert "Ranks compute 57 % of the time until the last one ends." in str(picture)
    assert re.search(r"rank 0: 524,800, 0, 0, 0 scores", str(picture))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: attention_blocks("striped"), "No layout is called 'striped'"),
        (lambda: attention_blocks(ranks=3), "Blocks of 3 ranks cannot be drawn"),
        (lambda: attention_blocks(step=5), "This attention has 4 steps, so there is no step 5."),
        (lambda: attention_blocks(documents=[0, 9000]), "do not fit a sequence of 4096 tokens"),
        (lambda: attention_blocks(sequence=100), "A sequence has 100 tokens"),
    ],
)
def test_what_cannot_be_drawn_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()
