"""The tools and manners of every picture: saving, full screen, Reset, the kernel, fingers."""

import json
import xml.etree.ElementTree as ET

import pytest
from PIL import Image

from lib.draw import buckets, keep, schedule, timeline
from lib.draw.parts import style
from lib.predict.pipeline.play import Costs, play
from lib.predict.pipeline.schedules import one_f_one_b
from lib.predict.recompute import BlockCost
from tests.browser.test_timeline import box, late

SVG = "{http://www.w3.org/2000/svg}"
COSTS = [BlockCost(1, 4, 0.1)] * 4


def tools(seen):
    """Opens the menu."""
    seen.node.locator(".mrom-tools summary").click()


def said(seen):
    """What a screen reader was told last."""
    return seen.node.locator(".mrom-announcement").text_content()


def saved(seen, label, folder):
    """Presses a button that saves; gives the file."""
    with seen.page.expect_download() as download:
        seen.node.get_by_role("button", name=label, exact=True).click()
    path = folder / download.value.suggested_filename
    download.value.save_as(path)
    return path


# --- the menu


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_picture_is_saved_as_it_is_shown(bench_page, tmp_path, dark):
    seen = bench_page(timeline(late(), over=late()), 640, dark=dark)
    tools(seen)
    path = saved(seen, "Save as PNG", tmp_path)
    assert path.name == "timeline.png" and said(seen) == "Saved as timeline.png."
    image = Image.open(path).convert("RGB")
    height = seen.ask("p => p.laid.height")
    assert image.width == 2 * (640 + 24) and image.height > 2 * (height + 3 * style.LINE)
    paper = tuple(bytes.fromhex(style.PAPER[dark][1:]))
    top = {image.getpixel((x, y)) for x in range(0, 700) for y in range(24, 56)}
    assert image.getpixel((0, 0)) == paper and len(top) > 10, "no heading is on it"
    path = saved(seen, "Save as SVG", tmp_path)
    root = ET.parse(path).getroot()
    assert path.name == "timeline.svg" and root.tag == f"{SVG}svg"
    shown = [node.text for node in root.iter(f"{SVG}text")]
    assert {m["text"] for m in seen.marks if m["kind"] == "text"} <= set(shown)
    page = seen.page.context.new_page()  # by itself, in a viewer
    page.goto(path.as_uri())
    assert page.evaluate("document.querySelector('text').getComputedTextLength()") > 10
    page.close()


def test_a_timeline_is_saved_for_perfetto(bench_page, tmp_path):
    seen = bench_page(timeline(late()))
    tools(seen)
    path = saved(seen, "Save for Perfetto", tmp_path)
    assert path.name == "timeline.trace.json"
    assert said(seen) == "Saved as timeline.trace.json. Open it at ui.perfetto.dev."
    names = [event["name"] for event in json.loads(path.read_text())["traceEvents"]]
    assert names.count("forward") == 2 and names.count("waiting") == 1


def test_numbers_are_copied_and_counted(bench_page):
    seen = bench_page(timeline(late()))
    seen.page.evaluate("""() => document.addEventListener("copy", () => {
        window.copied = document.activeElement.value;
    })""")
    tools(seen)
    button = seen.node.get_by_role("button", name="Copy the numbers")
    button.click()
    assert said(seen) == "Copied 4 rows, with tabs between the columns."
    lines = seen.page.evaluate("copied").splitlines()
    assert len(lines) == 5 and lines[0].startswith("run\trank\tlane\toperation\t")
    assert button.evaluate("(button) => button === document.activeElement")


