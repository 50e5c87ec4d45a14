"""Where a reader meets a picture: a fresh clone, JupyterLab with and without a kernel, the book."""

import json
import re

import nbformat
import pytest

from lib.course.tools.book import chapters
from lib.course.tools.widgets import POINTER, VIEW, states
from lib.draw.parts import style
from tests.browser.jupyter import NAMES
from tests.browser.seen import alive
from tests.every import every

BLANK = re.compile("model not found|Loading widget|Error displaying|could not be drawn")


def stored(gallery):
    """The pictures of the stored gallery: what each output holds."""
    cells = nbformat.read(gallery, as_version=4).cells
    return [
        out.data for cell in cells for out in cell.get("outputs", []) if VIEW in out.get("data", {})
    ]


def stills(gallery):
    """The pictures that are stills where nothing may run; a covered answer is folded text."""
    return [data for data in stored(gallery) if "text/html" not in data]


def shows(page):
    """What JupyterLab shows of the outputs: living pictures, and stills that are not blank."""
    outputs = page.locator(".jp-OutputArea-output")
    assert not BLANK.search(" ".join(outputs.all_inner_texts()))
    images = page.locator(".jp-OutputArea img")
    wide = [images.nth(i).evaluate("(still) => still.naturalWidth") for i in range(images.count())]
    return page.locator("figure.mrom").count(), sum(width > 0 for width in wide)


def is_drawn(seen, *, dark=False):
    """It is not blank, and stands on paper of the theme's own colour."""
    assert len(seen.colours()) > 1, f"{seen.name} is blank"
    paper = seen.node.evaluate("(figure) => getComputedStyle(figure).backgroundColor")
    assert (max(map(int, re.findall(r"\d+", paper)[:3])) < 80) == dark, paper


# --- JupyterLab


def test_a_fresh_clone_shows_the_stills(opened, gallery):
    page = opened("untrusted", trust=False)
    page.locator(".jp-OutputArea img").nth(len(stills(gallery)) - 1).wait_for(state="attached")
    assert shows(page) == (0, len(stills(gallery)))


def test_a_trusted_notebook_lives_from_what_it_stores(lab, opened, gallery):
    page = opened("trusted", trust=True)
    for picture in lab.pictures(page):
        is_drawn(picture)
    assert shows(page) == (len(stored(gallery)), 0)


@pytest.fixture
def kernelless(opened, wrongs):
    """A page of JupyterLab on a trusted gallery with "No Kernel"."""
    page = opened("no kernel", trust=True, kernel=False)
    yield page
    # what ipywidgets itself stumbles over there: jupyter-widgets/ipywidgets issue 3970
    known = "uncaught: Cannot read properties of null (reading 'kernel')"
    wrongs[:] = [wrong for wrong in wrongs if wrong != known]


def test_a_trusted_notebook_lives_without_any_kernel_and_with_a_later_one(lab, kernelless, gallery):
    session = "jupyterapp.shell.currentWidget.sessionContext"
    assert not kernelless.evaluate(f"() => Boolean({session}.session?.kernel)")
    for picture in lab.pictures(kernelless):
        is_drawn(picture)
    assert shows(kernelless) == (len(stored(gallery)), 0)
    kernelless.evaluate(f'() => {session}.changeKernel({{ name: "python3" }})')
    kernelless.wait_for_function(f'() => {session}.session?.kernel?.status === "idle"')
    seen = lab.run_cell(kernelless, "probe")
    seen.control("run again").click()
    seen.node.get_by_text("runs 1").wait_for()


def test_a_notebook_that_nobody_trusts_runs_nothing_without_a_kernel(opened, wrongs, gallery):
    page = opened("untrusted, no kernel", trust=False, kernel=False)
    page.locator(".jp-OutputArea img").nth(len(stills(gallery)) - 1).wait_for(state="attached")
    assert shows(page) == (0, len(stills(gallery)))
    wrongs[:] = [wrong for wrong in wrongs if "reading 'kernel'" not in wrong]  # as above


def test_a_picture_that_runs_is_alive(running, name):
    seen = running(name)
    is_drawn(seen)
    seen.screenshot(f"{name}-jupyterlab")


def test_a_kernel_answers_what_a_picture_asks(running):
    seen = running("probe")
    seen.control("run again").click()
    seen.node.get_by_text("runs 1").wait_for()
    for _ in range(5):
        seen.control("press").click()
    seen.control("run again").click()
    seen.node.get_by_text("ValueError: pressed too often").wait_for(state="attached")
    assert seen.state["pressed"] == 5


