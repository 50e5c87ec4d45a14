"""Shards on a still: whose tile has which colour, what comes next, and what a choice needs."""

import re

import pytest

from lib.draw import shards
from lib.draw.parts import style
from lib.predict.tensor.products import KINDS, product_steps
from tests.draw.marks import boxes, texts
from tests.every import every

SIZES = (8, 16, 32)


def panels(picture, rank: int) -> dict[str, object]:
    """The tiles that a rank is drawn to hold: words about each, and its box."""
    return {mark.about.split(": ", 1)[1]: mark for mark in boxes(picture, f"rank {rank}: ")}


@pytest.mark.parametrize("kind", KINDS)
def test_each_rank_is_drawn_with_what_it_holds(kind):
    ranks = 4 if kind in ("column", "row", "2d") else 8
    plan = product_steps(kind, *SIZES, ranks)
    for step, state in enumerate(plan.states()):
        picture = shards(kind, *SIZES, step=step)
        for rank, tiles in enumerate(state):
            drawn = panels(picture, rank)
            assert len(drawn) == len(tiles)
            for (matrix, i, j), value in tiles.items():
                (words,) = [text for text in drawn if text.startswith(f"{matrix}, tile {i}, {j},")]
                part = matrix == "C" and len(value) < plan.cuts["K"]
                assert drawn[words].hatch == part == ("pending sum" in words)
                if matrix != "C":
                    assert drawn[words].fill == style.piece(value)


def test_what_comes_next_says_from_whom():
    picture = shards("row", *SIZES, step=1)
    rooms = boxes(picture, "comes next: ")
    assert len(rooms) == 4 and every(m.edge and not m.fill for m in rooms)
    assert rooms[0].about == "comes next: C, tile 0, 0, from ranks 1, 2, 3 to rank 0"
    assert not boxes(shards("row", *SIZES, step=2), "comes next: ")
    summa = [mark.about for mark in boxes(shards("2d", *SIZES), "comes next: ")]
    assert summa == ["comes next: A, tile 0, 0, from rank 0 to rank 1",
                     "comes next: A, tile 1, 0, from rank 2 to rank 3"]  # fmt: skip


def test_a_whole_matrix_shows_every_rank_that_holds_a_tile():
    picture = shards("2.5d", *SIZES)
    assert len(boxes(picture, "A, tile ")) == 8 and len(boxes(picture, "B, tile ")) == 4
    assert boxes(picture, "B, tile 0, 1: on ranks 1, 5")
    assert "A [M/(depth·row), K/column]" in texts(picture)


def test_a_matrix_that_all_ranks_have_whole_is_plain_and_says_so():
    picture = shards("column", *SIZES)
    (a,) = boxes(picture, "A: whole on every rank")
    assert a.fill is None and not boxes(picture, "A, tile ")
    words = [mark for mark in picture.marks if mark.kind == "text" and a.x < mark.x < a.x + a.w]
    inside = [mark.text for mark in words if a.y < mark.y < a.y + a.h]
    assert " ".join(inside) == "whole on every rank"
    (c,) = boxes(shards("row", *SIZES), "C: whole on every rank")
    assert c.fill is None and len(boxes(picture, "B, tile ")) == 4


def test_a_tile_on_some_ranks_has_their_stripes_and_the_picture_says_what_they_mean():
    words = "stripes in a tile: each of these ranks has the whole tile"
    picture = shards("2.5d", *SIZES)
    (tile,) = boxes(picture, "B, tile 0, 1: on ranks 1, 5")
    across, down = (tile.x, tile.x + tile.w), (tile.y, tile.y + tile.h)
    inside = lambda mark: across[0] <= mark.x < across[1] and down[0] <= mark.y < down[1]
    filled = [mark for mark in picture.marks if mark.kind == "box" and mark.fill]
    fills = {mark.fill for mark in filled if inside(mark)}
    assert fills == {style.piece(1), style.piece(5)} and words in texts(picture)
    assert words not in texts(shards("column", *SIZES)) and words not in texts(shards("2d", *SIZES))


def test_what_is_impossible_is_drawn_without_ranks():
    """Only A and B are known, and nobody holds a tile of C."""
    picture = shards("row", m=8, k=15, n=8)
    assert picture.summary.splitlines()[-1].startswith("  Impossible: ")
    assert boxes(picture, "C, tile 0, 0: on no rank") and not boxes(picture, "C: whole")


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_are_those_of_the_plan(kind):
    picture = shards(kind, *SIZES, itemsize=4)
    plan = product_steps(kind, *SIZES, 4 if kind in ("column", "row", "2d") else 8)
    total = 4 * sum(map(plan.sent, plan.steps))
    assert picture.summary.splitlines()[-1] == f"  sent by all ranks: {total:,} bytes"
    held = [4 * sum(plan.numel(tile[0]) for tile in tiles) for tiles in next(plan.states())]
    shown = [re.search(r"holds (.+)", text) for text in texts(picture)]
    assert [one[1] for one in shown if one] == [style.amount(nbytes, "B") for nbytes in held]


def chosen(picture, a: str, b: str, way: str = "line") -> dict:
    """What the reader sees who chooses these splits."""
    return picture.live[1]["products"][way][f"{a}|{b}"]


def test_every_choice_says_what_it_needs_or_why_it_cannot_be():
    picture = shards()
    verdict = lambda *choice: chosen(picture, *choice)["verdict"]
    assert verdict(" ", " ") == (
        "No collective is needed. Each rank multiplies everything, so nothing is saved."
    )
    assert "an all_reduce over tp must add the parts" in verdict(" tp", "tp ")
    assert "So an all_gather of B over tp must come first." in verdict("tp ", "tp ")
    assert verdict("tp tp", " ").startswith("Impossible: Axis tp cannot split both dims of A")
    both = verdict("row column", "row column", "square")
    assert "an all_gather of A over column and an all_gather of B over row" in both
    for way, options in picture.live[1]["splits"].items():
        keys = [f"{a}|{b}" for a, _ in options for b, _ in options]
        assert keys and sorted(keys) == sorted(picture.live[1]["products"][way])


