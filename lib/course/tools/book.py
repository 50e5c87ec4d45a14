"""Reads and checks book.yml, the one list of chapters, and writes its table into the README."""

import sys
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[3]
FIELDS = {"minutes": int, "ranks": int, "needs": str, "gives": str}
BEGIN, END = "<!-- chapters: made from book.yml by `make readme` -->", "<!-- end of chapters -->"


class BookError(ValueError):
    """Raised where book.yml and the files of the course disagree."""


@dataclass(frozen=True, slots=True)
class Chapter:
    """Describes one entry of book.yml that is a notebook."""

    file: str  # relative to the root: "chapters/00-ranks.ipynb"
    title: str
    minutes: int
    ranks: int
    needs: str
    gives: str

    @property
    def name(self) -> str:
        """Return the file's stem, "00-ranks", which is also its name in commands."""
        return Path(self.file).stem

    @property
    def number(self) -> str:
        """Return the two digits at the beginning of the name, "00"."""
        return self.name.split("-")[0]


def pages(root: Path = ROOT) -> list[dict]:
    """Return every entry of book.yml in reading order, as written there."""
    book = yaml.safe_load((root / "book.yml").read_text(encoding="utf-8"))
    if not isinstance(book, dict) or book.get("root") != "README":
        raise BookError("book.yml needs the line `root: README`, because the book opens on it.")
    return [entry for tree in book.get("subtrees", []) for entry in tree.get("entries", [])]


def chapters(root: Path = ROOT) -> list[Chapter]:
    """Return the chapters in order; raise BookError where book.yml and the files disagree."""
    listed = [_chapter(page, root) for page in pages(root) if page["file"].endswith(".ipynb")]
    files = [chapter.file for chapter in listed]
    for file in files:
        if files.count(file) > 1:
            raise BookError(f"book.yml lists {file} twice.")
    if files != sorted(files):
        raise BookError("book.yml must list the chapters in the order of their numbers.")
    for path in sorted((root / "chapters").glob("*.ipynb")):
        if f"chapters/{path.name}" not in files:
            raise BookError(f"chapters/{path.name} exists, but book.yml does not list it.")
    return listed


def find(name: str, root: Path = ROOT) -> Chapter:
    """Return the chapter called `name`: "0", "00" or "00-ranks"."""
    listed = chapters(root)
    for chapter in listed:
        if name in (chapter.name, chapter.number, chapter.number.lstrip("0") or "0"):
            return chapter
    have = ", ".join(chapter.name for chapter in listed) or "none"
    raise BookError(f"There is no chapter {name!r}: book.yml lists {have}.")


def notebooks(names: list[str], root: Path = ROOT) -> list[Path]:
    """Return the paths of the notebooks called `names`; a name may also be the path of another."""
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
    """Return the list of chapters as the README's Markdown table."""
    rows = [
        "| | chapter | minutes in all | ranks | you need | then you can |",
        "|---|---|---|---|---|---|",
    ]
    for c in listed:
        link = f"[{c.title}]({c.file})"
        rows.append(f"| {c.number} | {link} | {c.minutes} | {c.ranks} | {c.needs} | {c.gives} |")
    return "\n".join(rows)


def with_table(readme: str, listed: list[Chapter]) -> str:
    """Return the README's text with a new table of chapters."""
    if readme.count(BEGIN) != 1 or readme.count(END) != 1:
        raise BookError(f"README.md must hold the line {BEGIN} once, and {END} after it.")
    before, rest = readme.split(BEGIN)
    return f"{before}{BEGIN}\n\n{table(listed)}\n\n{END}{rest.split(END)[1]}"


def main(root: Path = ROOT) -> int:
    """Write the README's table; return the exit status."""
    readme = root / "README.md"
    try:
        text = with_table(readme.read_text(encoding="utf-8"), chapters(root))
    except BookError as wrong:
        print(wrong, file=sys.stderr)
        return 1
    readme.write_text(text, encoding="utf-8")
    print("README.md lists the chapters of book.yml.")
    return 0


def _chapter(page: dict, root: Path) -> Chapter:
    file, about = page["file"], page.get("meta") or {}
    if not (root / file).is_file():
        raise BookError(f"book.yml lists {file}, but there is no such file.")
    if not isinstance(page.get("title"), str):
        raise BookError(f"book.yml gives {file} no title.")
    for field, kind in FIELDS.items():
        if not isinstance(about.get(field), kind):
            raise BookError(
                f"book.yml must give {file} a `{field}` under `meta`, of type {kind.__name__}."
            )
    if extra := set(about) - set(FIELDS):
        raise BookError(f"book.yml gives {file} a `{extra.pop()}` under `meta`, which is not used.")
    return Chapter(file, page["title"], **about)


if __name__ == "__main__":
    sys.exit(main())