def test_the_menu_closes_by_escape_and_by_a_press_elsewhere(bench_page):
    seen = bench_page(timeline(late()))
    menu = seen.node.locator(".mrom-tools")
    handle = menu.locator("summary")
    handle.press("Enter")
    seen.node.get_by_role("button", name="Save as PNG").press("Escape")
    assert menu.get_attribute("open") is None
    assert handle.evaluate("(node) => node === document.activeElement")
    tools(seen)
    for target in menu.locator("summary, button").all():
        size = target.bounding_box()
        assert size["height"] >= 24 and size["width"] >= 24
    seen.node.get_by_text("In words", exact=True).click()
    assert menu.get_attribute("open") is not None, "the two are open beside one another"
    seen.canvas.click(position={"x": 300, "y": 30})
    assert menu.get_attribute("open") is None


def test_the_source_is_a_link_where_the_page_says_where_it_lies(bench_page):
    seen = bench_page(timeline(late()))
    assert not seen.node.get_by_text("Open the source").count()
    seen.page.evaluate("globalThis.manyRanksSource = 'https://example.org/{file}?plain'")
    seen = bench_page(timeline(late()))
    tools(seen)
    link = seen.node.get_by_role("link", name="Open the source")
    assert link.get_attribute("href") == "https://example.org/lib/draw/timeline.py?plain"
    assert link.bounding_box()["height"] >= 24
    seen.screenshot("tools-source")
    seen.page.evaluate("delete globalThis.manyRanksSource")


@pytest.mark.parametrize("has_way", [True, False], ids=["screen", "window"])
def test_a_picture_fills_the_screen(bench_page, has_way):
    seen = bench_page(timeline(late()), 640)
    if not has_way:
        seen.node.evaluate("(figure) => (figure.requestFullscreen = undefined)")
    tools(seen)
    seen.node.get_by_role("button", name="Full screen").click()
    leave = seen.node.get_by_role("button", name="Leave full screen")
    leave.wait_for()
    seen.page.wait_for_function("document.querySelector('figure.mrom').picture.scale > 1")
    assert seen.page.evaluate("Boolean(document.fullscreenElement)") == has_way
    seen.settle()
    figure, scale = seen.node.bounding_box(), seen.ask("p => p.scale")
    stage = seen.node.locator(".mrom-stage").bounding_box()
    assert stage["width"] > 0.95 * figure["width"] and stage["height"] > 0.45 * figure["height"]
    assert seen.node.evaluate("(figure) => figure.scrollHeight <= figure.clientHeight")
    bar = box(seen, "rank 1: all_reduce")
    at = {name: scale * value for name, value in seen.place(bar).items()}
    seen.canvas.hover(position=at)
    seen.settle()
    assert seen.tip == bar["about"], "a place on the screen is another one on the picture"
    tip = seen.node.locator(".mrom-tip").bounding_box()
    assert abs(tip["y"] - stage["y"] - at["y"]) < 30 and tip["x"] < stage["x"] + at["x"] + 20
    seen.screenshot(f"full-{has_way}")
    if has_way:
        leave.click()
    else:
        seen.canvas.press("Escape")  # the tooltip first
        seen.canvas.press("Escape")
    seen.page.wait_for_function("document.querySelector('figure.mrom').picture.width === 640")
    assert not seen.page.evaluate("document.fullscreenElement")


# --- Reset


def test_a_reset_is_taken_back_until_the_next_change(bench_page):
    seen = bench_page(schedule("gpipe", 2, 4))
    reset = seen.node.get_by_role("button", name="Reset")
    assert reset.is_disabled()
    seen.press("Home")
    for key in ("ArrowDown", "ArrowRight", "]"):
        seen.press(key)
    moved = seen.state["edits"]
    assert moved
    reset.click()
    seen.settle()
    assert seen.state["edits"] == [] and reset.inner_text() == "Undo reset"
    seen.ask("p => p.set({ now: 0.5 })")  # the play head is no change
    seen.settle()
    reset.click()
    seen.settle()
    assert seen.state["edits"] == moved and reset.inner_text() == "Reset"
    assert seen.state["now"] == 0.5
    reset.click()
    seen.slide("Microbatches", 5)
    assert reset.inner_text() == "Reset" and reset.is_disabled()


