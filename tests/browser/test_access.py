"""Every picture for those who use a keyboard or a screen reader, in JupyterLab and in the book."""

import pytest

axe = pytest.importorskip("axe_playwright_python.sync_playwright")

RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
REACHED = "button, input, select, textarea, summary, a[href], [tabindex='0']"


def complaints(page, part: str) -> str:
    """What axe-core says against a part of a page, and against which nodes."""
    options = {"runOnly": {"type": "tag", "values": RULES}, "preload": False}  # fetches nothing
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
    """Arrow keys say what the marks show; the picture says all of itself in words."""
    assert seen.node.get_attribute("aria-label")
    assert seen.ask("p => p.shape.summary") in seen.canvas.get_attribute("aria-label")
    first = seen.press("Home")
    assert first and first in [mark["about"] for mark in seen.marks if mark.get("about")]
    others = {seen.press(key) for key in ("ArrowRight", "ArrowDown", "End")}
    told = {mark["about"] for mark in seen.marks if mark.get("about") and mark["kind"] == "box"}
    assert others <= told
    assert others - {first} or len(told) == 1, "arrow keys stay where they are"


def test_axe_finds_nothing_in_jupyterlab(running, lab, name):
    seen = running(name)
    for dark in (False, True):
        lab.turn(seen.page, dark=dark)
        seen.settle()
        said = complaints(seen.page, ".jp-Cell.jp-mod-active .jp-OutputArea-output:has(figure)")
        assert not said, said
    lab.turn(seen.page, dark=False)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing_in_the_book(book_page, dark):
    page = book_page(dark=dark)
    page.locator("figure.mrom canvas").last.wait_for()
    page.wait_for_function("""() => [...document.querySelectorAll("figure.mrom")]
        .every((figure) => figure.picture?.laid.height)""")
    said = complaints(page, "main article")
    assert not said, said


def test_every_control_is_reached_in_jupyterlab(running, name):
    is_walked(running(name))


def test_every_control_is_reached_in_the_book(in_book, name):
    is_walked(in_book(name))


def test_arrow_keys_speak_in_jupyterlab(running, name):
    seen = running(name)
    notebook = """() => [...jupyterapp.shell.currentWidget.content.widgets].map(
        (cell) => cell.model.id + cell.hasClass("jp-mod-active"))"""
    before = seen.page.evaluate(notebook)
    is_spoken(seen)
    for key in "abx":  # JupyterLab would add a cell above, below, and cut this one
        seen.press(key)
    assert seen.page.evaluate(notebook) == before, "a key in a picture edits the notebook"


def test_arrow_keys_speak_in_the_book(in_book, name):
    is_spoken(in_book(name))
