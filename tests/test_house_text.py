"""The house rules for texts: plain words, and notebooks that hold what they show."""

import re
import subprocess
import sys
from urllib.parse import unquote

import nbformat
import pytest

from tests.test_house import NOTEBOOK_BYTES, NOTEBOOKS, ROOT

# --- text


def prose(text):
    """Markdown without code, formulas, tables, tags and what is folded away."""
    text = re.sub(r"<details.*?</details>|```.*?```|<style.*?</style>", " ", text, flags=re.S)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)|\]\([^)]*\)", " ", text)  # pictures, addresses of links
    text = re.sub(r"\$\$.*?\$\$|\$[^$\n]+\$|`[^`\n]*`|<[^>]+>", " x ", text, flags=re.S)
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("|"))


def read(path):
    return nbformat.read(path, as_version=4)


def texts():
    """(name, markdown) of every text a reader sees outside the code."""
    for name in ("README.md", "CONTRIBUTING.md"):
        yield name, (ROOT / name).read_text(encoding="utf-8")
    for path in NOTEBOOKS:
        cells = [cell.source for cell in read(path).cells if cell.cell_type == "markdown"]
        yield path.name, "\n\n".join(cells)


EMOJI = re.compile("[\U0001f300-\U0001faff\u2600-\u26ff\u2705\u274c\u2728]")
TALK = re.compile(r"\b(?:simply|just|magic|magical|magically)\b", re.I)


@pytest.mark.parametrize(("name", "text"), [pytest.param(*pair, id=pair[0]) for pair in texts()])
def test_words_are_plain(name, text):
    plain = prose(text)
    assert not TALK.findall(plain), f"{name} says {TALK.findall(plain)}"
    assert not EMOJI.findall(plain), f"{name} shows {EMOJI.findall(plain)}"


def test_words_are_spelled():
    pytest.importorskip("codespell_lib", reason="codespell is not installed")
    text = "\n".join(prose(text) for _, text in texts())
    call = [sys.executable, "-m", "codespell_lib", "-"]
    found = subprocess.run(call, input=text, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert found.stdout == ""
    code = [
        sys.executable,
        "-m",
        "codespell_lib",
        "--skip=*/_static/*,*/__pycache__/*",
        "lib",
        "tests",
    ]
    assert subprocess.run(code, capture_output=True, text=True, timeout=60, cwd=ROOT).stdout == ""


# --- what a text points to


def slug(heading):
    """The anchor of a heading, as JupyterLab and GitHub make it, in one spelling."""
    return re.sub(r"[^\w-]", "", re.sub(r"\s+", "-", heading.strip().lower()))


def headings(markdown):
    return {slug(text) for text in re.findall(r"^#+ (.+?)#*$", markdown, re.M)}


def lost(markdown, folder, chapters):
    """What a text points to and is not there: files, headings of notebooks, numbers of chapters."""
    wrong = []
    for target in re.findall(
        r"\]\(([^)\s]+)\)", re.sub(r"```.*?```|`[^`]*`", "", markdown, flags=re.S)
    ):
        if re.match(r"\w+:", target):
            continue
        file, _, anchor = target.partition("#")
        path = folder / unquote(file)
        if file and not path.exists():
            wrong.append(target)
        elif anchor:
            there = markdown
            if file.endswith(".ipynb"):
                there = "\n\n".join(c.source for c in read(path).cells if c.cell_type == "markdown")
            elif file:
                there = path.read_text(encoding="utf-8")
            wrong += [target] * (slug(unquote(anchor)) not in headings(there))
    mentioned = re.findall(r"\bchapters? (\d+)(?:(?:, | and |–)(\d+))*", prose(markdown), re.I)
    numbers = {number for found in mentioned for number in found if number}
    return wrong + [f"chapter {n}" for n in sorted(numbers - chapters, key=int)]


def test_what_is_not_there_is_found(tmp_path):
    (tmp_path / "b.ipynb").write_text(nbformat.writes(nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_markdown_cell("# A b, c")])))  # fmt: skip
    good = "# One two\n[a](b.ipynb) [a](b.ipynb#A-b,-c) [a](#one-two) [a](https://b.c) chapter 0"
    assert lost(good, tmp_path, {"0", "1"}) == []
    bad = "[a](c.ipynb) [a](b.ipynb#d) [a](#three) Chapter 7 and chapters 0 and 8"
    assert lost(bad, tmp_path, {"0", "1"}) == [
        "c.ipynb",
        "b.ipynb#d",
        "#three",
        "chapter 7",
        "chapter 8",
    ]


@pytest.mark.parametrize(("name", "text"), [pytest.param(*pair, id=pair[0]) for pair in texts()])
def test_a_text_points_to_what_is_there(name, text):
    """A chapter never points to a file, a heading or a chapter that the reader cannot open."""
    chapters = {str(int(path.stem.split("-")[0])) for path in NOTEBOOKS}
    folder = ROOT / "chapters" if name.endswith(".ipynb") else ROOT
    assert lost(text, folder, chapters) == []