def test_a_reset_of_what_is_kept_is_taken_back(bench_page):
    seen = bench_page(keep(COSTS, "none", unit=""))
    seen.press("Home")
    seen.press("Enter")
    hand = seen.state["hand"]
    reset = seen.node.get_by_role("button", name="Reset")
    reset.click()
    seen.settle()
    assert seen.state["policy"] == "none" and reset.inner_text() == "Undo reset"
    reset.click()
    seen.settle()
    assert (seen.state["policy"], seen.state["hand"]) == ("hand", hand)


# --- the kernel


@pytest.fixture
def asked(bench_page):
    """A picture whose kernel has answered the greeting; its button, and what it says beside it."""
    seen = bench_page(buckets([1000] * 4, [0.01] * 4, link="Ethernet 10", ask=lambda size: None))
    seen.page.evaluate("answer({ manyRanks: '' })")
    seen.settle()
    button = seen.node.get_by_role("button", name="Run on real ranks")
    assert button.is_enabled()
    return seen, button, seen.node.locator(".mrom-trouble")


def test_a_kernel_that_is_gone_is_told(asked):
    seen, button, trouble = asked
    button.click()
    seen.page.evaluate("trigger('comm_live_update')")
    seen.settle()
    assert button.inner_text() == "Run on real ranks" and button.is_disabled()
    gone = "The kernel that made this picture has restarted or ended. Run the cell again."
    assert trouble.inner_text() == gone
    seen.page.evaluate("answer({ manyRanks: '' })")  # if it is there after all
    seen.settle()
    assert button.is_enabled() and not trouble.inner_text()


def test_an_answer_that_never_comes_is_told(asked):
    seen, button, trouble = asked
    seen.page.evaluate("""() => {
        const real = setTimeout;
        window.setTimeout = (call, ms) => ms === 60_000 ? (window.late = call) : real(call, ms);
    }""")
    button.click()
    assert seen.node.get_by_text("running …").is_disabled()
    seen.page.evaluate("late()")
    seen.settle()
    assert button.is_enabled() and trouble.inner_text().startswith("The kernel has not answered")


def test_a_kernel_that_restarts_or_dies_in_jupyterlab_is_told(lab, gallery):
    page = lab.open(lab.notebook("restarted", gallery, trust=True))
    kernel = "jupyterapp.shell.currentWidget.sessionContext.session.kernel"
    for end in ("restart()", "requestExecute({ code: 'import os; os._exit(1)' }) && 0"):
        seen = lab.run_cell(page, "probe")
        button = seen.node.get_by_role("button", name="run again")
        page.wait_for_function("(button) => !button.disabled", arg=button.element_handle())
        page.evaluate(f"() => {kernel}.{end}")
        seen.node.get_by_text("has restarted or ended. Run the cell again.").wait_for()
        assert button.is_disabled()
        page.wait_for_function(f'() => {kernel}.status === "idle"')
    page.locator(".jp-Dialog-button.jp-mod-accept").click()  # JupyterLab says that it died
    seen = lab.run_cell(page, "probe")
    seen.control("run again").click()
    seen.node.get_by_text("runs 1").wait_for()
    page.context.close()


# --- fingers, on a phone


PHONE = {
    "timeline": lambda: timeline(
        play(one_f_one_b(4, 8), Costs(1e-3, 1e-3, 1e-3, send=1e-4)).ledger
    ),
    "schedule": lambda: schedule("1f1b", 4, 8),
}


