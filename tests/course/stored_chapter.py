"""A chapter as it is stored, and what its cells show there."""

import re
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[2]


def stored_chapter(name: str):
    """Give the notebook `chapters/<name>.ipynb`."""
    return nbformat.read(ROOT / "chapters" / f"{name}.ipynb", as_version=4)


def text_of(notebook) -> str:
    """Give the text of a chapter, without its code."""
    return "\n\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")


def chapter_fixtures(name: str):
    """Give the fixtures `notebook` and `text` of a chapter, each read once for a file of tests."""

    @pytest.fixture(scope="module")
    def notebook():
        return stored_chapter(name)

    @pytest.fixture(scope="module")
    def text(notebook):
        return text_of(notebook)

    return notebook, text


def limit_tests(printed: int = 12):
    """Give the tests of a chapter's limits: its main path, its minutes, and what it prints.

    At least so many outputs must be `printed`, so that the last one looks at something.
    """

    def the_main_path_is_short(notebook):
        cells, words = main_path(notebook)
        assert 0 < cells <= 45 and 0 < words <= 3000, f"{cells} cells, {words} words"

    def the_minutes_are_those_of_the_headings(text):
        main, later = minutes_of(text)
        told = re.search(r"main path takes (\d+) minutes .* exercises 2 and 3 take (\d+)", text)
        assert later == int(told[2]), later
        assert 0 <= int(told[1]) - main < 5 and main <= 50, main  # rounded up to five

    def what_it_prints_fits_a_phone(notebook):
        """49 characters stand beside one another on 360 px."""
        texts = [o.text for c in notebook.cells for o in c.get("outputs", []) if "text" in o]
        assert len(texts) > printed
        wide = [line for text in texts for line in text.splitlines() if len(line) > 49]
        assert not wide, wide

    return (
        the_main_path_is_short, the_minutes_are_those_of_the_headings, what_it_prints_fits_a_phone,
    )  # fmt: skip


def minutes_of(text: str) -> tuple[int, int]:
    """Give the minutes of all headings but those of exercises 2 and 3, and theirs."""
    found = re.findall(r"^## (.*) \((\d+) min\)$", text, re.M)
    later = sum(int(n) for title, n in found if re.match("Exercise [23]", title))
    return sum(int(n) for _, n in found) - later, later


def shown(notebook, words: str) -> str:
    """Give the text that the one code cell with these words in its source shows."""
    (cell,) = [c for c in notebook.cells if c.cell_type == "code" and words in c.source]
    return "\n".join(o.get("text") or o.data.get("text/plain", "") for o in cell.outputs)


def main_path(notebook) -> tuple[int, int]:
    """Give the cells of the main path, and its words without what is folded and pictures."""
    texts = [c.source for c in notebook.cells]
    (end,) = [n for n, text in enumerate(texts) if text.startswith("## Going further")]
    main = " ".join(c.source for c in notebook.cells[:end] if c.cell_type == "markdown")
    main = re.sub(r"<details.*?</details>|!\[[^\]]*\]\([^)]*\)", " ", main, flags=re.S)
    return end, len(re.findall(r"[A-Za-z][\w'’-]*", main))
