"""Questions and reveals as text and as a still; the browser's side is in tests/browser."""

import re

import numpy as np
import pytest
import torch

from lib.draw import guess, style
from lib.draw.guess import ASKED, TOLD, in_units

HOW_MANY = "How many bytes does rank 0 send?"


def texts(drawn):
    return [mark.text for mark in drawn.marks if mark.kind == "text"]


def test_a_question_says_what_is_asked_and_how_to_answer():
    size = guess(HOW_MANY, unit="bytes")
    assert repr(size) == f"{HOW_MANY}\nCommit to a number in bytes before you read on."
    assert texts(size) == repr(size).split("\n")
    assert size.live == ("guess", {
        "question": HOW_MANY, "unit": "bytes", "choices": [],
        "hint": "Commit to a number in bytes before you read on.",
    })  # fmt: skip
    assert guess("How many?").summary.endswith("\nCommit to a number before you read on.")


def test_choices_are_named_in_their_order():
    who = guess("Which rank waits?", choices=["rank 0", "rank 1", 2])
    assert who.summary.endswith("Commit to one before you read on: rank 0, rank 1, 2.")


def test_a_reveal_tells_the_answer_and_hides_it_from_the_question():
    size = guess(HOW_MANY, unit="bytes")
    shown = size.reveal(3_000_000)
    assert repr(shown) == f"{HOW_MANY}\nIt is 3,000,000 bytes."
    assert shown.live[1]["answer"] == 3_000_000
    assert "answer" not in size.live[1] and "3,000,000" not in str(size.live)


def test_the_right_choice_is_filled():
    shown = guess("Which?", choices=["rank 0", "rank 1"]).reveal("rank 1")
    wrong, right = (m for m in shown.marks if m.about)
    assert (wrong.about, wrong.fill) == ("rank 0", None)
    assert (right.about, right.fill) == ("rank 1", TOLD)
    assert repr(shown) == "Which?\nIt is rank 1."


def test_choices_that_do_not_fit_go_on_below():
    names = [f"the rank with number {n}" for n in range(9)]
    shown = guess("Which?", choices=names).reveal(names[3])
    boxes = [m for m in shown.marks if m.about]
    assert len({m.y for m in boxes}) > 1
    for mark in boxes:
        assert mark.x + mark.w <= style.WIDTH and mark.y + mark.h <= shown.height


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
    ],
)
def test_what_is_no_question_or_no_answer_is_refused(make, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        make()
