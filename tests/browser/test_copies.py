"""No chapter is lost by looking at it: what JupyterLab saves, and the reader's own copies."""

import json
import shutil

import nbformat
import pytest

from lib.course.tools import copies
from lib.course.tools.book import ROOT, chapters
from lib.course.tools.run import KERNEL
from lib.course.tools.widgets import VIEW, states
from tests.browser.seen import SCREENSHOTS

FIRST = chapters()[0].file
MODEL = "jupyterapp.shell.currentWidget.context.model"
# the kernel has told what it is, and every view has heard that the widgets are restored
SETTLED = f"() => {MODEL}.getMetadata('language_info')?.version"


@pytest.fixture
def course(lab, folder, tmp_path_factory, monkeypatch):
    """A course of one chapter where JupyterLab serves; signing uses that server's own keys."""
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(lab.home / "data"))
    made = folder / tmp_path_factory.mktemp("course").name
    (made / "chapters").mkdir(parents=True)
    shutil.copy(ROOT / FIRST, made / FIRST)
    shutil.copytree(ROOT / "chapters/images", made / "chapters/images")
    (made / "README.md").write_text("# A course\n")
    return made


OPEN = """async (path) => {
    document.querySelectorAll(".Toastify__close-button").forEach((button) => button.click());
    const { commands, shell } = jupyterapp;
    const panel = await commands.execute("docmanager:open", { path });
    shell.activateById(panel.id);
    await panel.context.ready;
    await panel.sessionContext.ready;
}"""


CLOSE = """async () => {
    const panel = jupyterapp.shell.currentWidget;
    await panel.sessionContext.shutdown();
    panel.context.model.dirty = false;
    panel.close();
}"""


@pytest.fixture(scope="module")
def desk(lab, folder):
    """One page of JupyterLab for all of these tests."""
    empty = nbformat.v4.new_notebook(metadata={"kernelspec": dict(KERNEL)})
    nbformat.write(empty, folder / "desk.ipynb")
    page = lab.open("desk")
    yield page
    page.context.close()


@pytest.fixture
def show(desk, folder):
    """`show(path)`: that notebook in JupyterLab, its kernel running, nothing run."""

    def opened(path):
        desk.evaluate(OPEN, path.relative_to(folder).as_posix())
        desk.wait_for_function(SETTLED)
        return desk

    yield opened
    desk.evaluate(CLOSE)


def save(page):
    page.evaluate("() => jupyterapp.commands.execute('docmanager:save')")


def edit(page, text):
    """Writes a first line into the second cell, as a reader who types."""
    page.evaluate(
        f"""(text) => {{
            const {{ sharedModel }} = {MODEL}.cells.get(1);
            sharedModel.setSource(text + sharedModel.getSource());
        }}""",
        text,
    )


def changed(path):
    """Another version of the chapter at `path`, as `git pull` may bring it."""
    notebook = json.loads(path.read_text())
    notebook["cells"][0]["source"].append("\nRevised.")
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n")


# The sign that JupyterLab draws above a stored widget once there is a kernel, for each picture.
BROKEN = """() => [...document.querySelectorAll(".jupyter-widgets-disconnected")]
    .filter((node) => node.querySelector("figure.mrom"))
    .map((node) => getComputedStyle(node, "::before").content)"""


@pytest.mark.parametrize("trust", [False, True], ids=["untrusted", "trusted"])
def test_looking_at_a_stored_chapter_leaves_its_file_as_it_was(course, show, trust):
    """Case 30: the tab was dirty at once, and a save dropped the state of every picture."""
    path = course / FIRST
    if trust:
        copies._trust(path)
    before = path.read_bytes()
    page = show(path)
    pictures = len(states(nbformat.read(path, as_version=4)))
    assert pictures > 14
    if trust:
        page.locator("figure.mrom").first.wait_for(state="attached")
    page.wait_for_timeout(500)
    assert not page.evaluate(f"() => {MODEL}.dirty"), "JupyterLab would save it by itself"
    save(page)
    assert path.read_bytes() == before
    edit(page, "# mine\n")
    assert page.evaluate(f"() => {MODEL}.dirty"), "what is typed counts as a change"
    save(page)
    after = nbformat.read(path, as_version=4)
    assert after.cells[1].source.startswith("# mine\n")
    assert len(states(after)) == pictures


