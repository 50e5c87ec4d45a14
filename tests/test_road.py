"""The road: book.yml, the README, the commands, and what they say when a machine is not ready."""

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

from lib.course import book, doctor, lab, refresh, run, steps, widgets
from lib.course.chromium import chromium

ROOT = Path(__file__).parents[1]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def call(*words, cwd=ROOT, timeout=120, **options):
    words = [str(word) for word in words]
    return subprocess.run(
        words, cwd=cwd, capture_output=True, text=True, timeout=timeout, **options
    )


def notebook(path, *sources, tags=()):
    """A tiny notebook whose last cell carries the tags."""
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    cells[-1].metadata["tags"] = list(tags)
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    return path


# --- book.yml and the README


def test_the_book_lists_every_chapter_and_no_other():
    files = sorted(f"chapters/{path.name}" for path in (ROOT / "chapters").glob("*.ipynb"))
    assert [chapter.file for chapter in book.chapters()] == files != []


def test_the_first_cell_of_a_chapter_is_its_title_in_the_book():
    for chapter in book.chapters():
        first = nbformat.read(ROOT / chapter.file, as_version=4).cells[0].source
        assert first.splitlines()[0].endswith(chapter.title), chapter.file


def test_the_readme_shows_the_chapters_of_the_book():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert book.told(readme, book.chapters()) == readme, "make readme"


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_what_the_texts_point_to_is_there(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert target.startswith("http") or (ROOT / target).exists(), target


def test_the_readme_opens_on_the_picture_once_it_is_there():
    picture = "chapters/images/slow-motion.svg"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    there = (ROOT / picture).exists()
    assert (picture in readme) == there, f"README.md and {picture} belong together"


@pytest.fixture
def library(tmp_path):
    """A tree of one chapter, and a function that rewrites its book.yml."""
    (tmp_path / "chapters").mkdir()
    notebook(tmp_path / "chapters/00-a.ipynb", "1")
    entry = {"file": "chapters/00-a.ipynb", "title": "A"}
    entry["meta"] = {"minutes": 5, "ranks": 2, "needs": "n", "gives": "g"}

    def write(*entries):
        text = json.dumps({"root": "README", "subtrees": [{"entries": list(entries)}]})
        (tmp_path / "book.yml").write_text(text)  # JSON is YAML
        return tmp_path

    return write, entry


def test_a_book_is_read(library):
    write, entry = library
    (chapter,) = book.chapters(write(entry, {"file": "CONTRIBUTING.md"}))
    assert (chapter.name, chapter.number, chapter.minutes) == ("00-a", "00", 5)
    assert book.find("0", write(entry)) == book.find("00-a", write(entry)) == chapter
    assert "| 00 | [A](chapters/00-a.ipynb) | 5 | 2 | n | g |" in book.table([chapter])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"file": "chapters/01-b.ipynb"}, "there is no such file"),
        ({"title": None}, "has no title"),
        ({"meta": {"ranks": 2}}, "needs `minutes` under `meta`, a int"),
        ({"meta": {"minutes": 5, "ranks": 2, "needs": "n", "gives": "g", "x": 1}}, "nobody reads"),
    ],
)
def test_a_wrong_entry_is_told_in_a_sentence(library, change, sentence):
    write, entry = library
    with pytest.raises(book.BookError, match=re.escape(sentence)):
        book.chapters(write({**entry, **change}))


def test_a_chapter_that_is_not_listed_or_listed_twice_is_told(library):
    write, entry = library
    with pytest.raises(book.BookError, match="does not list it"):
        book.chapters(write())
    with pytest.raises(book.BookError, match="twice"):
        book.chapters(write(entry, entry))
    with pytest.raises(book.BookError, match="no chapter '7': book.yml lists 00-a"):
        book.find("7", write(entry))


# --- commands and requirements


def test_help_says_what_every_command_does():
    told = call("make", "help").stdout
    targets = set(re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.M)[0].split()) - {"ready"}
    assert {"lab", "test", "run", "refresh", "book", "bench", "doctor", "help"} <= targets
    for target in targets:
        assert re.search(rf"^  make {target} +\S", told, re.M), f"make help is silent on {target}"
    assert call("make").stdout == told


def test_the_outside_check_is_make_test_with_chromium_before_it(tmp_path):
    said = []
    for name, root in (("chromium", 0), ("other", 0), ("other", 1000)):
        tools = tmp_path / f"{name}{root}"
        tools.mkdir()
        for tool in ("sh", "dirname"):
            (tools / tool).symlink_to(shutil.which(tool))
        scripts = {"make": 'echo "make $*"', "apt-get": 'echo "apt-get $*" >&2', name: "exit 1"}
        for tool, words in {**scripts, "id": f"echo {root}"}.items():
            (tools / tool).write_text(f"#!/bin/sh\n{words}\n")
            (tools / tool).chmod(0o755)
        done = call(ROOT / ".ci/run", env={"PATH": str(tools)}, cwd=tmp_path)
        assert done.returncode == 0 and done.stdout.endswith("make test\n")
        said.append("chromium" in done.stderr)
    assert said == [False, True, False]
    assert os.access(ROOT / ".ci/run", os.X_OK)


