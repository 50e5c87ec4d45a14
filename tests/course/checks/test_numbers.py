"""Numbers that readers predict: what counts as one, and the slips that are recognised."""

import math
from decimal import Decimal
from fractions import Fraction
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch

from lib.course.checks.choices import Choices
from lib.course.checks.numbers import Numbers
from lib.course.checks.read_number import NoNumber, as_written, read_number
from lib.course.checks.slips import slip

ROOT = Path(__file__).parents[3]


def answers():
    """Every answer of every chapter: the exercise, the answer's name, and the right number."""
    for path in sorted((ROOT / "lib/course").glob("*/exercises.py")):
        module = import_module(f"lib.course.{path.parent.name}.exercises")
        for exercise in vars(module).values():
            if isinstance(exercise, Numbers):
                for name, answer in exercise.answers.items():
                    answer = answer() if callable(answer) else answer
                    where = f"{path.parent.name}-{name}"
                    yield pytest.param(exercise, name, answer, id=where)


ANSWERS = list(answers())


# --- how a number is shown


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (1e9, "1,000,000,000"), (3645.6000000000004, "3,645.6"), (3, "3"), (-2.0, "-2"), (0.0, "0"),
        (0.1 + 0.2, "0.3"), (1234567.0, "1,234,567"), (1234567.4, "1,234,570"), (2e-7, "2e-07"),
        (999_999.7, "1,000,000"), (100_000.4, "100,000"), (1e300, "1e+300"), (10**20, "1e+20"),
    ],
)  # fmt: skip
def test_a_number_is_shown_as_a_reader_would_write_it(number, text):
    assert as_written(number) == text
    said = Numbers(answers={"a": 7}).check(a=number).text
    assert f"  a: {text} is " in said
    assert f"  a: right, {text}" in Numbers(answers={"a": number}).check(a=number).text


# --- what counts as a number


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (3, 3), (1.5, 1.5), (np.float32(1.5), 1.5), (np.int64(7), 7), (torch.tensor(2.5), 2.5),
        (torch.tensor([[4]]), 4), (np.array([6]), 6), (Fraction(1, 2), 0.5),
        (Decimal("0.25"), 0.25), (-0.0, 0),
    ],
)  # fmt: skip
def test_a_number_may_have_many_types(value, number):
    assert read_number(value) == number and type(read_number(value)) in (int, float)


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("one", "'one' is text. Write a number, in digits and without quotes."),
        ("1.5", "'1.5' is text. Write the number without quotes."),
        ("1,5", "'1,5' is text. Use a point, and no quotes: 1.5."),
        ("1,500", "'1,500' is text. Write 1_500 without quotes."),
        (b"7", "'7' is text. Write the number without quotes."),
        ((1, 5), "In Python 1,5 is two numbers. Use a point: 1.5"),
        ([4], "This is a list of 1. Write one number, without brackets."),
        (True, "True is a truth value. Write a number."),
        (np.bool_(False), "False is a truth value. Write a number."),
        (2 + 1j, "This number has an imaginary part. Write it without `j`."),
        (Decimal("snan"), "This is nan. Write a number that is finite."),
        (math.nan, "This is nan. Write a number that is finite."),
        (torch.tensor(-math.inf), "This is -inf. Write a number that is finite."),
        (10**400, "This number is too large."),
        (torch.ones(3), "These are several numbers, or none. Write one."),
        (np.ones(0), "These are several numbers, or none. Write one."),
        (len, "This is a function. Call it, and write what it returns."),
        ({}, "This is of type dict, and not a number."),
    ],
)
def test_what_is_no_number_gets_a_sentence(value, sentence):
    with pytest.raises(NoNumber) as refused:
        read_number(value)
    assert str(refused.value) == sentence
    text = Numbers(answers={"a": 3, "b": 4}).check(a=value, b=4).text
    assert text == f"Not yet. Your numbers:\n  a: {sentence}\n  b: right, 4"