def test_what_ran_and_what_did_not_is_stored(lab, opened, folder):
    """Case 30: a save after running one cell dropped the pictures of all the others."""
    page = opened("half run", trust=True)
    path = folder / "half run.ipynb"
    before = nbformat.read(path, as_version=4)
    lab.pictures(page)
    lab.run_cell(page, "probe")
    assert set(page.evaluate(BROKEN)) == {"none"}, "a living picture looks as if it were broken"
    save(page)
    after = nbformat.read(path, as_version=4)
    kept = 0
    for old, new in zip(before.cells, after.cells):
        for was, now in zip(old.get("outputs", []), new.get("outputs", [])):
            was, now = (out.data[VIEW]["model_id"] for out in (was, now))
            assert now in states(after), f"{new.id} shows a picture that is not stored"
            assert (was != now) == (new.id == "cell-probe")
            if was == now:
                assert states(after)[now] == states(before)[now]
                kept += 1
    assert kept > 8


@pytest.fixture
def mine(course):
    """The reader's copy of the first chapter, as `make lab` makes it."""
    copies.prepare(course)
    return course / copies.FOLDER / (course / FIRST).name


KEY = "many-ranks-guess: "
GUESSED = """(questions) => questions.forEach((question) => localStorage.setItem(
    `many-ranks-guess: ${question}`, '{"tries": [16], "isShown": false}'))"""


def test_a_copy_lives_at_once_and_starts_again(course, mine, show):
    """Case 30: a reader's copy is worked in, kept, and begun anew from inside JupyterLab."""
    page = show(mine)
    page.locator("figure.mrom").first.wait_for(state="attached")
    wide = page.locator(".jp-RenderedMarkdown img").first.evaluate("(image) => image.naturalWidth")
    assert wide > 0, "images/ lies beside the copies"
    page.screenshot(path=SCREENSHOTS / "copy.png")
    edit(page, "# mine\n")
    page.evaluate(GUESSED, ["What equals full_gradient?", "Of another chapter?"])
    page.get_by_role("button", name="Start again").locator("visible=true").click()
    accept = page.locator(".jp-Dialog").get_by_role("button", name="Start again")
    accept.wait_for()
    page.screenshot(path=SCREENSHOTS / "copy-again.png")
    accept.click()
    notice = page.locator(".Toastify__toast", has_text="What you had is kept as 00-ranks-kept-")
    notice.wait_for()
    page.wait_for_function(SETTLED)
    page.screenshot(path=SCREENSHOTS / "copy-begun-anew.png")
    (kept,) = mine.parent.glob("*-kept-*.ipynb")
    assert nbformat.read(kept, as_version=4).cells[1].source.startswith("# mine\n")
    assert not copies.of(mine).changed
    assert not page.evaluate(f"() => {MODEL}.cells.get(1).sharedModel.getSource()").startswith("#")
    assert page.evaluate("() => jupyterapp.shell.currentWidget.context.path").endswith(mine.name)
    assert page.evaluate("() => Object.keys(localStorage)").count(KEY + "Of another chapter?") == 1
    assert KEY + "What equals full_gradient?" not in page.evaluate("Object.keys(localStorage)")
    page.evaluate("() => localStorage.clear()")


def test_a_revised_chapter_is_offered_and_a_stored_one_leads_to_the_copy(course, mine, show):
    """Case 30: a newer chapter says so in JupyterLab, and does not touch what the reader has."""
    changed(mine)
    changed(course / FIRST)
    before = mine.read_bytes()
    page = show(course / FIRST)
    here = ".Toastify__toast:not(.Toastify__slide-exit--bottom-right)"  # another may be leaving
    toast = page.locator(here, has_text="This is Chapter 0 as the course stores it.")
    toast.wait_for()
    page.screenshot(path=SCREENSHOTS / "stored.png")
    toast.get_by_role("button", name="Open my copy").click()
    page.locator(".Toastify__toast", has_text="Chapter 0 has been revised since").wait_for()
    page.wait_for_function(SETTLED)
    page.screenshot(path=SCREENSHOTS / "revised.png")
    assert page.evaluate("() => jupyterapp.shell.currentWidget.context.path").endswith(
        f"{copies.FOLDER}/{mine.name}"
    )
    assert mine.read_bytes() == before
