"""Guesses, alive: entered by keyboard, kept over a reload, and the reveal covered until then."""

import pytest

from lib.draw import guess
from lib.draw.guess import in_units
from lib.draw.parts import javascript, style
from tests.browser.seen import alive
from tests.every import every

HOW_MANY = "Four ranks hold 1,000,000 bytes each. How many bytes does rank 0 send?"
RANKS = [f"rank {n}" for n in range(4)]
OWN = """async ([text, name, cases]) => {
    const url = URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
    const own = await import(url);
    return cases.map((given) => own[name](...given));
}"""
BESIDE = """async ([text, data]) => { // a second picture, by the same module, as in a notebook
    const place = document.createElement("div");
    document.querySelector("#here").after(place);
    const url = URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
    const model = { get: (name) => ({ data })[name], on() {}, off() {}, send() {} };
    const { mount, picture } = await import(url);
    const end = await mount(picture, place, model);
    window.take = () => end();
}"""


def own(page, name, cases):
    """What a function of the browser's side answers to each case."""
    return page.evaluate(OWN, [javascript.module("guess"), name, cases])


@pytest.fixture
def asked(bench_page):
    """`asked(picture, reveal)`: both on one page on which nothing was said yet."""

    def show(first, second=None):
        seen = bench_page(first)
        seen.page.evaluate("globalThis.manyRanksKept?.clear()")
        seen = bench_page(first)
        if second is None:
            return seen
        data = {"summary": second.summary} | second.live[1]
        seen.page.evaluate(BESIDE, [javascript.module("guess"), data])
        nodes = seen.page.locator("figure.mrom")
        return alive(nodes.nth(0), "guess"), alive(nodes.nth(1), "reveal")

    return show


def texts(seen):
    return " ".join(mark["text"] for mark in seen.marks if mark["kind"] == "text")


COVERED = "The answer is covered until you have made a guess."


def is_covered(reveal, answer: str) -> None:
    """Nobody sees, hears or finds the answer on the page."""
    assert COVERED in texts(reveal) and answer not in texts(reveal)
    told = [mark.get("about") or "" for mark in reveal.marks]
    told += [reveal.canvas.get_attribute("aria-label")]
    told += [reveal.node.locator(".mrom-summary pre").text_content(), reveal.status]
    assert not any(answer in text for text in told)
    assert answer not in reveal.node.inner_text()


def say(seen, text):
    """Types an answer and presses Enter, as a reader does."""
    seen.node.get_by_role("textbox").fill(text)
    seen.page.keyboard.press("Enter")
    seen.settle()


# --- numbers


READ = [
    ("1e6", "bytes", 1e6), ("1,000,000", "bytes", 1e6), ("1 000 000", "bytes", 1e6),
    ("1_000_000", "bytes", 1e6), ("12 MB", "bytes", 12e6), ("12mb", "bytes", 12e6),
    ("25 MiB", "B", 25 * 2**20), ("3/4", "", 0.75), ("75%", "", 0.75), ("75 %", "%", 75),
    ("75 percent", "%", 75), ("3/4", "%", 75), ("2^20", "bytes", 2**20), ("2**10", "", 1024),
    ("2 * 3/4 * 1,000,000", "bytes", 1.5e6), ("2 × 8", "", 16), ("7B", "parameters", 7e9),
    ("7 B parameters", "parameters", 7e9), ("1.5 billion", "tokens", 1.5e9),
    ("3 million bytes", "bytes", 3e6), ("12 ms", "s", 0.012), ("12ms", "ms", 12),
    ("1 s", "ms", 1000), ("5 min", "s", 300), ("20 µs", "s", 2e-5), ("80e9 B", "GB", 80),
    ("312 TFLOP/s", "FLOP/s", 312e12), ("1.5 GB/s", "B/s", 1.5e9), ("1 round", "rounds", 1),
    ("-0", "", 0), ("−0", "", 0), (".5", "", 0.5), ("3.", "", 3), ("12k", "rounds", 12e3),
    (" 6 rounds ", "rounds", 6), ("12,345.6", "", 12345.6), ("0", "bytes", 0),
]  # fmt: skip


