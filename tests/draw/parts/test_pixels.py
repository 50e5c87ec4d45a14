"""Stills as pixels: sharp boxes, exact colours, small files, the same bytes every time."""

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lib.draw.parts import style
from lib.draw.parts.marks import Mark, Still
from lib.draw.parts.pixels import CROWDED, draw
from lib.draw.parts.png import png
from tests.every import every

BLUE, RED = style.COMPUTE["forward"], style.COMM["all_reduce"]


def pixels(*marks, dark=False, size=(100, 60)):
    image = Image.open(io.BytesIO(encoded(Still(list(marks), *size), dark)))
    return np.asarray(image.convert("RGB"))


def encoded(still, dark=False):
    shades = {style.PAPER} | {s for mark in still.marks for s in (mark.fill, mark.edge) if s}
    return png(draw(still, dark), [shade[dark] for shade in shades])


def rgb(shade, dark=False):
    return tuple(bytes.fromhex(shade[dark][1:]))


def is_(shade, image, dark=False):
    return (image == rgb(shade, dark)).all(-1)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_box_fills_whole_pixels_in_its_exact_colour(dark):
    image = pixels(Mark("box", 10.2, 20, 30.1, 8, fill=BLUE), dark=dark)
    assert image.shape == (120, 200, 3)
    inside = is_(BLUE, image, dark)
    rows, columns = np.flatnonzero(inside.any(1)), np.flatnonzero(inside.any(0))
    assert (rows[0], rows[-1], columns[0], columns[-1]) == (40, 55, 20, 80)
    assert inside.sum() == 16 * 61 and is_(style.PAPER, image, dark).sum() == 120 * 200 - 16 * 61


def test_a_sliver_is_seen_and_neighbours_touch():
    image = pixels(Mark("box", 10, 10, 0.01, 8, fill=BLUE))
    assert is_(BLUE, image).sum() == 16
    pair = pixels(Mark("box", 10, 10, 10.3, 8, fill=BLUE), Mark("box", 20.3, 10, 10, 8, fill=RED))
    assert not is_(style.PAPER, pair)[25, 20:60].any()


def test_what_comes_later_lies_on_top():
    under, over = Mark("box", 0, 0, 50, 50, fill=BLUE), Mark("box", 0, 0, 50, 50, fill=RED)
    assert is_(RED, pixels(under, over))[50, 50] and is_(BLUE, pixels(over, under))[50, 50]


def test_a_hatch_has_lines_and_paper_and_an_outline_has_gaps():
    image = pixels(Mark("box", 10, 10, 60, 40, hatch=True))[20:100, 20:140]
    dark = (image.sum(-1) < 600).mean()
    assert 0.1 < dark < 0.5
    full = is_(style.INK, pixels(Mark("box", 10, 10, 60, 40, edge=style.INK)))[20]
    gaps = is_(style.INK, pixels(Mark("box", 10, 10, 60, 40, edge=style.INK, dash=True)))[20]
    assert full[20:140].all() and 0.4 < gaps[20:140].mean() < 0.75


def test_oblique_lines_and_areas_are_smooth():
    line = pixels(Mark("line", edge=style.INK, points=((10, 10), (90, 50))))
    assert is_(style.INK, line).any() and len(np.unique(line.reshape(-1, 3), axis=0)) > 4
    square = ((10, 10), (60, 10), (60, 50), (10, 50))
    faint = pixels(Mark("area", fill=BLUE, points=square))[60, 70].astype(int)
    mixed = [p + (c - p) * 0.3 for p, c in zip(rgb(style.PAPER), rgb(BLUE))]
    assert np.abs(faint - mixed).max() <= 2
    assert is_(BLUE, pixels(Mark("area", fill=BLUE, points=square, alpha=1.0)))[60, 70]


@pytest.mark.parametrize(("align", "left"), [("left", 100), ("middle", 72), ("right", 45)])
def test_words_stand_where_they_are_told(align, left):
    image = pixels(Mark("text", 50, 30, fill=style.INK, text="rank", align=align))
    rows, columns = np.nonzero(image.sum(-1) < 300)
    assert columns.min() == pytest.approx(left, abs=6) and rows.mean() == pytest.approx(60, abs=3)


def test_rare_colours_stay_exact_among_many_letters():
    words = [Mark("text", 5 + 9 * i, 8 + 8 * j, fill=style.INK, text="g%")
             for i in range(10) for j in range(6)]  # fmt: skip
    image = pixels(*words, Mark("box", 90, 50, 1, 1, fill=RED))
    assert is_(RED, image).sum() == 4


def test_it_is_what_was_drawn_in_half_a_byte_for_a_pixel():
    random = np.random.default_rng(0)
    shades = [*style.COMPUTE.values(), *style.COMM.values()][:10]
    bars = [Mark("box", x + random.random(), 20 * y, 3, 15, fill=shades[random.integers(10)])
            for y in range(15) for x in range(0, 640, 3)]  # fmt: skip
    still = Still(bars, style.WIDTH, 300)
    text = encoded(still)
    assert text == encoded(still) and text[24] == 4  # bits, where the header says them
    image = Image.open(io.BytesIO(text))
    assert image.mode == "P"
    assert np.array_equal(np.asarray(image.convert("RGB")), np.asarray(draw(still, False)))


def test_flat_colours_that_lie_close_stay_exact():
    shades = [style.Shade(f"#{100 + n:02x}6478", "#000000") for n in range(6)]
    marks = [Mark("box", 9 * n, 0, 9, 9, fill=shade) for n, shade in enumerate(shades)]
    image = pixels(*marks)
    assert every(is_(shade, image).sum() == 18 * 18 for shade in shades)


def test_a_picture_of_many_colours_keeps_them():
    shades = [style.Shade(f"#{i:02x}{255 - i:02x}80", "#000000") for i in range(0, 250, 6)]
    marks = [Mark("box", 2 * i, 0, 2, 9, fill=shade) for i, shade in enumerate(shades)]
    image = pixels(*marks)
    assert every(is_(shade, image).sum() == 4 * 18 for shade in shades)
    noise = np.random.default_rng(0).integers(0, 256, (80, 90, 3), dtype=np.uint8)
    decoded = Image.open(io.BytesIO(png(Image.fromarray(noise), ["#000000"])))
    assert decoded.size == (90, 80)  # more colours than any palette holds


def test_a_crowded_picture_is_drawn_a_little_smaller():
    bars = [Mark("box", i % 640, i // 640 * 9, 0.6, 8, fill=BLUE) for i in range(CROWDED + 1)]
    assert draw(Still(bars, 640, 70), False).size == (960, 105)
    assert draw(Still(bars[1:], 640, 70), False).size == (1280, 140)


def test_a_still_is_drawn_without_matplotlib():
    code = (
        "import sys; from lib.draw import collective; collective('all_gather').png();"
        "sys.exit('matplotlib' in sys.modules)"
    )
    root = Path(__file__).parents[3]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, timeout=120).returncode == 0
