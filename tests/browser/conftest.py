"""The pictures in a real browser: Chromium, JupyterLab with a kernel, the book from a file.

`tests/browser/cells/*.py` are the cells of one notebook, the gallery: a file for each picture, and
its name is the name that the fixtures take. Every page here fails its test where something is said
in the console as an error, or where a request would leave this machine.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import yaml

from lib.course.tools.chromium import REMEDY, chromium
from lib.course.tools.steps import SPHINX, surroundings
from tests.browser.bench import bench
from tests.browser.jupyter import NAMES, Lab
from tests.browser.seen import PATIENCE, SCREENSHOTS, Seen, alive

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FLAGS = "--no-sandbox --disable-gpu --disable-background-networking --disable-component-update"
FLAGS += " --disable-sync --disable-extensions --no-first-run --force-color-profile=srgb"
OURS = re.compile(r"(file|blob|data|about):|(http|ws)://(127\.0\.0\.1|localhost)[:/]")
# JupyterLab says so where a tab is closed, or a kernel ended, while it still waits for an answer.
UNASKED = re.compile(
    "Could not restore the debugger state: Canceled future"
    "|Error: Canceled future for create_subshell_request"
)
# JupyterLab asks for an image of a text once relative to its own page, before it asks for the
# notebook's: from /lab nothing is there, while an address of /lab/tree is always answered.
TOO_EARLY = re.compile(r"http://127\.0\.0\.1:\d+/images/[\w-]+\.png")


def pytest_generate_tests(metafunc):
    """A test that takes `name` is made for every picture of the gallery."""
    if "name" in metafunc.fixturenames:
        metafunc.parametrize("name", NAMES)


# --- the browser


@pytest.fixture(scope="session")
def browser():
    """Chromium, started once."""
    path = chromium()
    if not path:
        pytest.skip(f"no Chromium was found: {REMEDY}")
    sync_api = pytest.importorskip("playwright.sync_api")
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=FLAGS.split())
        yield started
        started.close()


@pytest.fixture(scope="session")
def wrongs():
    """What went wrong on any page since it was last asked: sentences."""
    return []


@pytest.fixture(autouse=True)
def nothing_goes_wrong(wrongs):
    """Every test ends with a look at the consoles and at the requests of all pages."""
    yield
    found = list(wrongs)
    wrongs.clear()
    assert not found, "\n".join(found)


@pytest.fixture(scope="session")
def new_page(browser, wrongs):
    """`new_page(width=1280, dark=False, offline=False)`: a page whose wrongs are heard."""

    def make(width=1280, height=900, *, dark=False, offline=False, scripts=True, touch=False):
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            offline=offline,
            java_script_enabled=scripts,
            has_touch=touch,
        )
        context.set_default_timeout(PATIENCE * 1000)
        page = context.new_page()

        def request(url):
            if not OURS.match(url):
                wrongs.append(f"a request would leave this machine: {url}")

        def said(message):
            place = message.location["url"]
            known = UNASKED.match(message.text) or TOO_EARLY.fullmatch(place)
            if message.type == "error" and not known:
                wrongs.append(f"the console says: {message.text} ({place})")

        def failed(error):
            if not UNASKED.match(str(error)):
                wrongs.append(f"uncaught: {error}")

        page.on("console", said)
        page.on("pageerror", failed)
        page.on("request", lambda asked: request(asked.url))
        page.on("websocket", lambda socket: request(socket.url))
        return page

    return make


@pytest.fixture
def page(new_page):
    """A page for one test."""
    made = new_page()
    yield made
    made.context.close()


# --- a picture alone, without Jupyter: exact geometry, and how long it takes


@pytest.fixture(scope="session")
def _bench(new_page):
    pages = {(dark, False): new_page(1700, 1000, dark=dark) for dark in (False, True)}
    return pages | {(False, True): new_page(360, 780, touch=True)}


@pytest.fixture
def bench_page(_bench):
    """`bench_page(picture, width=None, dark=False)`: a lib.draw Picture, living and alone.

    It is laid out `width` pixels wide, else as wide as its still; with `touch` on a phone. What it
    sends to the kernel is in `window.sent`; `window.answer(message)` is the kernel's answer,
    `window.renew(data)` are new data, and `window.trigger(event)` is any other event of its model.
    """

    def show(picture, width: int | None = None, *, dark=False, touch=False) -> Seen:
        return bench(_bench[dark, touch], picture, width)

    return show


@pytest.fixture
def fingers(bench_page):
    """`fingers(picture)`: it on a phone, and what puts, moves and lifts fingers on its canvas."""
    sessions = []

    def show(picture):
        seen = bench_page(picture, 304, touch=True)
        sessions.append(seen.page.context.new_cdp_session(seen.page))

        def touch(kind, *places):
            corner = seen.canvas.bounding_box()
            points = [{"x": corner["x"] + x, "y": corner["y"] + y, "id": n}
                      for n, (x, y) in enumerate(places)]  # fmt: skip
            event = {"type": f"touch{kind}", "touchPoints": points}
            sessions[-1].send("Input.dispatchTouchEvent", event)
            seen.settle()

        return seen, touch

    yield show
    for session in sessions:
        session.detach()


@pytest.fixture
def other_bench(browser):
    """`other_bench(picture, width, flags="", **context)`: the same in a browser of its own.

    `flags` are further ones of Chromium, for what a page cannot pretend.
    """
    others = []

    def show(picture, width: int, *, flags="", **context) -> Seen:
        args = f"{FLAGS} {flags}".split()
        others.append(browser.browser_type.launch(executable_path=chromium(), args=args))
        return bench(others[-1].new_context(**context).new_page(), picture, width)

    yield show
    for other in others:
        other.close()


# --- the gallery: stored, in JupyterLab, in the book


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Where JupyterLab serves from; nothing in it is anybody's."""
    return tmp_path_factory.mktemp("notebooks")


