"""The book in narrow windows, and with the browser's own letters made larger."""

import re
from itertools import pairwise

import pytest

from lib.course.tools.book import chapters
from lib.course.tools.chromium import chromium
from tests.browser.conftest import FLAGS
from tests.browser.seen import SCREENSHOTS
from tests.every import every

PAGES = ["README.html", "data/glossary.html"]
PAGES += [f"chapters/{chapter.name}.html" for chapter in chapters()]
SET = "() => globalThis.MathJax?.startup?.promise"  # until all formulas are set
UNFOLD = "() => document.querySelectorAll('details').forEach((one) => (one.open = true))"


@pytest.fixture(scope="module")
def sized(book, browser):
    """`sized(32, 360)`: goes to pages of the book with that default size of letters and width."""
    started = {}

    def go(letters, width=360, **options):
        if letters not in started:
            flags = [*FLAGS.split(), f"--blink-settings=defaultFontSize={letters}"]
            started[letters] = browser.browser_type.launch(executable_path=chromium(), args=flags)
        view = {"width": width, "height": 800}
        page = started[letters].new_context(viewport=view, offline=True, **options).new_page()

        def to(address):
            page.goto(f"{book.as_uri()}/{address}")
            page.evaluate(SET)
            page.evaluate(UNFOLD)
            return page

        return to

    yield go
    for other in started.values():
        other.close()


# --- a page never scrolls sideways


@pytest.mark.parametrize("letters", [16, 24, 32])
def test_no_page_scrolls_sideways_on_a_phone(sized, letters):
    to = sized(letters)
    wide = {address: to(address).evaluate("() => document.documentElement.scrollWidth")
            for address in PAGES}  # fmt: skip
    assert len(wide) == len(chapters()) + 2 > 14
    assert {address: found for address, found in wide.items() if found != 360} == {}


FRAMES = """() => {
    const wide = [...document.querySelectorAll("article :is(table, div.math, pre)")];
    return wide.map((node) => {
        const frame = node.closest(".pst-scrollable-table-container, .output") ?? node;
        const scrolls = ["auto", "scroll"].includes(getComputedStyle(frame).overflowX);
        const { left, right } = frame.getBoundingClientRect();
        const fits = node.scrollWidth <= node.clientWidth;
        return left >= 0 && right <= innerWidth && (scrolls || fits);
    });
}"""


def test_what_is_wider_than_a_phone_scrolls_in_its_own_frame(sized):
    page = sized(32)("chapters/00-ranks.html")
    assert every(page.evaluate(FRAMES))
    frame = page.locator(".pst-scrollable-table-container[tabindex='0']").first
    frame.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("(node) => node.scrollLeft > 0", arg=frame.element_handle())
    page.screenshot(path=SCREENSHOTS / "book-360-large-letters.png")


# --- the columns beside the text

LETTERS_IN_A_LINE = """() => {
    const isLong = (node) => node.textContent.length > 300 && node.checkVisibility();
    const texts = [...document.querySelectorAll("article section > p")].filter(isLong);
    const lines = (node) =>
        node.getBoundingClientRect().height / parseFloat(getComputedStyle(node).lineHeight);
    const sum = (of) => texts.reduce((total, node) => total + of(node), 0);
    return sum((node) => node.textContent.length) / sum(lines);
}"""


@pytest.mark.parametrize(
    ("letters", "width", "columns"),
    [
        (16, 1280, [True, True]),
        (24, 1024, [False, False]),
        (24, 1280, [True, False]),
        (32, 1280, [False, False]),
        (32, 1920, [True, True]),
    ],
)
def test_columns_beside_the_text_fold_where_they_leave_it_no_room(sized, letters, width, columns):
    page = sized(letters, width)("chapters/01-data-parallel.html")
    assert page.evaluate(LETTERS_IN_A_LINE) >= 45
    for side, is_column in zip(("primary", "secondary"), columns, strict=True):
        column = page.locator(f"#pst-{side}-sidebar")
        assert column.is_visible() == is_column, side
        if not is_column:
            page.locator(f".{side}-toggle").click()
            drawer = page.locator(f"#pst-{side}-sidebar-modal")
            drawer.get_by_role("link").last.wait_for()
            assert 0 <= drawer.bounding_box()["x"] < width - 200
            page.screenshot(path=SCREENSHOTS / f"book-drawer-{side}-{letters}-{width}.png")
            page.keyboard.press("Escape")
            drawer.wait_for(state="hidden")


# --- names

# For each name in a table: the pieces of it that stand on lines of their own.
PIECES = """() => [...document.querySelectorAll("article :is(td, th) code .pre")].map((name) => {
    const range = document.createRange(), lines = [];
    const walker = document.createTreeWalker(name, NodeFilter.SHOW_TEXT);
    for (let text = walker.nextNode(); text; text = walker.nextNode()) {
        for (let place = 0; place < text.length; place++) {
            range.setStart(text, place);
            range.setEnd(text, place + 1);
            const top = Math.round(range.getBoundingClientRect().top);
            if (lines.at(-1)?.top !== top) lines.push({ top, said: "" });
            lines.at(-1).said += text.data[place];
        }
    }
    return lines.map(({ said }) => said);
})"""


@pytest.mark.parametrize(
    "chapter", ["04-tensor-parallel", "06-pipeline-bubbles", "09-recomputation"]
)
def test_a_name_in_a_table_breaks_between_its_words_only(sized, chapter):
    page = sized(16)(f"chapters/{chapter}.html")
    page.evaluate("() => document.fonts.ready")
    broken = [pieces for pieces in page.evaluate(PIECES) if len(pieces) > 1]
    assert broken
    ends = [(first, then) for pieces in broken for first, then in pairwise(pieces)]
    assert [pair for pair in ends if not is_between_words(*pair)] == []
    page.screenshot(path=SCREENSHOTS / f"book-names-{chapter}.png")
    for pieces in broken[:3]:
        name = page.locator("article :is(td, th) code", has_text="".join(pieces)).first
        copied = name.evaluate("""(node) => {
            getSelection().selectAllChildren(node);
            return getSelection().toString();
        }""")
        assert copied == name.text_content()


def is_between_words(before, after):
    """Whether a name may end its line with `before` and go on with `after`."""
    three = before[-1] + after[:2]
    return bool(re.match(r"[_./(-]|[a-z]\d?[A-Z]|[A-Z0-9][A-Z][a-z]", three))