def test_numbers_are_read_as_people_write_them(page):
    told = own(page, "readNumber", [(text, unit) for text, unit, _ in READ])
    for (text, unit, value), answer in zip(READ, told, strict=True):
        assert answer == {"value": pytest.approx(value)}, (text, unit)


WRONG = [
    ("", "bytes", "Write a number first"), ("many", "bytes", "“many” is not a number"),
    ("3,5", "", "write 3.5 with a point"), ("1.000.000", "", "is not a number"),
    ("1,0000", "", "write 3.5 with"), ("12 furlongs", "bytes", "is not a unit of bytes"),
    ("12 %", "bytes", "“%” is not a unit of bytes"), ("5 m", "s", "“m” is not a unit of s"),
    ("1/0", "", "no finite number"), ("1e999", "", "no finite number"), ("-4", "", "below zero"),
    ("4 MB", "rounds", "“MB” is not a unit of rounds"), ("2 3", "", "is not a unit here"),
]  # fmt: skip


def test_what_is_no_number_gets_a_sentence(page):
    told = own(page, "readNumber", [(text, unit) for text, unit, _ in WRONG])
    for (text, unit, words), answer in zip(WRONG, told, strict=True):
        if words:
            assert words in answer["wrong"] and answer["wrong"].endswith("."), (text, unit)


def test_what_the_examples_say_can_be_entered(page):
    for unit in ("bytes", "s", "GB", "rounds", "%", ""):
        (wrong,) = own(page, "readNumber", [("?", unit)])
        examples = wrong["wrong"].split("write ")[1].rstrip(".").replace(" or ", ", ").split(", ")
        answers = own(page, "readNumber", [(text, unit) for text in examples])
        assert len(answers) == 5 and all("value" in answer for answer in answers), answers


def test_a_value_is_said_as_the_still_says_it(page):
    values = [0, 1, -2, 3_000_000, 0.75, 2 / 3, 1234567.8, 1234.5, 2.5, 0.0123, 1e20, 1.5e-7,
              999.96, 2e15, 1e-4, 12.3456]  # fmt: skip
    cases = [(value, unit) for value in values for unit in ("bytes", "s", "", "FLOP", "%")]
    assert own(page, "inUnits", cases) == [in_units(*case) for case in cases]


FAR = [
    (3000, 3000, "right"), (3029, 3000, "right"), (3031, 3000, "1 % too much"),
    (2700, 3000, "10 % too little"), (6000, 3000, "2 times too much"),
    (9600, 3000, "3.2 times too much"), (1000, 3000, "3 times too little"),
    (3e6, 3, "1,000,000 times too much"), (0, 3000, "3,000 bytes too little"),
    (-1, 2, "3 bytes too little"), (5, 0, "5 bytes too much"), (0, 0, "right"),
    (-2, -4, "2 bytes too much"), (38_000, 3000, "13 times too much"),
    (3e9, 2, "more than a billion times too much"),
    (1e-9, 2, "more than a billion times too little"),
]  # fmt: skip


@pytest.mark.parametrize("cases, unit", [(FAR, "bytes"), ([(30, 33, "3 points too little")], "%")])
def test_how_far_off_it_was_is_told_in_words(page, cases, unit):
    asked = [(value, answer, unit) for value, answer, _ in cases]
    assert own(page, "howFar", asked) == [words for *_, words in cases]


# --- on the page


