"""The link "Report this" on every page of a book, where its owner says to which address."""

import re
from pathlib import Path
from urllib.parse import quote

import yaml

from lib.course.tools.book import ROOT, BookError

PLACES = {"page", "section"}


def address(root: Path = ROOT) -> str:
    """Return the address under `report` in the `meta` of book.yml; "" where there is none.

    In it `{page}` stands for a page's title and `{section}` for the section that its reader sees.
    """
    book = yaml.safe_load((root / "book.yml").read_text(encoding="utf-8"))
    given = (book.get("meta") or {}).get("report", "")
    if not isinstance(given, str) or (given and not re.match(r"https?://|mailto:", given)):
        raise BookError("book.yml must give `report` an address that begins with https://.")
    if unknown := set(re.findall(r"{(.*?)}", given)) - PLACES:
        raise BookError(
            f"book.yml gives `report` an address with {{{unknown.pop()}}}, "
            "but only {page} and {section} are filled in."
        )
    return given


def link(given: str, page: str) -> str:
    """Return the address for one page; `_static/report.js` fills in the section."""
    return given.replace("{page}", quote(page, safe=""))