@pytest.fixture(scope="session")
def gallery(folder):
    """The path of a notebook with every picture, stored as `make refresh` stores chapters."""
    path = folder / "gallery.ipynb"
    cells = [nbformat.v4.new_markdown_cell("# Gallery", id="title")]
    for name in NAMES:
        source = (HERE / "cells" / f"{name}.py").read_text().strip()
        cells.append(nbformat.v4.new_markdown_cell(f"## {name}", id=f"head-{name}"))
        cells.append(nbformat.v4.new_code_cell(source, id=f"cell-{name}"))
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    for extra in HERE.glob("*.js"):
        shutil.copy(extra, folder)
    words = [sys.executable, "-m", "lib.course.tools.refresh", str(path)]
    done = subprocess.run(words, cwd=ROOT, env=surroundings(), capture_output=True, text=True,
                          timeout=120)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return path


@pytest.fixture(scope="session")
def lab(folder, new_page, tmp_path_factory):
    """JupyterLab on a free port of this machine, with a token, settings and trust of its own."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that it ends with a killed test
    made = Lab(folder, tmp_path_factory.mktemp("home"), new_page)
    yield made
    made.close()


@pytest.fixture
def opened(lab, gallery):
    """`opened(name, trust=True, kernel=True)`: a copy of the gallery under that name, not run."""
    pages = []

    def show(name: str, *, trust: bool, **options):
        pages.append(lab.open(lab.notebook(name, gallery, trust=trust), **options))
        return pages[-1]

    yield show
    for page in pages:
        page.context.close()


@pytest.fixture(scope="session")
def _running(lab, gallery, wrongs):
    page = lab.open(lab.notebook("running", gallery, trust=True))
    lab.run_all(page)
    lab.pictures(page)
    # JupyterLab's widgets may say this of what was stored, where cells run while they still read it
    known = re.compile(r"the console says: Error: widget model not found\b.*/jupyterlab-manager/")
    wrongs[:] = [wrong for wrong in wrongs if not known.match(wrong.replace("\n", " "))]
    return page


@pytest.fixture
def all_running(lab, _running):
    """The page of the gallery that a kernel runs, every picture of it drawn."""
    lab.pictures(_running)
    return _running


@pytest.fixture
def running(lab, _running):
    """`running("timeline")`: that picture of the gallery in JupyterLab, its cell run anew."""
    return lambda name: lab.run_cell(_running, name)


@pytest.fixture(scope="session")
def book(gallery, tmp_path_factory):
    """The folder of the book as it is built, with the gallery as its last chapter."""
    tree = tmp_path_factory.mktemp("book")
    shutil.copytree(ROOT / "lib", tree / "lib", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "chapters", tree / "chapters")
    shutil.copy(gallery, tree / "chapters")
    listed = yaml.safe_load((ROOT / "book.yml").read_text())
    listed["subtrees"][0]["entries"].append({"file": "chapters/gallery.ipynb", "title": "Gallery"})
    (tree / "book.yml").write_text(json.dumps(listed))  # JSON is YAML
    (tree / "data").mkdir()
    for name in ("README.md", "CONTRIBUTING.md", "data/glossary.yml"):
        shutil.copy(ROOT / name, tree / name)
    words = [word for word in SPHINX if word != "-W"]  # another step asks for no warnings
    environ = {**os.environ, "PYTHONPATH": str(tree)}
    call = {"cwd": tree, "env": environ, "capture_output": True, "text": True}
    done = subprocess.run(words, **call, timeout=240)
    assert done.returncode == 0, done.stderr
    return tree / "_build" / "book"


@pytest.fixture
def book_page(book, new_page):
    """`book_page(dark=False)`: the gallery in the book, from a file, without a network."""
    pages = []

    def show(chapter="gallery", **options):
        page = new_page(offline=True, **options)
        pages.append(page)
        page.goto((book / "chapters" / f"{chapter}.html").as_uri())
        return page

    yield show
    for page in pages:
        page.context.close()


@pytest.fixture(scope="session")
def book_pictures():
    """`book_pictures(page)`: every picture of that page of the book, drawn."""
    return lambda page: [
        alive(page.locator(f"section#{name.replace('_', '-')} figure.mrom"), name) for name in NAMES
    ]


@pytest.fixture
def in_book(book_page):
    """`in_book("timeline", dark=False, width=1280)`: that picture in the book, on a fresh page."""

    def show(name: str, **options) -> Seen:
        page = book_page(**options)
        return alive(page.locator(f"section#{name.replace('_', '-')} figure.mrom"), name)

    return show