def test_sizes_that_do_not_divide_are_impossible_in_a_sentence():
    picture = shards(m=8, k=16, n=8, ranks=3)
    assert (
        "Dim 1 of B has 8 entries; 3 ranks along tp cannot share them equally."
        in (chosen(picture, " ", " tp")["verdict"])
    )
    assert "Impossible" in picture.summary
    assert "No collective" in chosen(picture, " ", " ")["verdict"]
    odd = shards("2d", m=7).live[1]["products"]["2d"]["|"]
    assert odd["verdict"].startswith("Impossible: Dim 0 of A has 7 entries; 2 ranks along row")


def test_the_words_follow_the_steps():
    assert shards("row", *SIZES).summary.splitlines() == [
        "A [M, K/tp] · B [K/tp, N] -> C [M, N] on 4 ranks",
        "  Each rank has a part of every sum over K, so an all_reduce over tp must add the parts. "
        "Each rank does 1/4 of the multiplications.",
        "  1. multiply: C [M, N] +tp",
        "  2. all_reduce C over tp: the parts are added, now C [M, N] (0 → 1, 2, 3: C; "
        "1 → 0, 2, 3: C; 2 → 0, 1, 3: C; 3 → 0, 1, 2: C)",
        "  sent by all ranks: 3,072 bytes",
    ]
    assert "(0 → 1: A[0, 0]; 2 → 3: A[1, 0])" in shards("2d", *SIZES).summary


HIDDEN = "y [S, F] · W₂ [F, D] -> z [S, D]"


def every_text(given):
    """All texts in lists and dicts."""
    if isinstance(given, str):
        yield given
    elif isinstance(given, dict | list):
        for one in given.values() if isinstance(given, dict) else given:
            yield from every_text(one)


def test_matrices_and_dims_are_called_as_the_reader_knows_them():
    usual, picture = shards("row", *SIZES, step=1), shards("row", *SIZES, step=1, names=HIDDEN)
    data = picture.live[1]
    assert data["names"] == ["y", "W₂", "z"] and data["inner"] == "F"
    assert picture.summary.startswith("y [S, F/tp] · W₂ [F/tp, D] -> z [S, D] on 4 ranks")
    assert "every sum over F" in picture.summary and "1 → 0, 2, 3: z;" in picture.summary
    assert "for S = 8, F = 16, D = 32 and" in picture.caption
    assert {"y", "W₂", "z", "y [S, F/tp]"} <= set(texts(picture))
    (sums,) = boxes(picture, "comes next: z, tile 0, 0, from ranks 1, 2, 3 to rank 0")
    assert boxes(picture, "rank 0: z, tile 0, 0, a pending sum: 1 of 4 pieces of F") and sums
    assert [len(mark.points) for mark in picture.marks] == [len(m.points) for m in usual.marks]
    left = re.compile(r"(?<!\w)(?<!\d )[ABCMKN](?!\w)")  # 832 B are bytes
    said = [*every_text(data["products"]), *texts(picture), data["caption"]]
    assert len(said) > 100 and [text for text in said if left.search(text)] == []
    sentences = [text for text in every_text(usual.live[1]["products"]) if left.search(text)]
    an_article = re.compile(r"(^|[.:] )A (?!is whole|and B)[a-z]")
    assert sentences and not any(map(an_article.search, sentences)), "A is a matrix in all of them"


def test_a_grid_whose_axis_is_called_like_a_matrix_is_left_out():
    ways = lambda **options: [way for way, _ in shards(**options).live[1]["ways"]]
    assert ways() == ["line", "square", "2d", "2.5d", "3d"]
    assert ways(names="x [M, K] · W [K, N] -> y [M, N]") == ["line", "square", "2d", "2.5d"]


def test_the_caption_says_what_the_numbers_are():
    caption = shards(caption="An up-projection").caption
    assert caption.startswith("Predicted: bytes counted from the tiles, for M = 2,048")
    assert "Nothing was run" in caption and caption.endswith("An up-projection.")


@pytest.mark.parametrize("kind", KINDS)
def test_everything_is_inside_and_small(kind):
    drawn = shards(kind, *SIZES, ranks=8)
    for mark in drawn.marks:
        for x, y in mark.points or [(mark.x, mark.y), (mark.x + mark.w, mark.y + mark.h)]:
            assert -0.1 <= x <= drawn.width + 0.1 and -0.1 <= y <= drawn.height + 0.1, mark
    assert len(drawn.png()) < 80_000


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: shards("diagonal"), "No product is called 'diagonal'. Choose one of 'column'"),
        (lambda: shards(ranks=9), "A line of 9 ranks cannot be drawn: 2 to 8 ranks can be."),
        (lambda: shards(step=2), "This product has 1 steps, so there is no step 2."),
        (lambda: shards(names="A · B"), "'A · B' is no such product."),
        (lambda: shards(names="A [M, K] · B [L, N] -> C [M, N]"), "is no such product."),
        (lambda: shards(names="A [M, K] · A [K, N] -> C [M, N]"), "each in its own way"),
        (lambda: shards("3d", names=HIDDEN), "is the name of an axis of '3d' already."),
        (lambda: shards(itemsize=0), "itemsize must be a whole number of at least 1"),
    ],
)
def test_bad_input_is_told_in_a_sentence(call, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        call()
