"""The book around its pictures: search, widths, print, and links, all from a file."""

import re

import pytest

from lib.course.tools.book import chapters
from tests.browser.seen import SCREENSHOTS


@pytest.fixture
def at(book, new_page):
    """`at("search.html?q=ring", width=360)`: that page of the book, from a file, no network."""
    pages = []

    def go(address, **options):
        pages.append(new_page(offline=True, **options))
        pages[-1].goto(f"{book.as_uri()}/{address}")
        return pages[-1]

    yield go
    for page in pages:
        page.context.close()


TWO = ("00-ranks", "06-pipeline-bubbles")

# --- search


def test_a_search_finds_sections_with_excerpts(at):
    page = at("chapters/00-ranks.html", width=640)
    page.keyboard.press("Control+k")  # the theme's own search box
    page.keyboard.type("rounds latenc")  # the last word may go on
    page.keyboard.press("Enter")
    page.wait_for_url("**/search.html?q=rounds+latenc")
    status, found = page.get_by_role("status"), page.locator(".search-list li")
    assert status.inner_text() == f"{found.count()} sections have all of these words."
    first = found.first
    assert first.locator(".search-chapter").inner_text()
    excerpts = [" ".join(one.locator(".search-excerpt mark").all_inner_texts()).lower()
                for one in found.all()]  # fmt: skip
    assert all(excerpts) and any("rounds" in one and "latenc" in one for one in excerpts)
    field = page.locator(".bd-search-container input")
    assert field.evaluate("node => node === document.activeElement")
    page.keyboard.press("Tab")  # from the field to the first result
    page.keyboard.press("Enter")
    page.wait_for_url("**/chapters/*.html#*")
    anchor = page.url.partition("#")[2]
    assert page.locator(f"section[id='{anchor}']").count() == 1


def test_a_search_follows_what_is_typed_and_says_when_nothing_is_found(at):
    page = at("search.html?q=all-reduce")
    said, links = page.get_by_role("status"), page.locator(".search-list a")
    assert "; these are the best 40." in said.inner_text() and links.count() == 40
    assert "all" in links.first.locator("mark").inner_text()  # headings come first
    field = page.locator(".bd-search-container input")
    field.fill("<img src=x> zzz")  # no HTML, and no pattern
    assert said.inner_text() == "No section has all of these words." and not links.count()
    field.fill("*( ")
    assert said.inner_text() == "No section has all of these words."
    field.fill("")
    assert said.inner_text() == ""


def test_no_answer_is_found_before_it_is_revealed(at):
    """Solutions are folded away on their pages, so no excerpt tells one."""
    page = at("search.html?q=")
    held = page.evaluate("() => JSON.stringify(manyRanksSections)")
    assert "Exercise 2: write" in held
    assert "As in the second lap of the ring" not in held


def test_the_text_that_goes_on_from_an_answer_is_covered_with_it(at):
    page = at("chapters/12-sequence-parallel.html", width=360)
    text = page.get_by_text("One layer for one sample needs more than an H100 has")
    said = page.locator(".mrom-covers:visible").first
    said.wait_for()
    assert said.inner_text() == "The text that follows is covered too."
    assert not text.is_visible()
    page.get_by_role("button", name="Show me").first.click()
    text.wait_for()
    page.reload()  # the browser remembers
    page.locator(".mrom-covers:visible").first.wait_for()  # of the next answer
    assert text.is_visible()


# --- paper

SEEN_ON_PAPER = """() => {
    const isSeen = (node) => node.checkVisibility() && node.getBoundingClientRect().width > 0;
    const count = (what) => [...document.querySelectorAll(what)].filter(isSeen).length;
    const paper = (node) => getComputedStyle(node).backgroundColor;
    const whole = [...document.querySelectorAll("article img")].filter(isSeen)
        .every((image) => getComputedStyle(image).breakInside === "avoid");
    return {
        pressed: count("button, input, select, canvas, nav, .mrom, .headerlink"),
        stills: count("article .picture-printed"), titles: count("h1"), whole,
        answers: count(".picture-printed details p"),
        paper: [paper(document.documentElement), paper(document.body)],
        ink: getComputedStyle(document.querySelector("article p")).color,
    };
}"""


