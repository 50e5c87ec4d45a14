"""JupyterLab, `make run`, `make refresh` and `make doctor`, as a reader meets them."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import nbformat
import pytest

from lib.course.tools import book, doctor, lab, refresh, run, steps, widgets
from lib.draw.parts.javascript import deflated
from tests.course.tools.test_road import ROOT, call, notebook
from tests.every import every

# --- JupyterLab


def test_a_browser_opens_where_somebody_would_see_it():
    assert lab.has_display({"DISPLAY": ":0"}, "linux")
    assert lab.has_display({}, "darwin")
    assert lab.has_display({"SSH_CONNECTION": "a", "BROWSER": "remote"}, "linux")
    assert not lab.has_display({}, "linux")
    assert not lab.has_display({"SSH_CONNECTION": "a", "DISPLAY": ":0"}, "linux")
    assert not lab.has_display({"SSH_TTY": "a"}, "darwin")


def test_root_is_let_in_and_the_users_words_come_last():
    words = lab.command(["--port", "9"], "my-chapters/00-a.ipynb", root=True, display=False)
    assert "--LabApp.default_url=/lab/tree/my-chapters/00-a.ipynb" in words
    assert "--allow-root" in words and "--no-browser" in words and words[-2:] == ["--port", "9"]
    words = lab.command([], "", root=False, display=True)
    assert "--LabApp.default_url=/lab" in words
    assert "--allow-root" not in words and "--no-browser" not in words


def test_what_is_open_is_kept_by_each_clone_for_itself(tmp_path, monkeypatch):
    """Else a new clone opens the chapters that JupyterLab shows of another one."""
    assert lab.workspaces(tmp_path) == {}, "nothing can be written there"
    mine = tmp_path / "my-chapters"
    mine.mkdir()
    kept = lab.workspaces(tmp_path)["JUPYTERLAB_WORKSPACES_DIR"]
    assert Path(kept).parent == mine and Path(kept).name.startswith("."), "no file for the reader"
    given = []
    monkeypatch.setattr(lab.subprocess, "Popen", lambda *_, env, **__: given.append(env) or 1 / 0)
    monkeypatch.setattr(lab.readers_folder, "course", lambda: tmp_path)
    monkeypatch.setattr(lab, "at_home", lambda course: [])
    monkeypatch.setattr(lab, "opened", lambda again, course: ("", []))
    monkeypatch.delenv("JUPYTERLAB_WORKSPACES_DIR", raising=False)
    with pytest.raises(ZeroDivisionError):
        lab.main([])
    assert given[0]["JUPYTERLAB_WORKSPACES_DIR"] == kept
    monkeypatch.setenv("JUPYTERLAB_WORKSPACES_DIR", "/theirs")
    with pytest.raises(ZeroDivisionError):
        lab.main([])
    assert given[1]["JUPYTERLAB_WORKSPACES_DIR"] == "/theirs"


def test_an_address_is_given_once_somebody_answers_there(tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    server = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with socket.socket() as later:
        later.bind(("127.0.0.1", 0))
        note = {"port": later.getsockname()[1], "token": "a"}
        (tmp_path / f"jpserver-{server.pid}.json").write_text(json.dumps(note), "utf-8")
        assert lab.address(server, patience=0.5) is None  # nobody listens yet
        later.listen()
        assert lab.address(server, patience=10) == note
    server.communicate(b"\n", timeout=30)


def test_jupyterlab_serves_beside_a_port_that_is_taken():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        environ = {**os.environ, "SSH_CONNECTION": "here", "BROWSER": ""}
        words = [sys.executable, "-m", "lib.course.tools.lab", "--port", str(port)]
        server = subprocess.Popen(words, cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True)
        try:
            said, end = "", time.monotonic() + 90
            while "Ctrl-C" not in said and time.monotonic() < end:
                said += server.stdout.readline()
            where = re.search(r"http://localhost:(\d+)/lab\?token=\w+", said)
            assert where and int(where[1]) != port
            with urllib.request.urlopen(where[0], timeout=30) as page:
                assert "JupyterLab" in page.read().decode()
            with pytest.raises(urllib.error.HTTPError):  # without the token: no entry
                api = f"http://localhost:{where[1]}/api/contents"
                urllib.request.urlopen(api, timeout=30)
        finally:
            server.send_signal(signal.SIGTERM)
            assert server.wait(30) is not None


# --- run and refresh

WIDGETS = "import ipywidgets\nbox = ipywidgets.HBox([ipywidgets.IntSlider(3)])\nbox"
CHILD = "import subprocess, time\nsubprocess.run(['echo', 'from a child'])\ntime.sleep(0.3)"
PICTURE = "from IPython.display import Image\nImage(__import__('os').urandom(40), format='png')"


def test_refreshing_twice_gives_the_same_bytes(tmp_path):
    path = notebook(tmp_path / "tiny.ipynb", "print('a')\n1", WIDGETS, CHILD)
    assert refresh.refresh(path, fresh=True) == "stored"
    first = path.read_bytes()
    assert refresh.refresh(path, fresh=True) == "as it was"
    assert path.read_bytes() == first
    stored = nbformat.read(path, as_version=4)
    assert set(stored.metadata) == {"kernelspec", "widgets"}
    view = stored.cells[1].outputs[0].data["application/vnd.jupyter.widget-view+json"]
    states = stored.metadata.widgets["application/vnd.jupyter.widget-state+json"]["state"]
    assert view["model_id"] in states and len(states) == 5
    assert stored.cells[2].outputs[0].text == "from a child\n"


def stored_widgets(*outputs):
    """A notebook whose cells show these widgets' ids, and a function that stores a widget."""
    view = {"version_major": 2, "version_minor": 0}
    cells = [nbformat.v4.new_code_cell("1", id=f"c{i}") for i in range(len(outputs))]
    for cell, name in zip(cells, outputs):
        data = {"text/plain": "1", widgets.VIEW: {**view, "model_id": name}}
        cell.outputs = [nbformat.v4.new_output("display_data", data)]
    made = nbformat.v4.new_notebook(cells=cells)
    made.metadata["widgets"] = {widgets.STATE: {"state": {}, **view}}

    def store(name, kind, **values):
        home = "anywidget" if kind == "AnyModel" else "@jupyter-widgets/base"
        named = {"model_name": kind, "model_module": home, "model_module_version": "2"}
        widgets.states(made)[name] = {**named, "state": values}

    return made, store


