"""The page of the course in JupyterLab, and the way from chapter to chapter."""

import json
import re
import shutil

import pytest

from lib.course.jupyter import landing
from lib.course.tools import copies
from lib.course.tools.book import ROOT, chapters
from tests.browser.jupyter import Lab
from tests.browser.seen import SCREENSHOTS
from tests.browser.test_access import complaints

PAGE = ".many-ranks-course"
SHOWN = chapters()[:3]
OPEN = "async () => { await jupyterapp.commands.execute('many-ranks:course'); }"


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A course of the first three chapters, with the reader's copies."""
    made = tmp_path_factory.mktemp("course")
    (made / "chapters").mkdir()
    shutil.copytree(ROOT / "chapters/images", made / "chapters/images")
    for chapter in SHOWN:
        shutil.copy(ROOT / chapter.file, made / chapter.file)
    about = ("minutes", "ranks", "needs", "gives")
    entries = [{"file": chapter.file, "title": chapter.title,
                "meta": {name: getattr(chapter, name) for name in about}}
               for chapter in SHOWN]  # fmt: skip
    text = {"root": "README", "meta": {"title": "A course"}, "subtrees": [{"entries": entries}]}
    (made / "book.yml").write_text(json.dumps(text))
    copies.prepare(made)
    return made


@pytest.fixture(scope="module")
def desk(course, tmp_path_factory, new_page):
    """JupyterLab as `make lab` opens it for a reader whose course that is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANKS_HOME", str(course))
        lab = Lab(course, tmp_path_factory.mktemp("home"), new_page)
    try:
        page = lab.first_page(width=1200)
        page.wait_for_selector(f"{PAGE} h1")
        yield lab, page
        page.context.close()
    finally:
        lab.close()


def wide(page, width):
    """Gives the page another width, and the course nearly all of it."""
    page.set_viewport_size({"width": width, "height": 900})
    page.evaluate("() => jupyterapp.shell.collapseLeft()")
    page.wait_for_timeout(300)


def test_the_page_of_the_course_opens_first_and_leads_into_chapters(desk, course):
    """One finds the chapters, goes on where one stopped, and comes back, with keys alone."""
    _, page = desk
    assert page.locator(f"{PAGE} h3").all_text_contents() == [
        f"{number}. {chapter.title}" for number, chapter in enumerate(SHOWN)
    ]
    begin = page.locator(f"{PAGE} .many-ranks-go")
    assert begin.text_content() == f"Begin: Chapter 0, {SHOWN[0].title}"
    link = page.locator(f"{PAGE} h3 a").nth(1)
    assert re.search(r"/lab/tree/my-chapters/01-data-parallel\.ipynb$", link.get_attribute("href"))
    link.press("Enter")
    ready = "(path) => jupyterapp.shell.currentWidget?.context?.path === path"
    page.wait_for_function(ready, arg=f"my-chapters/{SHOWN[1].name}.ipynb")
    bar = page.locator(".jp-NotebookPanel-toolbar:visible")
    bar.get_by_role("button", name="Chapter 2 →").wait_for()
    page.evaluate("() => { jupyterapp.shell.currentWidget.content.activeCellIndex = 9; }")
    cell = page.evaluate("() => jupyterapp.shell.currentWidget.content.activeCell.model.id")
    copy = copies.of(course / SHOWN[1].file)
    for _ in range(100):
        page.wait_for_timeout(100)
        if landing.place(copy) == cell:
            break
    assert landing.place(copy) == cell
    page.screenshot(path=SCREENSHOTS / "chapter-between-others.png")
    bar.get_by_role("button", name="The course").click()
    begin.get_by_text(f"Continue: Chapter 1, {SHOWN[1].title}").wait_for()
    assert "last opened today" in page.locator(f"{PAGE} li").nth(1).text_content()
    page.evaluate("""async () => {
        const panel = [...jupyterapp.shell.widgets("main")].find((one) => one.context);
        await panel.sessionContext.shutdown();
        panel.context.model.dirty = false;
        panel.close();
    }""")
    begin.press("Enter")
    page.wait_for_function(
        "(id) => jupyterapp.shell.currentWidget.content?.activeCell?.model.id === id", arg=cell
    )
    page.evaluate(OPEN)
    page.locator(f"{PAGE} h1").wait_for()


def test_the_source_of_a_picture_opens_beside_the_chapter(desk):
    """A link in the tools of a picture, which is in a shadow root in some hosts."""
    _, page = desk
    place = page.evaluate("globalThis.manyRanksSource")
    assert place.endswith("/lab/tree/{file}")
    page.evaluate("""(file) => {
        const host = document.body.appendChild(document.createElement("div"));
        host.attachShadow({ mode: "open" }).innerHTML =
            `<div class="mrom-menu"><a id="source" data-file="${file}" href="#">source</a></div>`;
        host.shadowRoot.querySelector("a").click();
        host.remove();
    }""", "book.yml")  # fmt: skip
    path = "jupyterapp.shell.currentWidget?.context?.path === 'book.yml'"
    page.wait_for_function(path)
    page.evaluate("jupyterapp.shell.currentWidget.close()")


EXERCISES = ["predict", "write", "repair", "reshard", "choose"]
AGAIN = "id => [...jupyterapp.shell.widgets('main')].find((one) => one.id === id).onAfterShow()"


@pytest.fixture(scope="module")
def solved(desk):
    """The page, where two of five exercises of chapter 1 are solved."""
    lab, page = desk

    def answer(route):
        response = route.fetch()
        about = response.json()
        about["chapters"][1] |= {"exercises": EXERCISES, "solved": ["write", "predict"]}
        route.fulfill(response=response, json=about)

    page.route("**/many-ranks/course*", answer)
    page.evaluate(OPEN)
    page.evaluate(AGAIN, "many-ranks-course")
    page.locator(f"{PAGE} progress").first.wait_for()
    return lab, page


@pytest.mark.parametrize("width", [360, 640, 1200])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_page_is_readable_everywhere(solved, width, dark):
    lab, page = solved
    lab.turn(page, dark=dark)
    wide(page, width)
    node = page.locator(PAGE)
    text = node.locator("li").nth(1).text_content()
    assert "2 of 5 exercises solved: ✓ predict, ✓ write, repair, reshard, choose" in text
    assert node.evaluate("(node) => node.scrollWidth <= node.clientWidth"), "it is cut off"
    said = complaints(page, PAGE)
    page.screenshot(path=SCREENSHOTS / f"course-{width}-{'dark' if dark else 'light'}.png")
    assert not said, said


IN_SIGHT = """(id) => {
    const { content } = jupyterapp.shell.currentWidget, cell = content?.activeCell;
    if (cell?.model.id !== id) return false;
    const frame = content.node.getBoundingClientRect(), box = cell.node.getBoundingClientRect();
    return box.top >= frame.top - 1 && box.top < frame.bottom;
}"""


def test_one_goes_on_where_one_stopped_also_in_tabs_that_come_back(desk, course, wrongs):
    lab, other = desk
    page = lab.first_page(width=1200)
    ready = "(path) => jupyterapp.shell.currentWidget?.context?.path === path"
    page.wait_for_selector(f"{PAGE} h1")
    cells = {}
    for number in (2, 1):
        page.evaluate(OPEN)
        page.wait_for_selector(f"{PAGE} h1")
        page.locator(f"{PAGE} h3 a").nth(number).press("Enter")
        page.wait_for_function(ready, arg=f"my-chapters/{SHOWN[number].name}.ipynb")
        bar = page.locator(".jp-NotebookPanel-toolbar:visible")
        bar.get_by_role("button", name="The course").wait_for()
        page.wait_for_timeout(500)
        page.evaluate("() => { jupyterapp.shell.currentWidget.content.activeCellIndex = 20; }")
        cells[number] = page.evaluate(
            "() => jupyterapp.shell.currentWidget.content.activeCell.model.id"
        )
        copy = copies.of(course / SHOWN[number].file)
        for _ in range(100):
            page.wait_for_timeout(100)
            if landing.place(copy) == cells[number]:
                break
        assert landing.place(copy) == cells[number]
    saved = "async () => JSON.stringify(await jupyterapp.serviceManager.workspaces.list())"
    page.wait_for_function(f"async () => (await ({saved})()).includes('{SHOWN[1].name}.ipynb')")
    told = (course / copies.FOLDER / landing.FILE).read_text()
    page.goto(f"{lab.address}/lab")
    page.wait_for_selector(f"{PAGE} h1")
    names = "() => [...jupyterapp.shell.widgets('main')].filter((one) => one.context).length"
    page.wait_for_function(f"() => ({names})() >= 2")
    page.wait_for_timeout(2500)
    here = (course / copies.FOLDER / landing.FILE).read_text()
    assert here == told, "tabs that nobody looks at are not where the reader is"
    page.evaluate(OPEN)
    page.locator(f"{PAGE} .many-ranks-go").get_by_text("Continue: Chapter 1").press("Enter")
    page.wait_for_function(IN_SIGHT, arg=cells[1])
    page.wait_for_timeout(3000)
    assert page.evaluate(IN_SIGHT, cells[1]), "what loads later pushes it away"
    page.evaluate(OPEN)
    page.locator(f"{PAGE} h3 a").nth(2).press("Enter")
    page.wait_for_function(IN_SIGHT, arg=cells[2])
    page.context.close()
    other.evaluate("() => jupyterapp.serviceManager.sessions.shutdownAll()")
    other.wait_for_timeout(500)
    wrongs.clear()  # its kernels have ended under it


def test_its_tab_is_there_when_one_comes_back(desk):
    """Beside the chapter that the address names, one that no other page has open."""
    lab, _ = desk
    page = lab.first_page(width=1200)
    page.wait_for_selector(f"{PAGE} h1")
    page.locator(f"{PAGE} h3 a").nth(2).press("Enter")
    ready = "(path) => jupyterapp.shell.currentWidget?.context?.path === path"
    path = f"my-chapters/{SHOWN[2].name}.ipynb"
    page.wait_for_function(ready, arg=path)
    saved = "async () => JSON.stringify(await jupyterapp.serviceManager.workspaces.list())"
    page.wait_for_function(f"async () => (await ({saved})()).includes('notebook:{path}')")
    idle = "() => jupyterapp.shell.currentWidget.sessionContext.session?.kernel?.status === 'idle'"
    page.wait_for_function(idle)
    page.evaluate("() => jupyterapp.shell.currentWidget.sessionContext.shutdown()")
    page.goto(f"{lab.address}/lab/tree/{path}")
    page.wait_for_function(ready, arg=path)
    page.wait_for_function(idle)
    page.locator(".lm-TabBar-tab").get_by_text("The course", exact=True).click()
    page.locator(f"{PAGE} h1").wait_for()
    page.context.close()