@pytest.mark.parametrize("chapter", TWO)
def test_a_page_is_printed_without_controls_and_nothing_cut(at, chapter):
    page = at(f"chapters/{chapter}.html", width=680, dark=True)  # A4 between its margins
    page.locator("figure.mrom").last.wait_for(state="attached")
    figures = page.locator("figure.mrom").count()
    assert page.evaluate(SEEN_ON_PAPER)["pressed"] > figures > 10
    page.emulate_media(media="print", color_scheme="dark")
    page.evaluate("() => dispatchEvent(new Event('beforeprint'))")
    seen = page.evaluate(SEEN_ON_PAPER)
    assert (seen["pressed"], seen["titles"], seen["stills"]) == (0, 1, figures)
    assert seen["whole"] and seen["answers"] > 2
    assert seen["paper"] == ["rgb(255, 255, 255)"] * 2 and max(rgb(seen["ink"])) < 80
    assert page.evaluate(CUT) == []
    page.evaluate("() => dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("() => document.documentElement.dataset.theme") == "dark"
    pages = len(re.findall(rb"/Type\s*/Page\b", page.pdf(format="A4")))
    assert 15 < pages <= 32, f"{pages} pages"


def rgb(colour):
    """The three numbers of "rgb(1, 2, 3)"."""
    return [int(number) for number in re.findall(r"\d+", colour)[:3]]


def test_a_solution_is_printed_where_its_reader_has_unfolded_it(at):
    page = at("chapters/00-ranks.html", width=680)
    page.emulate_media(media="print")
    solution = page.locator("details:has(> summary:text-is('Solution'))").first
    said = "(node) => getComputedStyle(node.firstElementChild, '::after').content"
    assert "in the notebook" in solution.evaluate(said)
    assert not solution.locator("p").first.is_visible()
    solution.evaluate("(node) => (node.open = true)")
    assert solution.evaluate(said) == "none" and solution.locator("p").first.is_visible()


# --- widths

CUT = """() => [...document.querySelectorAll("article pre")]
    .filter((pre) => pre.scrollWidth > pre.clientWidth).map((pre) => pre.textContent)"""
WHOLE = "article .cell_input pre { white-space: pre !important }"


@pytest.mark.parametrize("chapter", TWO)
def test_code_and_messages_are_never_cut(at, chapter):
    """Lines wrap on a phone; from 1,200 px on a line of code has the room that it needs."""
    page = at(f"chapters/{chapter}.html", width=360)
    page.locator("figure.mrom").first.wait_for()
    for width in (360, 640, 1000, 1200, 1280, 1440, 1920):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.locator("article .cell_input pre").count() > 10
        assert page.evaluate(CUT) == [], f"cut at {width} px"
        assert page.evaluate("() => document.documentElement.scrollWidth") == width
    page.add_style_tag(content=WHOLE)
    for width in (1200, 1280, 1440):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate(CUT) == [], f"wrapped at {width} px"


# --- the sidebar


def test_the_drawer_of_contents_closes_when_a_section_is_chosen(at):
    page = at("chapters/06-pipeline-bubbles.html", width=360)
    page.locator(".secondary-toggle").click()
    drawer = page.locator("dialog[open]")
    drawer.get_by_role("link", name="See it (3 min)").click()
    drawer.wait_for(state="detached")
    assert page.locator("h2", has_text="See it (3 min)").bounding_box()["y"] < 400
    page.locator(".secondary-toggle").click()
    drawer.get_by_role("link", name="See it (3 min)").wait_for()


def test_the_sidebar_says_the_numbers_of_chapters_and_of_nothing_else(at):
    links = at("README.html").locator(".bd-sidebar-primary .toctree-l1 a")
    told, others = (links.and_(links.page.locator(which)).all_inner_texts()
                    for which in ("[href^='chapters/']", ":not([href^='chapters/'])"))  # fmt: skip
    numbered = [f"{n}. {chapter.title}" for n, chapter in enumerate(chapters())]
    assert told[: len(numbered)] == numbered  # this book has pages of tests after them
    assert others and not any(re.match(r"\d", text) for text in others)


def test_the_list_of_chapters_has_room_for_its_sentences_on_a_phone(at):
    page = at("README.html", width=360)
    heads = page.locator("#the-chapters th")
    assert [head.inner_text() for head in heads.all() if head.is_visible()] == [
        "chapter", "minutes in all", "then you can"
    ]  # fmt: skip
    assert heads.last.bounding_box()["width"] >= 120
    page.screenshot(path=SCREENSHOTS / "book-chapters-360.png", full_page=True)