def test_an_answer_is_given_by_enter_and_the_reveal_follows_at_once(asked):
    size = guess(HOW_MANY, unit="bytes")
    question, reveal = asked(size, size.reveal(3_000_000))
    is_covered(reveal, "3,000,000")
    say(question, "6 MB")
    assert question.status == "Your guess is 6,000,000 bytes. Now read on."
    assert "You said 6,000,000 bytes: 2 times too much." in texts(reveal)
    assert reveal.ask("p => p.laid.summary").endswith("2 times too much.")
    assert not question.node.get_by_role("textbox").is_visible()
    here = [m for m in reveal.marks if m.get("id") in ("answer", 0)]
    answer, mine = here
    left, right = (next(m for m in reveal.marks if m.get("text") == t) for t in ("÷ 100", "× 100"))
    decade = (right["x"] - left["x"]) / 4
    assert mine["x"] + 6 - answer["x"] - 2 == pytest.approx(decade * 0.30103, abs=0.1)
    reveal.screenshot("guess-reveal")


def test_the_reveal_that_comes_later_knows_what_was_said(asked):
    size = guess(HOW_MANY, unit="bytes")
    question = asked(size)
    say(question, "3,000,000")
    reveal = size.reveal(3_000_000)
    data = {"summary": reveal.summary} | reveal.live[1]
    question.page.evaluate(BESIDE, [javascript.module("guess"), data])
    told = "() => document.querySelectorAll('figure.mrom')[1].picture?.laid.summary"
    question.page.wait_for_function(told)
    assert question.page.evaluate(told).endswith("You said 3,000,000 bytes: right.")


def test_the_answer_is_there_when_the_picture_is_shown_again(asked, bench_page):
    size = guess(HOW_MANY, unit="bytes")
    say(asked(size), "4e6")
    again = bench_page(guess(HOW_MANY, unit="bytes"))
    assert again.status == "Your guess is 4,000,000 bytes. Now read on."
    assert not again.node.get_by_role("textbox").is_visible()
    other = bench_page(guess("Another question?"))
    assert other.node.get_by_role("textbox").is_visible() and other.status == ""


def test_guessing_again_is_possible_and_told(asked):
    size = guess(HOW_MANY, unit="bytes")
    question, reveal = asked(size, size.reveal(3_000_000))
    say(question, "40 MB")
    focused = "() => document.activeElement.textContent || document.activeElement.tagName"
    assert question.page.evaluate(focused) == "Guess again"  # the keyboard is not lost
    question.page.keyboard.press("Enter")
    question.settle()
    assert question.page.evaluate(focused) == "INPUT"
    assert question.node.get_by_role("textbox").input_value() == ""
    assert "You said 40,000,000 bytes" in texts(reveal), "asking again takes nothing back"
    question.page.keyboard.type("3e6")
    question.page.keyboard.press("Enter")
    reveal.settle()
    said = reveal.ask("p => p.laid.summary")
    assert said.endswith(
        "You said 3,000,000 bytes: right. Before that: 40,000,000 bytes (13 times too much)."
    )
    assert sum(m.get("id") in (0, 1) for m in reveal.marks) == 2


def test_a_wrong_entry_gets_a_sentence_and_nothing_is_kept(asked):
    size = guess(HOW_MANY, unit="bytes")
    question, reveal = asked(size, size.reveal(3_000_000))
    say(question, "3,5")
    assert question.wrong.startswith("“3,5”: write 3.5 with a point")
    assert "You said" not in texts(reveal)
    say(question, "35")
    assert question.status == "Your guess is 35 bytes. Now read on."


