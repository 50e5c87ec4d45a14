"""Every picture for those who use a keyboard or a screen reader, in JupyterLab and in the book."""

import pytest

from tests.every import every

axe = pytest.importorskip("axe_playwright_python.sync_playwright")

RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
ASKED = ["label-content-name-mismatch", "empty-table-header"]  # which no tag of RULES includes
REACHED = "button, input, select, textarea, summary, a[href], [tabindex='0']"


def complaints(page, part: str, rules=RULES) -> str:
    """What axe-core says against a part of a page, and against which nodes."""
    options = {"runOnly": {"type": "tag", "values": rules}, "preload": False}  # fetches nothing
    options["rules"] = {rule: {"enabled": True} for rule in ASKED}
    options["resultTypes"] = ["violations"]  # of what passes, one node each: listing all is slow
    found = axe.Axe().run(page, context=part, options=options)
    assert found.response["passes"], f"axe-core found nothing to look at in {part}"
    return found.generate_report() if found.violations_count else ""


def is_walked(seen) -> None:
    """Tab reaches every control from first to last, and leaves the picture behind."""
    nodes = [node for node in seen.node.locator(REACHED).all() if node.is_visible()]
    nodes = [node for node in nodes if node.is_enabled()]
    assert len(nodes) >= 2
    nodes[0].focus()
    for node in nodes:
        focused = node.evaluate("(node) => node === document.activeElement")
        assert focused, f"Tab does not reach {node.evaluate('(node) => node.outerHTML')[:200]}"
        seen.page.keyboard.press("Tab")
    inside = seen.node.evaluate("(figure) => figure.contains(document.activeElement)")
    assert not inside, "Tab stays in the picture"


def is_spoken(seen) -> None:
    """The picture says all of itself in words; arrow keys say what its marks show, one by one."""
    assert seen.node.get_attribute("aria-label")
    assert seen.canvas.get_attribute("aria-label")
    assert seen.node.locator(".mrom-summary pre").text_content()
    told = {mark["about"] for mark in seen.marks if mark.get("about") and mark["kind"] == "box"}
    said = [seen.press(key) for key in ("Home", "ArrowRight", "ArrowDown", "End")]
    assert every(said) or not told, f"keys that say nothing: {said}"
    assert len(set(said)) > 1 or len(told) < 2, "arrow keys stay where they are"


# --- JupyterLab


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing_in_jupyterlab(lab, all_running, dark):
    lab.turn(all_running, dark=dark)
    try:
        said = complaints(all_running, ".jp-OutputArea-output:has(figure.mrom)")
    finally:
        lab.turn(all_running, dark=False)
    assert not said, said


def test_keys_in_jupyterlab(running, name):
    seen = running(name)
    notebook = """() => jupyterapp.shell.currentWidget.content.widgets.map(
        (cell) => [cell.model.id, cell.node.classList.contains("jp-mod-active")])"""
    before = seen.page.evaluate(notebook)
    is_walked(seen)
    is_spoken(seen)
    for key in "abx":  # JupyterLab would add a cell above, below, and cut this one
        seen.canvas.press(key)
    assert seen.page.evaluate(notebook) == before, "a key in a picture edits the notebook"


# --- the book


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing_in_the_book(book_page, book_pictures, dark):
    page = book_page(dark=dark)
    book_pictures(page)
    said = complaints(page, "main article")
    assert not said, said


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize(
    ("address", "width"),
    [
        ("README.html", 640),
        ("README.html", 1280),  # with the list of chapters beside it
        ("search.html?q=ring", 640),
        ("chapters/00-ranks.html", 640),
    ],
)
def test_axe_finds_nothing_on_whole_pages_at_200_percent(book, new_page, address, width, dark):
    """A window of 1,280 px at 200 % has 640 px, and this reader wants nothing to move."""
    page = new_page(width, 450, dark=dark, offline=True)
    page.emulate_media(reduced_motion="reduce")
    page.goto(f"{book.as_uri()}/{address}")
    page.locator("h1").last.wait_for()  # the first is for paper
    page.wait_for_function("() => !document.querySelector('.picture-still')")
    said = complaints(page, "html", [*RULES, "best-practice"])
    moving = page.evaluate(
        "() => document.getAnimations().map((one) => one.effect.target.outerHTML)"
    )
    page.context.close()
    assert not said, said
    assert moving == []


def test_the_first_tab_skips_to_the_text_and_focus_is_seen(book, new_page):
    page = new_page(640, 450, offline=True)
    page.goto(f"{book.as_uri()}/chapters/00-ranks.html")
    page.keyboard.press("Tab")
    link = page.get_by_role("link", name="Skip to main content")
    assert link.evaluate("(node) => node === document.activeElement && node.checkVisibility()")
    page.keyboard.press("Enter")
    assert page.url.endswith("#main-content")
    for _ in range(4):  # what is in the bar above the text
        page.keyboard.press("Tab")
        outline = """() => {
            const style = getComputedStyle(document.activeElement);
            return style.outlineStyle !== "none" || style.boxShadow !== "none";
        }"""
        assert page.evaluate(outline), page.evaluate("() => document.activeElement.outerHTML")
    page.context.close()


@pytest.fixture(scope="module")
def shelf(book, new_page, book_pictures):
    """Every picture of the book by name, on one page."""
    page = new_page(offline=True)
    page.goto((book / "chapters" / "gallery.html").as_uri())
    yield {seen.name: seen for seen in book_pictures(page)}
    page.context.close()


def test_keys_in_the_book(shelf, name):
    is_walked(shelf[name])
    is_spoken(shelf[name])
