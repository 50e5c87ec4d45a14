"""The SVG that plays by itself: a head along the time axis, and the picture under it unchanged."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from lib.course.tools.book import ROOT
from lib.draw import collective, timeline
from lib.draw.parts.animated_svg import playing
from lib.predict.pipeline.play import play
from lib.predict.pipeline.schedules import gpipe

COVER = ROOT / "chapters/images/slow-motion.svg"


def test_the_head_goes_from_the_first_to_the_last_moment():
    picture = timeline(play(gpipe(4, 4)).ledger)
    text = playing(picture, 6)
    ElementTree.fromstring(text)
    bars = [mark for mark in picture.marks if mark.kind == "box" and "rank" in mark.about]
    first, last = min(bar.x for bar in bars), max(bar.x + bar.w for bar in bars)
    (way,) = re.findall(r"translateX\((\d[\d.]+)px\)", text)
    (start,) = re.findall(r'class="later" x="([\d.]+)"', text)
    assert float(start) == pytest.approx(first, abs=1)
    assert float(start) + float(way) == pytest.approx(last, abs=1)
    assert "animation:sweep 6s linear forwards" in text and "prefers-reduced-motion" in text


def test_what_is_under_it_is_the_picture():
    picture = timeline(play(gpipe(2, 2)).ledger)
    assert playing(picture).startswith(picture.svg().removesuffix("</svg>\n"))


@pytest.mark.parametrize(
    ("make", "words"),
    [(lambda: playing(collective("all_reduce")), "no time axis"),
     (lambda: playing(timeline(play(gpipe(2, 2)).ledger), 0), "more than 0 s")],
)  # fmt: skip
def test_bad_input_is_told_in_a_sentence(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_the_readmes_picture_stands_still_before_five_seconds_have_passed():
    """What moves for longer needs a way to stop it (WCAG 2.2.2), and an image has none."""
    (seconds,) = re.findall(r"animation:sweep ([\d.]+)s linear forwards", COVER.read_text("utf-8"))
    assert 2 < float(seconds) < 5