@pytest.mark.parametrize("which", PHONE)
def test_two_fingers_zoom_and_one_moves_what_is_zoomed(fingers, which):
    seen, touch = fingers(PHONE[which]())
    whole = seen.state["to"]
    y = seen.ask("p => p.laid.clip.y + p.laid.clip.h - 4")
    touch("Start", (140, y), (180, y))
    for by in (10, 20, 40):
        touch("Move", (140 - by, y), (180 + by, y))
    touch("End")
    zoomed = seen.state
    assert zoomed["to"] - zoomed["from"] == pytest.approx(whole / 3, rel=0.1)
    y = seen.ask("p => p.laid.clip.y + 2") if which == "schedule" else 20  # above the bars
    touch("Start", (200, y))
    for x in (190, 170, 150):
        touch("Move", (x, y))
    touch("End")
    assert seen.state["from"] > zoomed["from"] + 0.03 * whole
    assert seen.page.evaluate("scrollX + scrollY") == 0
    for fold in seen.node.locator(".mrom-fold > summary").all():
        fold.tap()
    seen.control("Show the whole time").tap()
    seen.settle()
    assert (seen.state["from"], seen.state["to"]) == (0, whole)


def test_what_scrolls_the_page_or_zooms_leaves_the_play_head(fingers):
    """The browser takes the finger over, or a second one comes: neither is a tap."""
    seen, touch = fingers(PHONE["timeline"]())
    seen.canvas.tap(position={"x": 150, "y": 20})
    seen.settle()
    at = seen.state["at"]
    assert at > 0
    touch("Start", (220, 20))
    touch("Cancel")
    touch("Start", (220, 20))
    touch("Start", (220, 20), (260, 20))
    touch("Move", (215, 20), (265, 20))
    touch("End")
    assert seen.state["at"] == at


@pytest.mark.parametrize("which", PHONE)
def test_a_tap_tells_what_a_bar_is(bench_page, which):
    seen = bench_page(PHONE[which](), 304, touch=True)
    start = {"timeline": "rank 0: B", "schedule": "0B3 on rank 0"}[which]
    mark = box(seen, start)
    seen.canvas.tap(position=seen.place(mark))
    seen.settle()
    assert seen.tip == mark["about"] and "from " in seen.tip
    sizes = seen.canvas.evaluate("(canvas) => parseFloat(canvas.getContext('2d').font)")
    assert sizes >= 10


def test_a_bar_of_a_zoomed_schedule_is_where_it_was(bench_page):
    """The play head, the bars and what is under the pointer lie on one axis, zoomed or not."""
    seen = bench_page(schedule("1f1b", 4, 8), 640)
    seen.ask("p => p.set({ from: 400, to: 600, now: 0.5 })")
    seen.settle()
    clip, run = seen.ask("p => [p.laid.clip, { makespan: p.laid.run.makespan }]")
    bar = box(seen, "0B2 on rank 0")
    begin = float(bar["about"].rsplit("from ", 1)[1].split(" to ")[0])
    share = (begin / run["makespan"] - 0.4) / 0.2
    assert bar["x"] == pytest.approx(clip["x"] + 1 + share * (clip["w"] - 2), abs=0.01)
    (head, _) = [mark for mark in seen.ask("p => p.over") if mark.get("thick", 1.6) == 1.6][:2]
    assert head["points"][0][0] == pytest.approx(clip["x"] + clip["w"] / 2, abs=0.01)
    assert seen.hover(bar) == bar["about"]
    seen.drag(bar, 3 * bar["w"])  # moved in its row, by the places that are seen
    assert seen.state["edits"] and seen.state["from"] == 400


# --- for everybody


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing_in_the_open_menu(bench_page, dark):
    from tests.browser import test_access as access  # skips where there is no axe

    seen = bench_page(timeline(late()), 304, dark=dark)
    tools(seen)
    seen.node.get_by_role("button", name="Copy the numbers").click()
    said = access.complaints(seen.page, "figure.mrom")
    assert not said, said
    tools(seen)  # closed, and open again: every button of it is reached by Tab
    tools(seen)
    access.is_walked(seen)
    seen.screenshot(f"tools-{'dark' if dark else 'light'}")


def test_the_menu_is_not_printed(bench_page):
    seen = bench_page(timeline(late()))
    seen.page.emulate_media(media="print")
    assert not seen.node.locator(".mrom-tools").is_visible()
    seen.page.emulate_media(media="screen")
    assert seen.node.locator(".mrom-tools").is_visible()