def test_pictures_follow_jupyterlab_into_the_dark(lab, running):
    seen = running("probe")
    lab.turn(seen.page, dark=True)
    try:
        seen.settle()
        is_drawn(seen, dark=True)
    finally:
        lab.turn(seen.page, dark=False)
    seen.settle()
    is_drawn(seen)


# --- the book


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_book_lives_without_a_network(book_page, book_pictures, gallery, dark):
    page = book_page(dark=dark)
    for seen in book_pictures(page):
        is_drawn(seen, dark=dark)
        seen.screenshot(f"{seen.name}-book-{'dark' if dark else 'light'}")
    assert page.locator("figure.mrom").count() == len(stored(gallery))
    assert not page.locator(".picture-still").count()


# What a cell shows below a covered answer is covered too.
UNCOVER = """() => [...document.querySelectorAll("figure.mrom button")]
    .filter((button) => button.innerText === "Show me")
    .forEach((button) => button.click())"""


@pytest.mark.parametrize("chapter", chapters(), ids=lambda chapter: chapter.name)
def test_the_pictures_of_a_chapter_live_in_the_book(book, book_page, chapter):
    shown = stored(book.parents[1] / chapter.file)
    page = book_page(chapter.name)
    count = "count => document.querySelectorAll('figure.mrom').length === count"
    page.wait_for_function(count, arg=len(shown))
    page.evaluate(UNCOVER)
    for place in range(len(shown)):
        is_drawn(alive(page.locator("figure.mrom").nth(place), f"{chapter.name}, {place}"))
    assert page.locator("figure.mrom").count() == len(shown)


def test_a_page_without_scripts_shows_the_stills(book_page, gallery):
    page = book_page(scripts=False)
    still = "img.picture-still, div.picture-still"  # an image may also stand in a link
    assert page.locator(still).count() == len(stored(gallery))
    images = page.locator("img.picture-still")
    assert images.count() == len(stills(gallery)) < len(stored(gallery))
    assert every(image.get_attribute("alt") for image in images.all())


WIDE = """() => [...document.querySelectorAll("article pre, article table, article .cell_output")]
    .filter((node) => node.getBoundingClientRect().right > innerWidth + 1 ||
        (node.matches(".cell_output :not(.highlight-python) > .highlight > pre, table") &&
            node.scrollWidth > node.clientWidth + 1))
    .map((node) => node.textContent.slice(0, 60))"""


# Cells of a table whose only word, or number, stands on several lines.
BROKEN = """() => [...document.querySelectorAll("article :is(th, td)")].filter((cell) => {
    const range = document.createRange();
    range.selectNodeContents(cell);
    const tops = new Set([...range.getClientRects()].map((box) => Math.round(box.top / 8)));
    const one = /^[\\w.,%+]{2,12}$/.test(cell.innerText.trim());
    return one && !cell.querySelector("code, mjx-container") && tops.size > 2;
}).map((cell) => cell.innerText)"""


# Tables that are wider than the frame in which the theme lets them scroll.
CUT = """() => [...document.querySelectorAll("article table")]
    .filter((table) => table.scrollWidth > table.parentElement.clientWidth + 1)
    .map((table) => table.innerText.slice(0, 60))"""


# Links to the pages before and after whose title is cut off.
CLIPPED = """() => [...document.querySelectorAll(".prev-next-area a")]
    .filter((link) => !link.innerText || link.scrollWidth > link.clientWidth)
    .map((link) => link.innerText)"""


@pytest.fixture(scope="module", params=chapters(), ids=lambda chapter: chapter.name)
def on_a_phone(request, book, new_page):
    """A chapter's page of the book, for tests that look at it and leave it as it is."""
    page = new_page(360, offline=True)
    page.goto((book / request.param.file).with_suffix(".html").as_uri())
    yield page
    page.context.close()


def test_long_messages_and_wide_tables_wrap_on_a_phone(on_a_phone):
    assert on_a_phone.locator("article .cell_output pre").count()
    assert on_a_phone.evaluate(WIDE) == []
    assert on_a_phone.evaluate("document.documentElement.scrollWidth") <= 360
    assert on_a_phone.evaluate(BROKEN) == []
    assert on_a_phone.evaluate(CUT) == []
    assert on_a_phone.evaluate(CLIPPED) == []


