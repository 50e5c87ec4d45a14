"""Marked words in the book and in JupyterLab, for readers with a pointer, keys or a finger."""

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from lib.course.glossary import entries
from lib.course.glossary_marks import MOST
from lib.course.tools.book import ROOT, chapters
from tests.browser.seen import SCREENSHOTS
from tests.browser.test_access import complaints
from tests.every import every

CHAPTER = "02-communicating-less"
BOX = ".term-definition"
FORBIDDEN = {"a", "code", "pre", "h1", "h2", "h3", "h4", "script", "summary", "nav"}
VOID = {"img", "br", "hr", "input", "link", "meta", "source", "col", "wbr"}


class Terms(HTMLParser):
    """Reads the marks of a page: what they are inside of, and their section."""

    def __init__(self):
        super().__init__()
        self.open, self.sections, self.marks, self.ids = [], [], [], set()

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.ids.add(given.get("id"))
        if tag == "section":
            self.sections.append(given.get("id"))
        if tag == "a" and "term" in given.get("class", "").split():
            self.marks.append((self.sections[-1], given["href"], set(self.open)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag == "section":
            self.sections.pop()
        if tag in self.open:
            while self.open.pop() != tag:
                pass


def parsed(path):
    page = Terms()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def test_marks_of_the_book_stand_where_they_may(book):
    anchors = parsed(book / "data/glossary.html").ids
    assert {entry.anchor for entry in entries()} <= anchors
    for chapter in chapters():
        page = parsed(book / chapter.file.replace(".ipynb", ".html"))
        assert len(page.marks) > 40, f"{chapter.name} has {len(page.marks)} marks"
        assert every(not inside & FORBIDDEN for _, _, inside in page.marks)
        assert every(href.split("#")[1] in anchors for _, href, _ in page.marks)
        pairs = [(section, href) for section, href, _ in page.marks]
        assert len(set(pairs)) == len(pairs), "a word is marked twice in a section"
        assert max(pairs_in(pairs).values()) <= MOST


def pairs_in(pairs):
    return {section: sum(section == other for other, _ in pairs) for section, _ in pairs}


def test_every_explanation_is_where_its_link_leads(book):
    pages = {chapter.file: parsed(book / chapter.file.replace(".ipynb", ".html")).ids
             for chapter in chapters()}  # fmt: skip
    text = (book / "data/glossary.html").read_text()
    links = re.findall(r'href="\.\./(chapters/[\w-]+)\.html#([^"]+)"', text)
    assert len(links) > len(entries())
    missing = [(file, anchor) for file, anchor in links if anchor not in pages[f"{file}.ipynb"]]
    assert missing == []
    told = re.search(r'id="glossary-definitions">(.*?)</script>',
                     (book / f"chapters/{CHAPTER}.html").read_text(), re.S)[1]  # fmt: skip
    hrefs = [href for one in json.loads(told).values() for _, href in one["links"]]
    places = [(file or f"{CHAPTER}.html", anchor)
              for file, _, anchor in (href.partition("#") for href in hrefs)]  # fmt: skip
    assert every(
        anchor in pages[f"chapters/{file.removesuffix('.html')}.ipynb"] for file, anchor in places
    )


def first_mark(page, section="wait-less-local-sgd"):
    mark = page.locator(f"#{section} a.term", has_text="rank").first
    mark.scroll_into_view_if_needed()
    return mark


def test_the_pointer_opens_a_definition_and_may_enter_it(book_page):
    page = book_page(CHAPTER)
    mark, box = first_mark(page), page.locator(BOX)
    height = page.evaluate("() => document.body.scrollHeight")
    mark.hover()
    box.wait_for()
    assert "A rank is one process" in box.text_content()
    assert page.evaluate("() => document.body.scrollHeight") == height, "the page moves"
    box.hover()
    page.wait_for_timeout(600)
    link = box.get_by_role("link", name="chapter 0, Start four ranks")
    assert link.is_visible(), "a box is there as long as the pointer is in it"
    page.mouse.move(2, 2)
    box.wait_for(state="detached")
    mark.hover()
    box.wait_for()
    page.keyboard.press("Escape")
    assert box.count() == 0
    mark.hover()
    page.mouse.move(2, 2)
    mark.hover()
    box.wait_for()
    link.click()
    page.wait_for_url(re.compile(r"00-ranks\.html#start-four-ranks$"))


def focused(page):
    return page.evaluate("() => document.activeElement.textContent.trim()")


def test_the_keyboard_opens_a_definition_and_leads_into_it(book_page):
    page = book_page(CHAPTER)
    mark, box = first_mark(page), page.locator(BOX)
    page.keyboard.press("Tab")  # so that the focus is a keyboard's
    mark.focus()
    box.wait_for()
    described = mark.get_attribute("aria-describedby")
    assert page.locator(f"#{described}").text_content().startswith("rank")
    assert "↓ to the links" in box.text_content()
    page.screenshot(path=SCREENSHOTS / "glossary-keyboard.png")
    page.keyboard.press("ArrowDown")
    assert focused(page).startswith("chapter 0")
    page.keyboard.press("Escape")
    assert box.count() == 0
    assert mark.evaluate("(mark) => mark === document.activeElement"), "where the reader was"
    mark.blur()
    mark.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    assert mark.evaluate("(mark) => mark === document.activeElement") and box.is_visible()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"00-ranks\.html#start-four-ranks$"))