def test_what_is_stored_of_widgets_is_what_the_outputs_need():
    first, second = [], []
    for found, (one, code, other) in ((first, "abc"), (second, "xyz")):
        made, store = stored_widgets(one, other, "gone")
        pointers = [f"IPY_MODEL_{name}" for name in (f"{code}1", f"{code}2")]
        store("idle", "AnyModel", _esm="nobody shows this")
        store(f"{code}1", "WidgetModel", packed=deflated("hand"))
        store(f"{code}2", "WidgetModel", packed=deflated("hand"))
        store("plain", "LayoutModel", width=None, height=None, _view_name="LayoutView")
        for name in (one, other):
            layout = {"layout": "IPY_MODEL_plain", "tabbable": None}
            store(name, "AnyModel", _esm="boot", code=pointers, data={"x": None}, **layout)
        widgets.tidy(made)
        found.append(made)
    assert first == second, "a random id is left"
    states = widgets.states(first[0])
    texts = [model["state"]["packed"] for model in states.values() if "packed" in model["state"]]
    assert texts == [deflated("hand")] and len(states) == 3
    one, other, gone = (cell.outputs[0].data for cell in first[0].cells)
    assert gone == {"text/plain": "1"}, "a view of nothing would say: model not found"
    one, other = (data[widgets.VIEW]["model_id"] for data in (one, other))
    assert one != other and {one, other} < set(states)
    assert states[one]["state"]["data"] == {"x": None}, "what is ours is left as it is"
    assert set(states[one]["state"]) == {"_esm", "code", "data"}
    assert widgets.code(first[0]) == ["boot", "hand"]


def test_a_picture_that_cannot_live_is_named():
    """Case 30: what is missing is told by its cell, whether the state, its code or its page."""
    made, store = stored_widgets("alive", "codeless", "lost")
    for number, cell in enumerate(made.cells):
        cell.execution_count, cell.source = number, f"x = 1\npicture({number})"
    still = nbformat.v4.new_output("display_data", {"image/png": "AAAA", "text/plain": "a"})
    made.cells[0].outputs.append(still)
    store("hand", "WidgetModel", packed=deflated("hand"))
    store("alive", "AnyModel", code=["IPY_MODEL_hand"])
    store("codeless", "AnyModel", code=["IPY_MODEL_gone"])
    only_still, codeless, lost = widgets.lifeless(made)
    assert only_still == "cell [0], `picture(0)`, shows the still of a picture, and no living one."
    assert codeless == "cell [1], `picture(1)`, shows a picture whose state is not in the file."
    assert lost == "cell [2], `picture(2)`, shows a picture whose state is not in the file."
    view, state = (f'<script type="application/vnd.jupyter.widget-{kind}+json">%s</script>'
                   for kind in ("view", "state"))  # fmt: skip
    page = view % '{"model_id": "alive"}\n' + state % '{"state": {"alive": {}, "lost": {}}}'
    told = widgets.lifeless_in_page(made, page)
    assert [sentence[:8] for sentence in told] == ["cell [1]", "cell [2]"]