def test_answers_without_a_name_or_with_a_wrong_one_are_told():
    asks = Numbers(name="asks", answers={"a": 3, "b": 4}, task="Put numbers.")
    assert "Nothing here is called `c`: give a, b." in asks.check(a=3, c=4).text
    assert "asks.check(name=..., name=...)" in asks.check(3, 4).text
    words = Choices(name="asks", right={"a": "yes"}, words=("yes", "no"))
    assert words.check(a=" YES ").solved
    assert "  a: 'perhaps' is not one of the words" in words.check(a="perhaps").text
    assert "  a: not that one" in words.check(a="no").text
    assert "  a: this is of type int; write a word in quotes" in words.check(a=3).text
    assert "Nothing here is called `c`" in words.check(c="yes").text


# --- slips


@pytest.mark.parametrize(("exercise", "name", "answer"), ANSWERS)
def test_each_right_answer_is_accepted_and_what_is_merely_near_hears_no_slip(
    exercise, name, answer
):
    assert exercise._judged(name, answer, answer) == (
        True,
        [f"  {name}: right, {as_written(answer)}"],
    )
    kind, ranks = exercise.kinds.get(name, ""), exercise.ranks
    for factor in (0.97, 0.985, 1.015, 1.03, 0.9, 1.1, 0.7, 1.4, 2.2, 11, 0.09):
        if name == "overhead" and factor == 2.2:
            continue
        assert not slip(answer * factor, answer, kind, ranks), factor


SENT = {2: "Did you count what is received as well?", 0.5: "did you count both directions?"}
PLAUSIBLE = {
    "bytes": {0.25: "did you count numbers of 4 bytes each?", 8: "is this in bits?",
              1e-6: "is this in MB?", 2**-20: "is this in MiB?"},
    "MB": {8: "is this in Mbit?", 1e6: "is this in bytes?", 1e6 / 2**20: "is this in MiB?"},
    "GB": {8: "is this in Gbit?", 1e9: "is this in bytes?", 1e3: "is this in MB?",
           1e9 / 2**30: "is this in GiB?"},
    "ms": {1e-3: "is this in s?", 1e3: "is this in µs?", 2: "is something counted twice?"},
    "%": {0.01: "is this in fractions of 1?", 0.5: "is something counted once"},
    "value": {-1: "The sign is the wrong one."},
    "": {-1: "The sign is the wrong one."},
}  # fmt: skip


@pytest.mark.parametrize(("exercise", "name", "answer"), ANSWERS)
def test_a_plausible_slip_hears_its_question(exercise, name, answer):
    kind, ranks = exercise.kinds.get(name, ""), exercise.ranks
    unit = kind.removeprefix("sent ")
    expected = PLAUSIBLE[unit] | (SENT if kind != unit else {})
    if ranks > 2:
        expected |= {ranks: f"did you count all {ranks} together?"}
        expected |= {ranks - 1: f"did you count the other {ranks - 1}?"} if ranks > 5 else {}
    for factor, question in expected.items():
        said = slip(answer * factor, answer, kind, ranks)
        assert question.lower() in said.lower(), (factor, said)
        right, lines = exercise._judged(name, answer * factor, answer)
        assert not right and len(lines) > 1  # its own `mistakes` may have said it first


def test_the_exercises_own_sentences_win_over_the_general_ones():
    asks = Numbers(answers={"a": 8000}, kinds={"a": "sent bytes"}, mistakes={"a": {4000: "Mine."}})
    assert asks.check(a=4000).text.splitlines()[1:] == ["  a: 4,000 is too little", "    Mine."]
    text = asks.check(a=16_000).text
    assert "    This is twice what is sent: did you count what is received as well?" in text


def test_small_counts_hear_nothing_of_half_and_twice():
    assert not slip(2, 1) and not slip(1, 2) and not slip(0, 5) and not slip(5, 0)
    assert not slip(2, 4) and not slip(8, 4)
    assert slip(12, 6) == "This is twice the answer: is something counted twice?"
    assert not slip(12.001, 6)  # a count is whole


def test_the_question_of_the_issue():
    """In a ring all-reduce half of the bytes are sent in each of the two laps."""
    predict = import_module("lib.course.ranks.exercises").predict
    text = predict.check(all_gather=7e6, all_reduce=7e6, ring_rounds=14, tree_rounds=6).text
    assert "This is half of what is sent: did you count both directions?" in text
    text = predict.check(all_gather=8e6).text
    assert "8/7 of what is sent: did you count the rank's own piece, which is not sent?" in text