def test_arrow_keys_lead_to_every_word_and_tab_to_one_of_each_section(book_page):
    page = book_page("01-data-parallel")
    marks = page.locator("article a.term:visible")
    sections = marks.evaluate_all("(all) => new Set(all.map((a) => a.closest('section').id)).size")
    for _ in range(100):
        page.keyboard.press("Tab")
        if marks.first.evaluate("(mark) => mark === document.activeElement"):
            break
    words = [word.strip() for word in marks.all_text_contents()[:20]]
    walked = [(focused(page), page.keyboard.press("ArrowRight"))[0] for _ in words]
    assert walked == words
    page.keyboard.press("ArrowLeft")
    assert focused(page) == words[-1]
    page.keyboard.press("Tab")
    assert page.locator("article a.term:visible[tabindex='0']").count() >= sections > 10
    assert focused(page) not in words[-1:], "Tab leaves the section's words behind"
    assert page.locator(BOX).locator("a[tabindex='0']").count() == 0


def test_few_tabs_lead_to_the_first_guess(book_page):
    """They were 74: each word was a stop, and so was the link in its hidden box."""
    page = book_page("01-data-parallel")
    guess = page.locator("figure.mrom[aria-label='Your guess']").first
    guess.locator("canvas").first.wait_for()
    inside = "(figure) => figure.contains(document.activeElement)"
    tabs = 0
    while tabs < 100 and not guess.evaluate(inside):
        page.keyboard.press("Tab")
        tabs += 1
    assert 10 < tabs - 1 <= 37


def test_a_tap_opens_and_a_tap_elsewhere_closes(book, browser, wrongs):
    context = browser.new_context(viewport={"width": 360, "height": 740}, has_touch=True)
    page = context.new_page()
    page.on("pageerror", lambda error: wrongs.append(f"uncaught: {error}"))
    page.goto((book / f"chapters/{CHAPTER}.html").as_uri())
    mark, box = first_mark(page), page.locator(BOX)
    mark.tap()
    box.wait_for()
    room = box.bounding_box()
    assert room["x"] >= 0 and room["x"] + room["width"] <= 360
    page.screenshot(path=SCREENSHOTS / "glossary-tap.png")
    page.locator("#wait-less-local-sgd > h2").tap()
    assert box.count() == 0
    mark.tap()
    box.wait_for()
    mark.tap()
    page.wait_for_url(re.compile(r"data/glossary\.html#glossary-rank$"))
    context.close()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing_in_a_definition_and_in_the_list(book, book_page, dark):
    page = book_page(CHAPTER, dark=dark)
    page.keyboard.press("Tab")
    first_mark(page).focus()  # with the line about keys
    page.locator(BOX).locator("small").wait_for()
    page.screenshot(path=SCREENSHOTS / f"glossary-{'dark' if dark else 'light'}.png")
    said = complaints(page, "#wait-less-local-sgd")
    assert not said, said
    page.goto((book / "data/glossary.html").as_uri())
    said = complaints(page, "main article")
    assert not said, said


def test_print_and_a_page_without_scripts_have_plain_words(book, book_page):
    page = book_page(CHAPTER, scripts=False)
    mark = page.locator("#wait-less-local-sgd a.term", has_text="rank").first
    line = "(mark) => getComputedStyle(mark).textDecorationLine"
    assert mark.get_attribute("href").endswith("glossary.html#glossary-rank")
    page.emulate_media(media="print")
    page = book_page(CHAPTER)
    mark = first_mark(page)
    assert mark.evaluate(line) == "underline"
    page.emulate_media(media="print")
    assert mark.evaluate(line) == "none"