def test_the_book_is_not_built_where_a_picture_has_lost_its_state(tmp_path):
    """Case 30: `make book` said that every step passed, and no picture of the chapter lived."""
    heavy = shutil.ignore_patterns("__pycache__", "mathjax", "js")
    shutil.copytree(ROOT / "lib", tmp_path / "lib", ignore=heavy)
    made, store = stored_widgets("alive", "lost")
    store("alive", "AnyModel", _esm="")
    made.cells.insert(0, nbformat.v4.new_markdown_cell("# A", id="title"))
    made.cells[2].execution_count = 9
    made.metadata["kernelspec"] = dict(run.KERNEL)
    (tmp_path / "chapters").mkdir()
    nbformat.write(made, tmp_path / "chapters/00-ranks.ipynb")
    (tmp_path / "README.md").write_text("# A book\n")
    entry = {"file": "chapters/00-ranks.ipynb", "title": "A"}
    text = json.dumps({"root": "README", "subtrees": [{"entries": [entry]}]})
    (tmp_path / "book.yml").write_text(text)
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = call(*steps.SPHINX, "--no-color", cwd=tmp_path, env=environ)
    assert done.returncode != 0
    (told,) = done.stderr.splitlines()
    sentence = (
        "chapters/00-ranks.ipynb, cell [9], `1`, shows a picture whose state is not in the file."
    )
    assert (
        told == f"WARNING: {sentence} `make refresh CHAPTER=00 FRESH=1` stores the pictures anew."
    )


@pytest.mark.parametrize("chapter", book.chapters(), ids=lambda chapter: chapter.name)
def test_a_chapter_stores_the_javascript_of_today(chapter):
    from lib.draw.parts import javascript, live

    kinds = [path.stem for path in javascript.JS.glob("*.js") if path.stem not in javascript.HAND]
    today = {live.BOOT, javascript.hand(), *map(javascript.kind_text, kinds)}
    stored = set(widgets.code(nbformat.read(ROOT / chapter.file, as_version=4)))
    assert stored <= today, f"make refresh CHAPTER={chapter.number}"


def test_new_javascript_is_news():
    changed = []
    for text in ("old", "old", "new"):
        made, store = stored_widgets("a")
        store("a", "AnyModel", _esm=text, data={"measured": len(changed)})
        widgets.tidy(made)
        changed.append(refresh.compared(made))
    assert changed[0] == changed[1] != changed[2]


def test_a_picture_that_differs_each_time_waits_for_news(tmp_path):
    path = notebook(tmp_path / "tiny.ipynb", PICTURE)
    assert refresh.refresh(path) == "stored"
    first = path.read_bytes()
    assert refresh.refresh(path).startswith("as it was")
    assert path.read_bytes() == first
    assert refresh.refresh(path, fresh=True) == "stored"
    assert path.read_bytes() != first


def test_a_chapter_that_fails_is_told_and_left_as_it_was(tmp_path, capfd):
    path = notebook(tmp_path / "broken.ipynb", "1", "1 / 0")
    before = path.read_bytes()
    assert refresh.main([str(path)]) == 1
    assert path.read_bytes() == before
    assert run.main([str(path)]) == 1
    said = capfd.readouterr()
    assert re.search(r"^broken +- +[\d.]+  no$", said.out, re.M)
    assert "ZeroDivisionError" in said.err and "is as it was" in said.err


def test_run_prints_a_row_for_each_chapter(tmp_path, capfd):
    path = notebook(tmp_path / "good.ipynb", "1", "1 / 0", tags=["raises-exception"])
    assert run.main([str(path)]) == 0
    said = capfd.readouterr().out
    assert re.search(r"^good +2 +[\d.]+  ok$", said, re.M)
    assert said.splitlines()[-1].startswith("1 of 1 ran to the end: 2 cells")


def test_nbval_sees_what_children_print_and_notices_a_change(tmp_path):
    path = notebook(tmp_path / "tiny.ipynb", CHILD, "1")
    refresh.refresh(path)
    words = [*steps.STEPS["chapters"][0][:-1], "--rootdir", ROOT, "-c", ROOT / "pyproject.toml"]
    environ = steps.surroundings()
    assert call(*words, path, env=environ).returncode == 0
    path.write_text(path.read_text().replace("from a child\\n", "from nobody\\n"))
    assert call(*words, path, env=environ).returncode == 1


# --- the doctor


def test_the_doctor_looks_at_everything_and_knows_a_remedy(capsys):
    assert doctor.main() in (0, 1)
    said = capsys.readouterr().out
    assert every(f"{name} " in said for name in doctor.CHECKS)
    for check in doctor.CHECKS.values():
        verdict, found, remedy = check()
        assert found and (remedy or verdict == doctor.OK)


def test_the_doctor_says_no_where_the_course_cannot_run(monkeypatch, capsys):
    sick = {"loopback": lambda: (doctor.NO, "closed", "open it")}
    monkeypatch.setattr(doctor, "CHECKS", sick)
    assert doctor.main() == 1
    assert "-> open it" in capsys.readouterr().out
