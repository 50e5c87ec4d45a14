"""The living picture of bits: flipped, typed, stepped and taken from the chart, it is the still."""

import math

import pytest

from lib.draw import bits
from lib.draw.bits import FORMATS
from tests.browser.same import crowded, same

COUNTS = {power: 40 - abs(power + 24) for power in range(-50, 2)}


def choose(seen, label: str, text: str) -> None:
    """Chooses an entry of a list by its words."""
    seen.control(label).select_option(text)
    seen.settle()


def write(seen, text: str) -> None:
    """Types a number and shows it."""
    seen.control("Number").fill(text)
    seen.control("Show").click()
    seen.settle()


def click(seen, identity: str) -> None:
    """Presses the mark with this id."""
    mark = next(m for m in seen.marks if m.get("id") == identity)
    seen.canvas.click(position=seen.place(mark))
    seen.settle()


@pytest.mark.parametrize("width", [304, 640, 1176])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_fits_any_width(bench_page, width, dark):
    seen = bench_page(bits(exponents=COUNTS, scale=2**8, what="gradients"), width, dark=dark)
    seen.screenshot(f"bits-{width}-{'dark' if dark else 'light'}")
    assert crowded(seen) == []


@pytest.mark.parametrize("width", [304, 640])
def test_every_format_fits_beside_every_kind_of_number(bench_page, width):
    seen = bench_page(bits(exponents=COUNTS, what="gradients"), width)
    for name in FORMATS:
        choose(seen, "Format", name)
        for other in ("none", "FP32", "E2M1"):
            choose(seen, "Beside it", other)
            for number in ("0.1", "-1/3", "3e-7", "70000", "0", "nan"):
                write(seen, number)
                assert crowded(seen) == [], (name, other, number)


def test_a_bit_is_flipped_by_a_click_and_by_the_keyboard(bench_page):
    seen = bench_page(bits(1.0, "fp16", "bf16"), 640)
    assert seen.status.startswith("Press a bit to flip it")
    click(seen, "bit 6")
    assert seen.status == "1.5 is exact in FP16 and in BF16."
    same(seen, bits(1.5, "fp16", "bf16"))
    assert seen.press("Home").startswith("FP16, a bit of the sign: 0")
    seen.press("Enter")
    same(seen, bits(-1.5, "fp16", "bf16"))
    assert seen.press("ArrowRight").startswith("FP16, a bit of the exponent: 0 1 is worth 16")
    seen.press(" ")
    assert math.isnan(seen.state["number"])
    assert seen.ask("p => p.laid.summary").startswith("bits: NaN in FP16 is 1 11111 1000000000")


def test_the_bits_of_a_special_stay_as_they_were_made(bench_page):
    seen = bench_page(bits(math.inf, "fp16", None), 640)
    click(seen, "bit 15")
    assert seen.ask("p => p.laid.summary").startswith("bits: NaN in FP16 is 0 11111 0000000001")
    choose(seen, "Format", "E4M3")
    assert seen.ask("p => p.laid.summary").startswith("bits: NaN in E4M3 is 0 1111 111")


def test_a_number_that_is_typed_is_the_still_of_it(bench_page):
    seen = bench_page(bits(), 640)
    typed = {
        "0.3": 0.3, "2^-24": 2.0**-24, "-2^-24": -(2.0**-24), "1/3": 1 / 3, "65,504": 65504,
        "3 * 2^-20": 3 * 2.0**-20, "−1e-3": -1e-3, "inf": math.inf, "-inf": -math.inf,
    }  # fmt: skip
    for text, number in typed.items():
        write(seen, text)
        same(seen, bits(number))
        assert seen.ask("p => p.laid.summary") == bits(number).summary
    for wrong in ("much", "", "1 MB", "--1", "1,5"):
        before = seen.state["number"]
        write(seen, wrong)
        assert seen.wrong == f"“{wrong}” is not a number: write 0.1, 2^-24, 1/3, 65,504 or inf."
        assert seen.state["number"] == before


def test_the_number_stays_where_the_format_is_changed(bench_page):
    seen = bench_page(bits(0.1, "e4m3", None), 640)
    choose(seen, "Format", "FP32")
    choose(seen, "Beside it", "BF16")
    same(seen, bits(0.1, "fp32", "bf16"))


def test_the_next_number_is_gone_to_by_button_and_by_key(bench_page):
    seen = bench_page(bits(6, "e2m1", None), 640)
    assert seen.control("Next above").is_disabled()
    for number in (4, 3, 2, 1.5, 1, 0.5, 0, -0.5):
        seen.control("Next below").click()
        seen.settle()
        assert seen.state["number"] == number
    seen.press("+")
    seen.press("+")
    assert seen.state["number"] == 0.5
    seen.press("-")
    same(seen, bits(0.0, "e2m1", None))
    seen = bench_page(bits(1e9, "fp16", None), 640)
    seen.press("-")
    assert seen.state["number"] == 65504, "below infinity is the largest number"


def test_a_number_is_taken_from_the_chart_and_dragged_along_it(bench_page):
    seen = bench_page(bits(-0.1, "bf16", None), 640)
    axis = seen.ask("p => ({ ...p.laid.axis, at: p.laid.axis.powerAt(400) })")
    seen.canvas.click(position={"x": 400, "y": (axis["top"] + axis["bottom"]) / 2})
    seen.settle()
    number = seen.state["number"]
    assert number < 0 and math.log2(-number) == pytest.approx(axis["at"], abs=0.02)
    mark = {"x": 400, "y": axis["top"] + 20, "w": 0, "h": 0}
    seen.drag(mark, 50)
    assert math.log2(seen.state["number"] / number) == pytest.approx(
        50 * (axis["at"] - seen.ask("p => p.laid.axis.powerAt(399)")), abs=0.05
    )


def test_the_loss_scale_is_turned(bench_page):
    seen = bench_page(bits(exponents=COUNTS, what="gradients"), 640)
    for power in (1, 7, 16, 24):
        seen.slide("Loss scale", power)
        still = bits(exponents=COUNTS, what="gradients", scale=2**power)
        same(seen, still)
        assert seen.ask("p => p.laid.summary") == still.summary
        assert crowded(seen) == []
    bar = next(m for m in seen.marks if m.get("id") == "power -24")
    assert seen.hover(bar) == "2⁰ to 2¹: 40 numbers, 2.8 %\nnormal"
    assert not bench_page(bits(), 640).control("Loss scale").is_visible()


@pytest.mark.parametrize("host", ["running", "in_book"])
def test_it_is_flipped_where_readers_are(request, host):
    """In JupyterLab with a kernel, and in the book from a file."""
    seen = request.getfixturevalue(host)("bits")
    before = seen.state["number"]
    click(seen, "bit 0")
    assert seen.state["number"] == -0.3125 and before == 0.3
    write(seen, "2.6")
    assert seen.state["number"] == 2.6
