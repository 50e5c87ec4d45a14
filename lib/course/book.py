"""The one list of chapters, book.yml: read, checked in words, and told to the README."""

import sys
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
FIELDS = {"minutes": int, "ranks": int, "needs": str, "gives": str}
BEGIN, END = "<!-- chapters: made from book.yml by `make readme` -->", "<!-- end of chapters -->"


class BookError(ValueError):
    """book.yml says something that the course cannot keep; the message is a sentence."""


@dataclass(frozen=True, slots=True)
class Chapter:
    """One entry of book.yml that is a notebook."""

    file: str  # relative to the root: "chapters/00-ranks.ipynb"
    title: str
    minutes: int
    ranks: int
    needs: str
    gives: str

    @property
    def name(self) -> str:
        """The file's stem, "00-ranks", which is also how a command names it."""
        return Path(self.file).stem

    @property
    def number(self) -> str:
        """The two digits in front of the name, "00"."""
        return self.name.split("-")[0]


def pages(root: Path = ROOT) -> list[dict]:
    """Every entry of book.yml in reading order, as written there."""
    book = yaml.safe_load((root / "book.yml").read_text(encoding="utf-8"))
    if not isinstance(book, dict) or book.get("root") != "README":
        raise BookError("book.yml: `root: README` is missing: the book opens on the README.")
    return [entry for tree in book.get("subtrees", []) for entry in tree.get("entries", [])]


def chapters(root: Path = ROOT) -> list[Chapter]:
    """The chapters in reading order; raises BookError where book.yml and the tree disagree."""
    listed = [_chapter(page, root) for page in pages(root) if page["file"].endswith(".ipynb")]
    files = [chapter.file for chapter in listed]
    for file in files:
        if files.count(file) > 1:
            raise BookError(f"book.yml lists {file} twice.")
    if files != sorted(files):
        raise BookError("book.yml: the chapters do not stand in the order of their numbers.")
    for path in sorted((root / "chapters").glob("*.ipynb")):
        if f"chapters/{path.name}" not in files:
            raise BookError(f"chapters/{path.name} exists and book.yml does not list it.")
    return listed


def find(name: str, root: Path = ROOT) -> Chapter:
    """The chapter called `name`: "0", "00" or "00-ranks"."""
    listed = chapters(root)
    for chapter in listed:
        if name in (chapter.name, chapter.number, chapter.number.lstrip("0") or "0"):
            return chapter
    have = ", ".join(chapter.name for chapter in listed) or "none"
    raise BookError(f"there is no chapter {name!r}: book.yml lists {have}.")


def notebooks(names: list[str], root: Path = ROOT) -> list[Path]:
    """The notebooks that a command means by `names`; a path to any other notebook means itself."""
    if not names:
        return [root / chapter.file for chapter in chapters(root)]
    paths = []
    for name in names:
        if name.endswith(".ipynb") and Path(name).is_file():
            paths.append(Path(name).resolve())
        else:
            paths.append(root / find(name, root).file)
    return paths


def table(listed: list[Chapter]) -> str:
    """The chapter list as the README shows it, a Markdown table."""
    rows = [
        "| | chapter | minutes | ranks | you need | then you can |",
        "|---|---|---|---|---|---|",
    ]
    for c in listed:
        link = f"[{c.title}]({c.file})"
        rows.append(f"| {c.number} | {link} | {c.minutes} | {c.ranks} | {c.needs} | {c.gives} |")
    return "\n".join(rows)


def told(readme: str, listed: list[Chapter]) -> str:
    """The README's text with its table of chapters made anew."""
    if readme.count(BEGIN) != 1 or readme.count(END) != 1:
        raise BookError(f"README.md must hold the line {BEGIN} once, and {END} after it.")
    before, rest = readme.split(BEGIN)
    return f"{before}{BEGIN}\n\n{table(listed)}\n\n{END}{rest.split(END)[1]}"


def main(root: Path = ROOT) -> int:
    """Writes the README's table; returns the exit status."""
    readme = root / "README.md"
    try:
        text = told(readme.read_text(encoding="utf-8"), chapters(root))
    except BookError as wrong:
        print(wrong, file=sys.stderr)
        return 1
    readme.write_text(text, encoding="utf-8")
    print("README.md lists the chapters of book.yml.")
    return 0


def _chapter(page: dict, root: Path) -> Chapter:
    file, about = page["file"], page.get("meta") or {}
    if not (root / file).is_file():
        raise BookError(f"book.yml lists {file}, and there is no such file.")
    if not isinstance(page.get("title"), str):
        raise BookError(f"book.yml: {file} has no title.")
    for field, kind in FIELDS.items():
        if not isinstance(about.get(field), kind):
            raise BookError(f"book.yml: {file} needs `{field}` under `meta`, a {kind.__name__}.")
    if extra := set(about) - set(FIELDS):
        raise BookError(f"book.yml: {file} has `{extra.pop()}` under `meta`, which nobody reads.")
    return Chapter(file, page["title"], **about)


if __name__ == "__main__":
    sys.exit(main())