def test_a_choice_is_a_button_and_the_reveal_marks_it(asked):
    who = guess("Which rank waits?", choices=RANKS)
    question, reveal = asked(who, who.reveal("rank 3"))

    def button(name):
        return question.node.get_by_role("button", name=name)

    buttons = question.node.get_by_role("button")
    assert [b.inner_text() for b in buttons.all() if b.is_visible()] == RANKS
    button("rank 1").focus()
    question.page.keyboard.press("Enter")
    question.settle()
    assert question.status == "Your guess is rank 1. Now read on."
    assert [b.inner_text() for b in buttons.all() if b.is_visible()] == ["Guess again"]
    assert "You said rank 1: not this time." in texts(reveal)
    right = next(m for m in reveal.marks if m.get("id") == "rank 3")
    assert right["about"] == "rank 3: the answer"
    assert right["fill"] == list(style.COMPUTE["backward for weights"])
    mine = next(m for m in reveal.marks if m.get("id") == "rank 1")
    you = next(m for m in reveal.marks if m.get("text") == "you")
    assert you["x"] == pytest.approx(mine["x"] + mine["w"] / 2, abs=0.1)
    button("Guess again").click()
    button("rank 3").click()
    question.settle()
    assert "You said rank 3: right. Before that: rank 1 (not this time)." in texts(reveal)


def test_choices_that_do_not_fit_go_on_below(asked):
    names = [f"the rank with number {n}" for n in range(9)]
    who = guess("Which?", choices=names)
    question, reveal = asked(who, who.reveal(names[3]))
    question.node.get_by_role("button", name=names[2]).click()
    reveal.settle()
    boxes = [m for m in reveal.marks if (m.get("about") or "").startswith("the rank with")]
    assert len(boxes) == 9 and len({m["y"] for m in boxes}) > 1
    wide, high = (reveal.ask(f"p => p.{what}") for what in ("width", "laid.height"))
    assert every(m["x"] + m["w"] <= wide and m["y"] + m["h"] <= high for m in boxes)


def test_show_me_uncovers_and_cover_again_forgets(asked):
    size = guess(HOW_MANY, unit="bytes")
    question, reveal = asked(size, size.reveal(3_000_000))
    reveal.control("Show me").focus()
    reveal.page.keyboard.press("Enter")
    reveal.settle()
    assert "It is 3,000,000 bytes." in texts(reveal) and "You said" not in texts(reveal)
    assert question.node.get_by_role("textbox").is_visible(), "a guess may still be made"
    say(question, "6 MB")
    assert "You said 6,000,000 bytes" in texts(reveal)
    reveal.control("Cover again").click()
    reveal.settle()
    is_covered(reveal, "3,000,000")
    assert question.node.get_by_role("textbox").is_visible()


@pytest.mark.parametrize("width", [360, 640])
def test_details_come_with_the_answer_in_columns(asked, width):
    table = "            bytes  loss\nplain      177,984  3.22\nno feedback  7,128  4.01"
    size = guess(HOW_MANY, unit="bytes")
    question, reveal = asked(size, size.reveal(3_000_000, details=table))
    question.page.evaluate(
        "width => document.querySelectorAll('figure')[1].parentElement.style.width = `${width}px`",
        width,
    )
    is_covered(reveal, "177,984")
    reveal.control("Show me").click()
    reveal.settle()
    at = {mark["text"]: mark["x"] for mark in reveal.marks if mark["kind"] == "text"}
    assert at["plain"] == at["no feedback"], "words begin in one column"
    assert at["177,984"] == at["7,128"] < at["3.22"], "numbers end in one"
    assert every(x <= width - 2 for x in at.values())
    reveal.screenshot(f"guess-details-{width}")


def test_paper_has_the_answer_below_its_question(asked):
    size = guess(HOW_MANY, unit="bytes")
    _, reveal = asked(size, size.reveal(3_000_000))
    printed = reveal.node.locator(".mrom-printed")
    assert not printed.is_visible()
    reveal.page.emulate_media(media="print")
    try:
        assert printed.inner_text() == "It is 3,000,000 bytes."
        assert not reveal.control("Show me").is_visible()
    finally:
        reveal.page.emulate_media(media="screen")


def test_an_answer_without_a_ratio_is_told_without_a_line(asked):
    size = guess("How many bytes are left?", unit="bytes")
    question, reveal = asked(size, size.reveal(0))
    say(question, "5")
    assert "You said 5 bytes: 5 bytes too much." in texts(reveal)
    assert not any(mark["kind"] == "line" for mark in reveal.marks)