# --- JupyterLab

MODEL = "jupyterapp.shell.currentWidget.context.model"
MARKS = ".jp-Notebook .jp-RenderedMarkdown a.term"
SETTLED = f"() => {MODEL}.getMetadata('language_info')?.version"  # the kernel says what it is


@pytest.fixture
def stored(folder, tmp_path_factory):
    """A chapter where JupyterLab serves, in a course of its own."""
    made = folder / tmp_path_factory.mktemp("words").name / "chapters"
    shutil.copytree(ROOT / "chapters/images", made / "images")
    return Path(shutil.copy(ROOT / chapters()[0].file, made))


def test_words_are_marked_in_jupyterlab_and_the_notebook_stays_as_it_is(lab, folder, stored):
    before = stored.read_bytes()
    page = lab.open(stored.relative_to(folder).with_suffix("").as_posix())
    mark, box = page.locator(MARKS, has_text="ranks").first, page.locator(BOX)
    mark.wait_for()
    forbidden = ", ".join(f"{tag} a.term" for tag in sorted(FORBIDDEN))
    assert page.locator(f".jp-RenderedMarkdown :is({forbidden})").count() == 0
    mark.hover()
    box.wait_for()
    assert "A rank is one process" in box.text_content()
    page.keyboard.press("Escape")
    assert box.count() == 0
    page.keyboard.press("Tab")
    stops = "(cells) => cells.map((cell) => cell.querySelectorAll('a.term[tabindex=\"0\"]').length)"
    assert max(page.locator(".jp-MarkdownCell").evaluate_all(stops)) == 1
    mark.focus()
    page.keyboard.press("ArrowDown")
    assert focused(page).startswith("chapter 0")
    page.screenshot(path=SCREENSHOTS / "glossary-jupyterlab.png")
    page.keyboard.press("Escape")
    page.wait_for_function(SETTLED)
    page.wait_for_timeout(500)
    assert not page.evaluate(f"() => {MODEL}.dirty")
    page.evaluate("() => jupyterapp.commands.execute('docmanager:save')")
    assert stored.read_bytes() == before

    text = "# Mine\\n\\nA ring and `a ring`, $ring$ and a ring.\\n\\nTwo rings, a mesh"
    page.evaluate(f"() => {MODEL}.cells.get(0).sharedModel.setSource('{text}')")
    cell = page.locator(".jp-MarkdownCell").first
    cell.locator("a.term", has_text="mesh").wait_for()
    words = cell.locator("a.term").all_text_contents()
    assert words in (["ring", "mesh"], ["rings", "mesh"]), (
        "one with a formula waits until it is set"
    )
    assert "term" not in page.evaluate(f"() => {MODEL}.cells.get(0).sharedModel.getSource()")
    page.context.close()


def test_the_list_opens_in_jupyterlab_at_the_word(lab, folder, stored):
    page = lab.open(stored.relative_to(folder).with_suffix("").as_posix())
    mark = page.locator(MARKS, has_text="ledger").first
    mark.wait_for()
    number = page.evaluate(f"() => {MODEL}.cells.length")
    mark.focus()
    page.keyboard.press("Enter")
    terms = page.locator(".term-list dt")
    terms.first.wait_for()
    assert terms.count() == len(entries())
    page.wait_for_function("() => document.activeElement.id === 'glossary-ledger'")
    assert 0 < page.locator("#glossary-ledger").bounding_box()["y"] < 900, "it is in sight"
    assert page.evaluate("() => jupyterapp.commands.label('many-ranks:glossary')") == (
        "Many Ranks: Glossary"
    )
    page.screenshot(path=SCREENSHOTS / "glossary-list.png")
    said = complaints(page, ".term-list")
    assert not said, said
    page.locator("#glossary-collective + dd a").click()
    page.wait_for_function("() => jupyterapp.shell.currentWidget.context?.path")
    heading = page.locator(".jp-RenderedMarkdown h2", has_text="The collectives")
    heading.wait_for()
    page.wait_for_function(
        "(node) => node.getBoundingClientRect().top < innerHeight", arg=heading.element_handle()
    )
    assert (
        page.evaluate("() => jupyterapp.shell.currentWidget.context.model.cells.length") == number
    )
    page.context.close()
