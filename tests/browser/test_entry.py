"""A line of text that is entered: what refuses it stands beside it; numbers get a phone's keys."""

import pytest

from lib.draw import bits, guess
from tests.browser.same import crowded

ASKED = {
    "bits": (lambda width: bits(), "Number", "Show"),
    "guess": (
        lambda width: guess(f"{width} of them?", unit="bytes"),
        "Your guess (bytes)",
        "Enter",
    ),
}


@pytest.mark.parametrize("width", [304, 640, 1176])
@pytest.mark.parametrize("kind", ASKED)
def test_what_refuses_an_entry_stands_at_its_field_and_is_read_with_it(bench_page, kind, width):
    make, label, action = ASKED[kind]
    seen = bench_page(make(width), width)
    field = seen.control(label)
    assert seen.wrong == "" and field.get_attribute("aria-invalid") is None
    field.fill("much")
    seen.control(action).click()
    seen.settle()
    assert field.input_value() == "much", "it stands there to be mended"
    assert seen.wrong.startswith("“much” is not a number: write ") and "much" not in seen.status
    assert field.get_attribute("aria-invalid") == "true"
    sentence = seen.node.locator(f"#{field.get_attribute('aria-describedby')}")
    assert sentence.inner_text() == seen.wrong and sentence.get_attribute("role") == "alert"
    here, there = field.bounding_box(), sentence.bounding_box()
    button = seen.control(action).bounding_box()
    assert abs(here["y"] - button["y"]) < 6, "the button stands beside its field"
    below = there["y"] - here["y"] - here["height"]  # negative where it stands beside the field
    assert -40 < below < 12 and there["x"] + there["width"] <= width + 24
    field.fill("12")
    field.press("Enter")
    seen.settle()
    assert seen.wrong == "" and field.get_attribute("aria-invalid") is None
    assert field.get_attribute("aria-describedby") is None
    assert not crowded(seen)


def test_no_two_fields_are_described_by_one_sentence(bench_page):
    """Two pictures on a page may have come with a text each, which knows nothing of the other."""
    first, second = (bench_page(bits()).node.locator(".mrom-wrong").get_attribute("id")
                     for _ in range(2))  # fmt: skip
    assert first and second and first != second


def test_a_phone_shows_digits_for_a_guess(bench_page):
    question = bench_page(ASKED["guess"][0](1))
    assert question.control(ASKED["guess"][1]).get_attribute("inputmode") == "decimal"


def test_a_phone_whose_numbers_have_a_comma_keeps_the_keys_that_have_a_point(other_bench):
    """A guess of 3.5 is written with a point, and 3,5 is refused."""
    question = other_bench(ASKED["guess"][0](1), 304, locale="de-DE")
    assert question.control(ASKED["guess"][1]).get_attribute("inputmode") is None


def test_a_number_with_a_sign_and_a_power_keeps_all_keys(bench_page):
    """Digits and a point alone cannot write 2^-24 or 1/3, which its field asks for."""
    field = bench_page(bits()).control("Number")
    assert field.get_attribute("inputmode") is None and "2^-24" in field.get_attribute(
        "placeholder"
    )
