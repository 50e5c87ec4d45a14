"""Questions and reveals as text and as a still; the browser's side is in tests/browser."""

import re

import numpy as np
import pytest
import torch

from lib.draw import guess
from lib.draw.guess import in_units
from lib.draw.parts import style
from tests.draw.marks import texts

ASKED, TOLD = style.COMPUTE["forward"], style.COMPUTE["backward for weights"]
HOW_MANY = "How many bytes does rank 0 send?"


def test_a_question_says_what_is_asked_and_how_to_answer():
    size = guess(HOW_MANY, unit="bytes")
    assert repr(size) == f"{HOW_MANY}\nEnter your guess (bytes) before you read on."
    assert texts(size) == repr(size).split("\n")
    assert size.live == ("guess", {
        "question": HOW_MANY, "unit": "bytes", "choices": [],
        "hint": "Enter your guess (bytes) before you read on.",
    })  # fmt: skip
    assert guess("How many?").summary.endswith("\nEnter your guess before you read on.")


def test_choices_are_named_in_their_order():
    who = guess("Which rank waits?", choices=["rank 0", "rank 1", 2])
    assert who.summary.endswith("Choose one before you read on: rank 0, rank 1, 2.")


def test_a_reveal_tells_the_answer_and_hides_it_from_the_question():
    size = guess(HOW_MANY, unit="bytes")
    shown = size.reveal(3_000_000)
    assert repr(shown) == f"{HOW_MANY}\nIt is 3,000,000 bytes."
    assert shown.live[1]["answer"] == 3_000_000
    assert "answer" not in size.live[1] and "3,000,000" not in str(size.live)


def test_the_still_of_a_reveal_is_covered():
    """The answer does not stand on the same screen as the empty box for a guess."""
    for shown, answer in (
        (guess(HOW_MANY, unit="bytes").reveal(3_000_000), "3,000,000"),
        (guess("Which?", choices=["rank 0", "rank 1"]).reveal("rank 1"), "rank 1"),
    ):
        told = " ".join([*texts(shown), *(mark.about for mark in shown.marks)])
        assert "The answer is covered until you have made a guess." in texts(shown)
        assert answer not in told and answer not in shown.svg().split("</title>", 1)[1]
        assert any(mark.hatch for mark in shown.marks)


def test_details_are_covered_and_folded_with_the_answer():
    shown = guess(HOW_MANY, unit="bytes").reveal(3_000_000, details="plain  4\n<half>  2\n")
    assert repr(shown) == f"{HOW_MANY}\nIt is 3,000,000 bytes.\nplain  4\n<half>  2"
    told = " ".join([*texts(shown), *(mark.about for mark in shown.marks)])
    assert "plain" not in told and "half" not in told
    folded = shown._repr_mimebundle_()[0]["text/html"]
    assert folded.endswith("<pre>plain  4\n&lt;half&gt;  2</pre></details>")


def test_the_answer_is_folded_beside_the_still():
    shown = guess("Is 1 < 2?", choices=["<yes>", "no"]).reveal("<yes>")
    data, _ = shown._repr_mimebundle_()
    assert data["text/plain"] == "Is 1 < 2?\nIt is <yes>."
    assert data["text/html"] == (
        "<p>Is 1 &lt; 2?</p>\n<details><summary>Show the answer</summary>"
        "<p>It is &lt;yes&gt;.</p></details>"
    )
    assert "text/html" not in guess("Is it?")._repr_mimebundle_()[0]


def test_a_long_question_is_broken_between_words():
    question = "Of all " + "very " * 60 + "many ranks, which one waits?"
    drawn = guess(question)
    lines = texts(drawn)[:-1]
    assert " ".join(lines) == question and len(lines) > 3
    assert max(len(line) for line in lines) * style.LETTER <= style.WIDTH


def test_questions_and_reveals_are_told_apart_and_small():
    size = guess(HOW_MANY, unit="bytes")
    assert size.marks[0].fill == ASKED and size.reveal(3).marks[0].fill == TOLD
    assert ASKED != TOLD
    for drawn in (size, size.reveal(3_000_000)):
        assert drawn.height < 100 and len(drawn.png()) < 10_000
        assert drawn.png() == drawn.png()


def test_line_breaks_in_the_source_of_a_question_do_not_count():
    assert guess("How\n   many?").question == "How many?"


@pytest.mark.parametrize(
    ("value", "unit", "said"),
    [
        (3_000_000, "bytes", "3,000,000 bytes"),
        (1, "bytes", "1 byte"),
        (1, "s", "1 s"),
        (0, "bytes", "0 bytes"),
        (-2, "steps", "-2 steps"),
        (0.0123, "s", "12.3 ms"),
        (0.75, "", "0.75"),
        (2 / 3, "", "0.6667"),
        (1234567.8, "tokens", "1,234,568 tokens"),
        (2.5, "bytes", "2.5 bytes"),
        (1e20, "FLOP", "1 × 10^20 FLOP"),
        (1.5e-7, "of it", "1.5 × 10^-7 of it"),
        (80, "%", "80 %"),
        (float("1e300"), "", "1 × 10^300"),
    ],
)
def test_numbers_are_said_as_people_say_them(value, unit, said):
    assert in_units(value, unit) == said


@pytest.mark.parametrize("three", [3, 3.0, np.int64(3), np.float32(3), torch.tensor(3)])
def test_any_kind_of_number_is_an_answer(three):
    assert repr(guess("How many?", unit="rounds").reveal(three)).endswith("It is 3 rounds.")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: guess(" "), "begins with a question"),
        (lambda: guess("Which?", choices=["a"]), "two or more"),
        (lambda: guess("Which?", choices=["a", "a"]), "two or more that differ"),
        (lambda: guess("Which?", unit="B", choices=["a", "b"]), "not both"),
        (lambda: guess("Which?", choices=["a", "b"]).reveal("c"), "none of the choices: a, b"),
        (lambda: guess("How many?").reveal("three"), "is a number, not 'three'"),
        (lambda: guess("How many?").reveal(float("nan")), "is a number, not nan"),
        (lambda: guess("How many?").reveal(-2), "guesses below zero are refused"),
    ],
)
def test_what_is_no_question_or_no_answer_is_refused(make, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        make()
