"""Stages as bars: as long as their time, made of their layers."""

import pytest

from lib.draw import partition
from lib.predict.pipeline.cuts import Layer, Partition, equal, exact

LAYERS = [3, 1, 1, 1, 1, 1, 1, 6]


def lengths(picture, made):
    """The length of each bar, in pixels, from its layers' boxes."""
    boxes = [mark for mark in picture.marks if mark.kind == "box"]
    found, at = [], 0
    for stage in made.stages:
        count = stage.last - stage.first
        found.append(sum(mark.w for mark in boxes[at : at + count]))
        at += count
    return found


def test_bars_are_as_long_as_the_time_of_their_stage():
    made = equal(LAYERS, 4)
    picture = partition(LAYERS, ("equal", made), unit="")
    bars = lengths(picture, made)
    assert [bar / max(bars) for bar in bars] == pytest.approx([4 / 7, 2 / 7, 2 / 7, 1])
    assert "equal: slowest stage 7: 0:2 | 2:4 | 4:6 | 6:8" in str(picture)


def test_two_ways_lie_on_one_scale():
    one, two = equal(LAYERS, 4), exact(LAYERS, 4)
    picture = partition(LAYERS, ("equal", one), ("exact", two), unit="")
    upright = [m for m in picture.marks if m.kind == "line" and m.points[0][0] == m.points[1][0]]
    lines = [m.points[0][0] for m in upright if m.points[1][1] - m.points[0][1] > 50]  # no ticks
    left = min(mark.x for mark in picture.marks if mark.kind == "box")
    assert len(lines) == 2 and (lines[1] - left) / (lines[0] - left) == pytest.approx(6 / 7)


def test_replicas_shorten_a_bar_and_are_told():
    layers = [Layer(2.0), Layer(2.0), Layer(4.0)]
    made = Partition.read("0:2 x2 | 2:3 /2")
    picture = partition(layers, ("two by two", made), names=["a", "b", "c"], unit="")
    assert lengths(picture, made)[0] > lengths(picture, Partition.read("0:1 | 1:2 | 2:3"))[0]
    assert any(mark.about == "a: 50% of stage 0:2 x2, on 2 ranks" for mark in picture.marks)
    assert "slowest stage 4" in str(picture)  # one channel cannot be shared


@pytest.mark.parametrize(
    ("call", "words"),
    [(lambda: partition([1, 2]), "nothing to draw"),
     (lambda: partition([1, 2], ("e", equal([1, 2], 2)), names=["a"]), "1 names are given for 2")],
)  # fmt: skip
def test_bad_input_is_told_in_a_sentence(call, words):
    with pytest.raises(ValueError, match=words):
        call()
