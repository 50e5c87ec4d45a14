"""The house rules for texts: plain words, and notebooks that hold what they show."""

import re
import subprocess
import sys

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
