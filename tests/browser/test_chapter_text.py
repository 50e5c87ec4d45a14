"""The text of a chapter as JupyterLab and the book set it: its widths, its rules, its tables."""

import shutil

import nbformat
import pytest

from lib.course.tools.book import ROOT
from tests.browser.seen import SCREENSHOTS
from tests.browser.test_access import complaints
from tests.every import every

CHAPTER = "12-sequence-parallel"  # it has wide tables, a rule and tables with an empty corner
TEXT = ".many-ranks-chapter .jp-RenderedMarkdown"
LETTERS = """(texts) => texts.filter((one) => one.textContent.length > 250 && one.clientHeight).map(
    (text) => text.textContent.length * parseFloat(getComputedStyle(text).lineHeight)
        / text.clientHeight)"""
RULE = """(rule) => {
    const { width, height } = rule.getBoundingClientRect();
    return width > 20 && width < 80 && height <= 1 && rule.parentElement.clientWidth > 5 * width;
}"""


@pytest.fixture(scope="module")
def chapter(lab, folder, tmp_path_factory):
    """A chapter in a wide window of JupyterLab, in a course of its own."""
    made = folder / tmp_path_factory.mktemp("text").name / "chapters"
    shutil.copytree(ROOT / "chapters/images", made / "images")
    shutil.copy(ROOT / f"chapters/{CHAPTER}.ipynb", made)
    address = (made / CHAPTER).relative_to(folder).as_posix()
    page = lab.open(address, width=1920, height=1000)
    page.locator(f"{TEXT} a.term").first.wait_for()
    cells = nbformat.read(ROOT / f"chapters/{CHAPTER}.ipynb", as_version=4).cells
    last = sum(cell.cell_type == "markdown" for cell in cells) - 1
    page.locator(TEXT).nth(last).wait_for(state="attached")  # JupyterLab sets cells one by one
    page.evaluate("() => jupyterapp.shell.collapseLeft()")
    yield page
    page.context.close()


def test_text_in_jupyterlab_has_lines_of_80_letters_and_tables_are_wide(chapter):
    letters = chapter.locator(f"{TEXT} > p").evaluate_all(LETTERS)
    assert every(60 < one < 90 for one in letters) and len(letters) > 3
    width = "(all) => Math.max(...all.map((one) => one.getBoundingClientRect().width))"
    text = chapter.locator(f"{TEXT} > p:not(:has(img))").evaluate_all(width)
    assert 0.8 * text < chapter.locator(f"{TEXT} img").evaluate_all(width) < 1.05 * text
    assert chapter.locator(f"{TEXT} table").evaluate_all(width) > text
    left = "(all) => [...new Set(all.map((one) => Math.round(one.getBoundingClientRect().left)))]"
    (edge,) = chapter.locator(f"{TEXT} > table").evaluate_all(left)
    assert edge in chapter.locator(f"{TEXT} > p").evaluate_all(left)
    assert chapter.locator(".jp-CodeCell .cm-editor").evaluate_all(width) > 1.5 * text


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing_in_the_text_in_jupyterlab(lab, chapter, dark):
    lab.turn(chapter, dark=dark)
    try:
        assert chapter.locator(f"{TEXT} table").count() > 2
        said = complaints(chapter, TEXT)
        chapter.screenshot(path=SCREENSHOTS / f"lab-text-{'dark' if dark else 'light'}.png")
    finally:
        lab.turn(chapter, dark=False)
    assert not said, said


def test_a_rule_is_short_in_jupyterlab_and_in_the_book(chapter, book_page):
    rule = chapter.locator(f"{TEXT} hr")
    assert every(one.evaluate(RULE) for one in rule.all())
    page = book_page(CHAPTER)
    assert every(one.evaluate(RULE) for one in page.locator("article hr").all())