def test_a_picture_that_is_gone_hears_nothing(asked):
    size = guess(HOW_MANY, unit="bytes")
    question, reveal = asked(size, size.reveal(3))
    question.page.evaluate("take()")
    say(question, "3")
    assert question.page.locator("figure.mrom").count() == 1


@pytest.mark.parametrize("width", [400, 900, 1200])
@pytest.mark.parametrize("off", [1.0, 0.02, 5e7, 3e30])
def test_the_line_of_distances_fits_any_width(asked, width, off):
    size = guess(HOW_MANY, unit="bytes")
    question, reveal = asked(size, size.reveal(3_000_000))
    question.page.evaluate(
        "width => document.querySelectorAll('figure')[1].parentElement.style.width = `${width}px`",
        width + 24,
    )
    say(question, f"{3e6 * off}")
    reveal.settle()
    assert reveal.ask("p => p.laid.marks").__len__() > 8
    row = sorted(
        (m["x"], m["text"])
        for m in reveal.marks
        if m["kind"] == "text" and m["align"] == "middle" and m["text"] != "you"
    )
    assert len(row) >= 3 and any(text == "the answer" for _, text in row)
    for (x, text), (right, after) in zip(row, row[1:]):
        assert x + 3.5 * len(text) <= right - 3.5 * len(after), row
    for mark in reveal.marks:
        if mark["kind"] == "box":
            assert mark["x"] >= -0.1 and mark["x"] + mark["w"] <= width + 0.1
    reveal.screenshot(f"guess-{width}-{off:g}")


def in_section(page, name):
    """The picture of a section of the book's page."""
    return alive(page.locator(f"section#{name} figure.mrom"), name)


def test_the_book_keeps_an_answer_over_a_reload_without_a_kernel(in_book):
    question = in_book("guess")
    is_covered(in_section(question.page, "reveal"), "3,000,000")
    say(question, "1.5 MB")
    assert question.status == "Your guess is 1,500,000 bytes. Now read on."
    reveal = question.page.locator("section#reveal figure.mrom")
    reveal.scroll_into_view_if_needed()
    told = reveal.evaluate("(figure) => figure.picture.laid.summary")
    assert told.endswith("You said 1,500,000 bytes: 2 times too little.")
    question.page.reload()
    again, reveal = (in_section(question.page, name) for name in ("guess", "reveal"))
    assert again.status == "Your guess is 1,500,000 bytes. Now read on."
    assert "You said 1,500,000 bytes: 2 times too little." in texts(reveal)
    reveal.control("Cover again").click()
    question.page.reload()
    is_covered(in_section(question.page, "reveal"), "3,000,000")


def test_the_book_without_scripts_folds_the_answer(book_page):
    page = book_page(scripts=False)
    fold = page.locator("section#reveal details")
    assert not fold.get_by_text("It is 3,000,000 bytes.").is_visible()
    fold.locator("summary").click()
    assert fold.get_by_text("It is 3,000,000 bytes.").is_visible()


def test_an_untrusted_notebook_folds_the_answer(opened):
    page = opened("untrusted fold", trust=False)
    fold = page.locator(".jp-OutputArea details")
    fold.scroll_into_view_if_needed()
    assert not fold.get_by_text("It is 3,000,000 bytes.").is_visible()
    fold.locator("summary").click()
    assert fold.get_by_text("It is 3,000,000 bytes.").is_visible()


def test_enter_works_in_jupyterlab_too(running):
    question = running("guess")
    say(question, "12 MB")
    assert question.status == "Your guess is 12,000,000 bytes. Now read on."
    focused = question.node.evaluate("(figure) => figure.ownerDocument.activeElement.textContent")
    assert focused == "Guess again"
    question.page.keyboard.press("Enter")
    question.settle()
    assert question.node.get_by_role("textbox").is_visible(), "JupyterLab took the key"