# Of each line of code that wraps: where it begins, and where what goes on of it begins.
SOURCES = """() => [...document.querySelectorAll(".highlight .code-line")]
    .filter((line) => line.offsetParent && line.textContent.trim()).flatMap((line) => {
        const range = document.createRange(), letters = [];
        const walk = document.createTreeWalker(line, NodeFilter.SHOW_TEXT);
        for (let node = walk.nextNode(); node; node = walk.nextNode()) {
            [...node.data].forEach((letter, n) => {
                if (letter === " ") return;
                range.setStart(node, n);
                range.setEnd(node, n + 1);
                letters.push(range.getBoundingClientRect());
            });
        }
        const others = letters.filter(({ top }) => top > letters[0].top + 8);
        if (!others.length) return [];
        return [[letters[0].left, Math.min(...others.map(({ left }) => left)), line.textContent]];
    })"""


def test_what_is_left_of_a_line_of_source_stands_further_in_on_a_phone(book_page):
    """A line of Python that wraps must not lose the indentation that says what belongs to what."""
    (ranks,) = (chapter for chapter in chapters() if chapter.name == "00-ranks")
    found = book_page(ranks.name, width=360).evaluate(SOURCES)
    assert len(found) > 50
    assert every(first + 20 < others for first, others, _ in found), found


# Into how many pieces lines break each comment that stands behind code, and whether it moved down.
COMMENTS = """() => [...document.querySelectorAll(".highlight .code-line > :not(.w) ~ .c1")]
    .filter((comment) => comment.offsetParent)
    .map((comment) => [comment.getClientRects().length,
        comment.offsetTop > comment.parentNode.firstElementChild.offsetTop + 8])"""


def test_a_comment_behind_code_moves_to_the_next_line_as_a_whole_on_a_phone(book_page):
    """A comment that breaks behind its first words looks like code, without its #."""
    found = book_page("00-ranks", width=360).evaluate(COMMENTS)
    assert len(found) > 6 and {pieces for pieces, _ in found} == {1}
    assert any(moved for _, moved in found)


# The width of each covered line of verdicts, and the letters that they are written in.
VERDICTS = """() => [...document.querySelectorAll("article .cell_output pre")]
    .filter((node) => node.textContent.startsWith("Not "))
    .map((node) => {
        const range = document.createRange(), style = getComputedStyle(node);
        range.selectNodeContents(node);
        const tops = new Set([...range.getClientRects()].map((box) => Math.round(box.top)));
        return [node.textContent.trimEnd().split("\\n").length, tops.size,
            parseFloat(style.fontSize)];
    })"""
FIRST_IMAGE = """() => {
    const image = document.querySelector("article img:not(.picture-still)");
    return [image.getBoundingClientRect().width, image.naturalWidth];
}"""
# Names in the first of two columns that stand on more than one line, though without a space.
SPLIT = """() => [...document.querySelectorAll("article tr > :first-child:nth-last-child(2) .pre")]
    .filter((name) => new Set([...name.getClientRects()].map(({ top }) => top.toFixed())).size > 1)
    .map((name) => name.textContent)"""


def test_the_first_picture_has_letters_of_ten_pixels_on_a_phone(on_a_phone):
    shown, natural = on_a_phone.evaluate(FIRST_IMAGE)
    assert style.SIZE * shown / (natural / 2) >= 10, "two pixels of the file for one"


def test_verdicts_and_names_are_legible_on_a_phone(book_page):
    page = book_page("00-ranks", width=360)
    verdicts = page.evaluate(VERDICTS)
    assert len(verdicts) == 5
    assert every(lines == shown and letter >= 11 for lines, shown, letter in verdicts), verdicts
    assert page.evaluate(SPLIT) == []


# --- what is stored


def test_a_notebook_stores_each_text_once_and_no_more_than_it_shows(gallery):
    notebook = nbformat.read(gallery, as_version=4)
    models = states(notebook).values()
    texts = [model["state"]["packed"] for model in models if "packed" in model["state"]]
    assert len(texts) == len(set(texts))
    alive = [model for model in models if model["model_module"] == "anywidget"]
    assert len(alive) == len(stored(gallery))
    assert len(models) == len(alive) + len(texts), "something is stored that no picture needs"


def test_a_stored_picture_is_small(gallery):
    models = states(nbformat.read(gallery, as_version=4))
    for name, data in zip(NAMES, stored(gallery), strict=True):
        state = models[data[VIEW]["model_id"]]["state"]
        own = models[state["code"][1].removeprefix(POINTER)]  # code[0] is shared by all kinds
        parts = {"data": json.dumps(state), "code": json.dumps(own), "png": data["image/png"]}
        sizes = {part: len(text) for part, text in parts.items()}
        most = 84_000 if name == "shards" else 72_000  # it draws four ranks and lists every step
        assert sum(sizes.values()) < most, f"{name}: {sizes}"