def test_every_requirement_has_a_reason_and_torch_is_exact():
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    needs = [line for line in lines if line and not line.startswith("#")]
    assert needs.pop() == "-e ."
    assert all(re.match(r"[\w-]+(==|~=)[\d.]+ +# \S", line) for line in needs), needs
    names = {re.split("[=~]", line)[0]: line for line in needs}
    assert {"jupyterlab", "torch", "ipywidgets", "matplotlib", "nbval", "numpy"} <= set(names)
    assert names["torch"].startswith("torch==2.13.0 ")
    assert "index-url" not in " ".join(lines)


def test_the_steps_stop_at_the_first_that_fails_and_name_it(monkeypatch, capfd):
    good, bad = [sys.executable, "-c", "pass"], [sys.executable, "-c", "raise SystemExit(1)"]
    never = [sys.executable, "-c", "print('came too far')"]
    monkeypatch.setattr(steps, "STEPS", {"one": [good], "two": [bad], "three": [never]})
    assert steps.main([]) == 1
    said = capfd.readouterr().out
    assert "The step 'two' failed at: python -c" in said and "came too far" not in said
    assert re.fullmatch(r"0 passed in [\d.]+s", said.splitlines()[-1])


def test_a_machine_without_chromium_is_told_so_in_the_last_lines(monkeypatch, capfd):
    monkeypatch.setattr(steps, "chromium", lambda: None)
    monkeypatch.setattr(steps, "STEPS", {"one": [[sys.executable, "-c", "pass"]], "browser": []})
    assert steps.main([]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[-2].startswith("NOT TRIED: tests/browser, for want of Chromium: install it")
    assert steps.main(["browser"]) == 1


def test_the_browser_is_the_one_that_was_named_or_the_first_found(tmp_path, monkeypatch):
    for name in ("google-chrome", "chromium", "mine"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert chromium({}) == str(tmp_path / "chromium")
    assert chromium({"CHROMIUM": str(tmp_path / "mine")}) == str(tmp_path / "mine")
    assert chromium({"CHROMIUM": str(tmp_path / "nowhere")}) is None


def test_the_last_line_counts_as_pytest_does():
    counts = {"tests": 9, "failures": 1, "errors": 0, "skipped": 2}
    assert steps.summary(counts, 1.25) == "6 passed, 1 failed, 2 skipped in 1.2s"


# --- machines that are not ready


@pytest.fixture
def bare_machine(tmp_path):
    """A PATH with the usual tools and no Python but those a test puts there; a copy of setup.sh."""
    tools, home = tmp_path / "bin", tmp_path / "course"
    tools.mkdir()
    for tool in ("sh", "cat", "cksum", "dirname", "mkdir", "cp"):
        (tools / tool).symlink_to(shutil.which(tool))
    (home / "lib/course").mkdir(parents=True)
    shutil.copy(ROOT / "lib/course/setup.sh", home / "lib/course")

    def add(name, version, has_venv=True):
        numbers = ", ".join(version.split("."))
        script = tools / name
        script.write_text(
            "#!/bin/sh\n"
            f'case "$*" in -V) echo "Python {version}";;\n'
            f'*version_info\\ *) exec "{sys.executable}" -c "import sys; '
            f'sys.exit(({numbers}) < (3, 11))";;\n'
            f"*ensurepip*) exit {0 if has_venv else 1};;\n"
            f"*print*) echo python{version.rsplit('.', 1)[0]};; esac\n"
        )
        script.chmod(0o755)

    def setup(*words):
        environ = {"PATH": str(tools)}
        return call(tools / "sh", "lib/course/setup.sh", *words, cwd=home, env=environ)

    return add, setup


def test_a_python_that_is_too_old_is_told_in_one_sentence(bare_machine):
    add, setup = bare_machine
    add("python3", "3.9.2")
    done = setup()
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith(
        "The course needs Python 3.11 or later and python3 is Python 3.9.2: install a newer one"
    )
    assert done.stderr.count("\n") == 1 and "PYTHON=/path/to/python3" in done.stderr


def test_no_python_at_all_is_told_in_one_sentence(bare_machine):
    done = bare_machine[1]()
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("The course needs Python 3.11 or later and found none: install")


def test_a_python_without_venv_is_told_in_one_sentence(bare_machine):
    add, setup = bare_machine
    add("python3", "3.12.1", has_venv=False)
    done = setup()
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("Your python3.12 lacks the venv module: install it")
    assert "apt install python3.12-venv" in done.stderr


def test_the_first_python_that_will_do_is_taken(bare_machine):
    add, setup = bare_machine
    add("python3", "3.9.2")
    add("python3.13", "3.13.0", has_venv=False)
    add("python3.11", "3.11.9")
    assert setup("--which").stdout == "python3.11\n"
    add("python3.12", "3.12.4")
    assert setup("--which").stdout == "python3.12\n"
    assert setup("--which", "python3.11").stdout == "python3.11\n"
    assert setup("--which", "python3").returncode == 1


def test_what_is_installed_is_not_installed_again(bare_machine, tmp_path):
    setup, home = bare_machine[1], tmp_path / "course"
    for name in ("requirements.txt", "pyproject.toml"):
        (home / name).write_text("1")
    shutil.copytree(ROOT / "lib/course/site/lab", home / "lib/course/site/lab")
    (home / "lib/course/site/_static").mkdir()
    (home / "lib/course/site/_static/pictures.js").write_text("//")
    (home / "lib/course/site/overrides.json").write_text("{}")
    python = home / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(
        '#!/bin/sh\necho "$@" >> "$0.called"; [ "$1" = -V ] && echo Python 3.12.1; :\n'
    )
    python.chmod(0o755)

    def installs():
        assert setup().returncode == 0
        return (home / ".venv/bin/python.called").read_text().count("install")

    assert (installs(), installs()) == (1, 1)
    assert (home / ".venv/share/jupyter/lab/settings/overrides.json").read_text() == "{}"
    shared = home / ".venv/share/jupyter/labextensions/many-ranks"
    assert {path.name for path in shared.iterdir()} == {"package.json", "stored.js", "pictures.js"}
    (home / "requirements.txt").write_text("2")
    assert (installs(), installs()) == (2, 2)
    (home / "lib/course/site/_static/pictures.js").write_text("// changed")
    assert (installs(), installs()) == (3, 3)
    assert (shared / "pictures.js").read_text() == "// changed"


# --- JupyterLab


def test_a_browser_opens_where_somebody_would_see_it():
    assert lab.has_display({"DISPLAY": ":0"}, "linux")
    assert lab.has_display({}, "darwin")
    assert lab.has_display({"SSH_CONNECTION": "a", "BROWSER": "remote"}, "linux")
    assert not lab.has_display({}, "linux")
    assert not lab.has_display({"SSH_CONNECTION": "a", "DISPLAY": ":0"}, "linux")
    assert not lab.has_display({"SSH_TTY": "a"}, "darwin")


def test_root_is_let_in_and_the_users_words_come_last():
    words = lab.command(["--port", "9"], root=True, display=False)
    assert "--allow-root" in words and "--no-browser" in words and words[-2:] == ["--port", "9"]
    words = lab.command([], root=False, display=True)
    assert "--allow-root" not in words and "--no-browser" not in words


def test_jupyterlab_serves_beside_a_port_that_is_taken():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        environ = {**os.environ, "SSH_CONNECTION": "here", "BROWSER": ""}
        words = [sys.executable, "-m", "lib.course.lab", "--port", str(port)]
        server = subprocess.Popen(words, cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True)
        try:
            said, end = "", time.monotonic() + 90
            while "Ctrl-C" not in said and time.monotonic() < end:
                said += server.stdout.readline()
            where = re.search(r"http://localhost:(\d+)/lab/tree/chapters/00\S+token=\w+", said)
            assert where and int(where[1]) != port
            assert f"ssh -L {where[1]}:localhost:{where[1]}" in said
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
        store(f"{code}1", "WidgetModel", text="hand")
        store(f"{code}2", "WidgetModel", text="hand")
        store("plain", "LayoutModel", width=None, height=None, _view_name="LayoutView")
        for name in (one, other):
            layout = {"layout": "IPY_MODEL_plain", "tabbable": None}
            store(name, "AnyModel", _esm="boot", code=pointers, data={"x": None}, **layout)
        widgets.tidy(made)
        found.append(made)
    assert first == second, "a random id is left"
    states = widgets.states(first[0])
    texts = [model["state"]["text"] for model in states.values() if "text" in model["state"]]
    assert texts == ["hand"] and len(states) == 3
    one, other, gone = (cell.outputs[0].data for cell in first[0].cells)
    assert gone == {"text/plain": "1"}, "a view of nothing would say: model not found"
    one, other = (data[widgets.VIEW]["model_id"] for data in (one, other))
    assert one != other and {one, other} < set(states)
    assert states[one]["state"]["data"] == {"x": None}, "what is ours is left as it is"
    assert set(states[one]["state"]) == {"_esm", "code", "data"}
    assert widgets.code(first[0]) == ["boot", "hand"]


@pytest.mark.parametrize("chapter", book.chapters(), ids=lambda chapter: chapter.name)
def test_a_chapter_stores_the_javascript_of_today(chapter):
    from lib.draw import live

    kinds = [path.stem for path in live.JS.glob("*.js") if path.stem not in live.HAND]
    today = {live.BOOT, live.hand(), *map(live.kind_text, kinds)}
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
    assert all(f"{name} " in said for name in doctor.CHECKS)
    for check in doctor.CHECKS.values():
        verdict, found, remedy = check()
        assert found and (remedy or verdict == doctor.OK)


def test_the_doctor_says_no_where_the_course_cannot_run(monkeypatch, capsys):
    sick = {"loopback": lambda: (doctor.NO, "closed", "open it")}
    monkeypatch.setattr(doctor, "CHECKS", sick)
    assert doctor.main() == 1
    assert "-> open it" in capsys.readouterr().out