# --- notebooks

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def code_cells(path):
    return [cell for cell in read(path).cells if cell.cell_type == "code"]


@every_notebook
def test_a_chapter_was_run_in_order_from_the_top(path):
    counts = [cell.execution_count for cell in code_cells(path)]
    assert counts == list(range(1, len(counts) + 1)), "run it whole: make refresh"


@every_notebook
def test_a_chapter_stores_no_error_that_it_did_not_announce(path):
    for cell in code_cells(path):
        errors = [out.evalue for out in cell.outputs if out.output_type == "error"]
        announced = "raises-exception" in cell.metadata.get("tags", [])
        assert announced or not errors, f"cell {cell.execution_count}: {errors}"
        assert errors or not announced, (
            f"cell {cell.execution_count} announces an error, shows none"
        )


@every_notebook
def test_a_chapter_is_small(path):
    size = path.stat().st_size
    assert size < NOTEBOOK_BYTES, f"{size // 1000} KB"


@every_notebook
def test_a_chapter_tells_nothing_of_where_it_ran(path):
    book = read(path)
    assert set(book.metadata) <= {"kernelspec", "widgets"}, "make refresh"
    assert not any("execution" in cell.metadata for cell in book.cells), "make refresh"


@every_notebook
def test_code_cells_are_short_and_narrow(path):
    cells = [cell.source.splitlines() for cell in code_cells(path)]
    sizes = sorted(len(lines) for lines in cells)
    assert sizes[len(sizes) // 2] <= 6, f"the median cell has {sizes[len(sizes) // 2]} lines: 6"
    assert sizes[int(len(sizes) * 0.9)] < 18, f"nine in ten stay under 18 lines: {sizes}"
    assert sizes[-1] <= 30, f"the longest cell has {sizes[-1]} lines: 30"
    wide = [line for lines in cells for line in lines if len(line) > 88]
    assert not wide, f"wider than 88 columns: {wide[0]}"


@every_notebook
def test_a_sentence_stands_between_two_code_cells(path):
    words = None  # words since the last code cell
    for cell in read(path).cells:
        if cell.cell_type == "markdown":
            words = (words or 0) + len(re.findall(r"\w[\w'’-]*", prose(cell.source)))
            continue
        first = cell.source.splitlines()[0] if cell.source else "(an empty cell)"
        assert words, f"no sentence before the cell {first!r}"
        words = None


@every_notebook
def test_no_answer_is_printed_before_its_reveal(path):
    """Where a guess is revealed, the covered answer is the first output of the cell."""
    revealing = [cell for cell in code_cells(path) if ".reveal(" in cell.source]
    assert len(revealing) >= 2
    for cell in revealing:
        assert "Show the answer" in cell.outputs[0].get("data", {}).get("text/html", "")


@every_notebook
def test_a_chapter_is_a_sitting(path):
    texts = [cell.source for cell in read(path).cells]
    further = [n for n, text in enumerate(texts) if re.match(r"## Going further\b", text)]
    assert 35 <= len(texts) <= 60, f"{len(texts)} cells"
    assert not further or further[0] <= 45, f"the main path has {further[0]} cells: at most 45"
    after = "\n".join(texts[further[0] + 1 :] if further else [])
    assert not re.search(r"^## ", after, re.M), "sections of Going further have headings ###"


@every_notebook
def test_what_a_chapter_imports_it_uses(path):
    code = "\n".join(cell.source for cell in code_cells(path))
    for line in re.findall(r"^(?:from \S+ )?import (.+)$", code, re.M):
        for name in re.findall(r"(\w+)(?:,|$)", line.strip("()")):
            assert len(re.findall(rf"\b{name}\b", code)) > 1, f"{name} is imported and never used"


@every_notebook
def test_a_chapter_takes_nothing_private(path):
    for cell in code_cells(path):
        taken = re.findall(r"^\s*from (lib[\w.]*) import (.+)", cell.source, re.M)
        for base, names in taken:
            assert not re.search(r"(^|[ .(])_[a-z]", f"{base} {names}"), (
                f"from {base} import {names}"
            )


@every_notebook
def test_cells_write_no_files_and_start_no_launcher(path):
    for cell in code_cells(path):
        assert not re.search(r"^%%writefile|^!\s*torchrun", cell.source, re.M), cell.source


def test_every_case_that_went_wrong_has_its_tests():
    """`cases.md` and the docstrings of the tests name the same numbers."""
    listed = re.findall(r"^\| (\d+) \|", (ROOT / "tests/cases.md").read_text(), re.M)
    texts = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py")]
    tested = {n for text in texts for n in re.findall(r'^ +"""Case (\d+):', text, re.M)}
    assert listed == [str(n) for n in range(1, len(listed) + 1)] and set(listed) == tested
