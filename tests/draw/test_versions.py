"""The grid of weight versions: a cell for each stage and microbatch; where two differ, both."""

import pytest

from lib.draw import versions
from lib.predict.pipeline.schedules import pipedream
from lib.predict.pipeline.versions import weight_versions
from tests.every import every


def boxes(picture):
    return [mark for mark in picture.marks if mark.kind == "box"]


def test_every_cell_says_what_its_microbatch_sees():
    seen = weight_versions(pipedream(4, 12), "stashing")
    picture = versions(seen)
    cells = boxes(picture)
    assert len(cells) == 48
    for mark, (stage, j) in zip(cells, ((s, j) for s in range(4) for j in range(12))):
        assert mark.about.startswith(f"stage {stage}, microbatch {j}: forward sees version ")
        assert f"version {seen[stage][j].forward}," in mark.about
    assert str(picture).splitlines()[1] == "  stage 0: 0 0 0 0 1 2 3 4 5 6 7 8"
    assert {mark.x for mark in cells[:12]} == {mark.x for mark in cells[12:24]}


def test_where_forward_and_backward_differ_both_are_written_in_a_frame():
    picture = versions(weight_versions(pipedream(4, 12), "latest"))
    framed = [mark for mark in boxes(picture) if mark.edge]
    assert len(framed) == 3 * 11 and "backward 3" in framed[2].about
    assert "0|3" in {mark.text for mark in picture.marks}
    assert not any(mark.edge for mark in boxes(picture)[36:])


@pytest.mark.parametrize("many", [1, 12, 40])
def test_it_stays_inside_the_page(many):
    picture = versions(weight_versions(pipedream(2, many), "stashing"))
    assert every(m.x >= 0 and m.x + m.w <= picture.width <= 640 for m in picture.marks)


@pytest.mark.parametrize(
    ("seen", "words"),
    [([], "a row for each stage"), ([[]], "a row for each stage"),
     ([[(0, 0)], []], "a row for each stage"), ([[(0, 0)] * 41], "41 microbatches do not fit")],
)  # fmt: skip
def test_bad_input_is_told_in_a_sentence(seen, words):
    with pytest.raises(ValueError, match=words):
        versions(seen)
