"""The road: book.yml, the README, the commands, and what they say when a machine is not ready."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest

from lib.course.tools import book, steps
from lib.course.tools.chromium import chromium
from tests.every import every

ROOT = Path(__file__).parents[3]
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
    assert book.with_table(readme, book.chapters()) == readme, "make readme"


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
        ({"title": None}, "gives chapters/00-a.ipynb no title"),
        ({"meta": {"ranks": 2}}, "a `minutes` under `meta`, of type int"),
        (
            {"meta": {"minutes": 5, "ranks": 2, "needs": "n", "gives": "g", "x": 1}},
            "which is not used",
        ),
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
    assert every(re.match(r"[\w-]+(==|~=)[\d.]+ +# \S", line) for line in needs), needs
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


@pytest.mark.quiet
def test_steps_run_beside_one_another_and_their_words_apart(monkeypatch, capfd):
    def says(word, seconds):
        code = f"import time; print('{word} begins'); time.sleep({seconds}); print('{word} ends')"
        return [[sys.executable, "-c", code]]

    rows = {"one": says("one", 1.0), "two": says("two", 0.5), "three": says("three", 0)}
    monkeypatch.setattr(steps, "STEPS", rows | {"last": says("last", 0)})
    monkeypatch.setattr(steps, "BESIDE", ["one", "two", "three"])
    monkeypatch.setattr(steps, "LANES", 2)
    began = time.monotonic()
    assert steps.main([]) == 0
    said = [line for line in capfd.readouterr().out.splitlines() if line.endswith("s")]
    names = [f"{name} {verb}" for name in ("one", "two", "three", "last") for verb in BEGINS]
    assert said[:8] == names and time.monotonic() - began < 1.45
    assert steps.main(["two"]) == 0 and "one" not in capfd.readouterr().out


BEGINS = ("begins", "ends")


def test_a_step_that_fails_beside_another_fails_the_run(monkeypatch, capfd):
    bad = [sys.executable, "-c", "raise SystemExit(1)"]
    good = [sys.executable, "-c", "import time; time.sleep(2)"]  # so that the other has failed
    never = [sys.executable, "-c", "print('came too far')"]
    monkeypatch.setattr(steps, "STEPS", {"one": [good], "two": [bad], "three": [never]})
    monkeypatch.setattr(steps, "BESIDE", ["one", "two", "three"])
    monkeypatch.setattr(steps, "LANES", 2)
    assert steps.main([]) == 1
    said = capfd.readouterr().out
    assert "The step 'two' failed at: python -c" in said and "came too far" not in said


def test_one_family_can_be_tried_alone(capsys):
    tests, chapters = steps.only("pipeline")
    assert "tests/parallel/pipeline/test_runtime.py" in tests and "tests/test_house.py" not in tests
    assert "chapters/06-pipeline-bubbles.ipynb" in chapters
    assert not any("asynchronous" in path for path in tests + chapters)
    tests, chapters = steps.only("data")
    assert "tests/parallel/data/test_ddp.py" in tests
    assert not any("timeline_data" in path or "/data_parallel/" in path for path in tests)
    assert chapters[-1] == "chapters/01-data-parallel.ipynb"
    [chapter] = steps.only("06")
    assert chapter[-1] == "chapters/06-pipeline-bubbles.ipynb"
    assert any("test_steps.py" in word for word in steps.only("teps")[0])  # nothing is called so
    assert steps.main(["--only", "nothing-like-it"]) == 2
    assert capsys.readouterr().err == "no test and no chapter has 'nothing-like-it' in its path\n"


def test_a_machine_without_chromium_is_told_so_in_the_last_lines(monkeypatch, capfd):
    monkeypatch.setattr(steps, "chromium", lambda: None)
    monkeypatch.setattr(steps, "STEPS", {"one": [[sys.executable, "-c", "pass"]], "browser": []})
    assert steps.main([]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[-2].startswith("NOT TRIED: tests/browser, for want of Chromium: install it")
    assert steps.main(["browser"]) == 1


def test_a_machine_without_a_compiler_is_told_so(monkeypatch, capfd):
    monkeypatch.setattr(steps.shutil, "which", lambda name: None)
    monkeypatch.setattr(steps, "STEPS", {"one": [[sys.executable, "-c", "pass"]], "gpus": []})
    assert steps.main([]) == 0
    told = capfd.readouterr().out.splitlines()[-2]
    assert told.startswith("NOT TRIED: ranks on pretended GPUs, for want of a C++ compiler: ")


def test_ranks_are_on_the_cpu_in_every_step_but_those_for_gpus(monkeypatch):
    monkeypatch.setattr(steps, "accelerator", lambda: "cuda")
    pretended = str(ROOT / "_build/pretend")
    for step, on_gpus, pretends in (("tests", 0, 0), ("gpus", 1, 1), ("test-gpu", 1, 0)):
        environ = steps.surroundings(step)
        assert (environ.get("RANKS_DEVICE") != "cpu") == bool(on_gpus)
        assert ("RANKS_TEST_GPUS" in environ) == bool(on_gpus)
        assert (pretended in environ["PYTHONPATH"].split(os.pathsep)) == bool(pretends)
    monkeypatch.setattr(steps, "accelerator", lambda: None)
    assert pretended in steps.surroundings("test-gpu")["PYTHONPATH"]


def test_the_tests_on_gpus_are_those_of_ranks_and_of_devices():
    (command,) = steps.ASKED["test-gpu"][-1:]
    assert {"tests/ranks/test_failures.py", "tests/parallel/data/test_ddp.py"} <= set(command)
    for name in ("test_pretend", "ranks/state/test_default_device", "ranks/launched/test_launched"):
        assert f"tests/{name}.py" in command
    assert "tests/predict/allocator/test_caching.py" in command
    assert "tests/draw/test_timeline.py" not in command


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
    (home / "lib/course/tools").mkdir(parents=True)
    shutil.copy(ROOT / "lib/course/tools/setup.sh", home / "lib/course/tools")

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
        return call(tools / "sh", "lib/course/tools/setup.sh", *words, cwd=home, env=environ)

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
    server = home / ".venv/etc/jupyter/jupyter_server_config.d/many-ranks.json"
    shutil.copytree(ROOT / "lib/course/site/lab", home / "lib/course/site/lab")
    (home / "lib/course/site/_static").mkdir()
    shown = {"pictures.js", "definitions.js", "definitions.css"}
    for name in shown:
        (home / "lib/course/site/_static" / name).write_text("//")
    (home / "lib/course/site/overrides.json").write_text("{}")
    (home / "lib/course/site/server.json").write_text("{}")
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
    ours = {path.name for path in (ROOT / "lib/course/site/lab").iterdir()} | shown
    assert {path.name for path in shared.iterdir()} == ours and server.read_text() == "{}"
    (home / "requirements.txt").write_text("2")
    assert (installs(), installs()) == (2, 2)
    (home / "lib/course/site/_static/pictures.js").write_text("// changed")
    assert (installs(), installs()) == (3, 3)
    assert (shared / "pictures.js").read_text() == "// changed"
