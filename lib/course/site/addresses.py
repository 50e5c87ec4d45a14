"""Addresses that the owner of a book gives in book.yml: to report to, and where its files lie."""

import re
from pathlib import Path
from urllib.parse import quote

import yaml

from lib.course.tools.book import ROOT, BookError

# report: where the link "Report this" of every page leads; `{page}` is the page's title and
# `{section}` the section that its reader sees.
# source: where the tools of a picture find `{file}`, the file of the library that makes it.
PLACES = {"report": {"page", "section"}, "source": {"file"}}


def address(root: Path = ROOT, name: str = "report") -> str:
    """Return the address under `name` in the `meta` of book.yml; "" where there is none.

    Raises BookError for one that is no address, or that wants filled in what nobody knows.
    """
    book = yaml.safe_load((root / "book.yml").read_text(encoding="utf-8"))
    given = (book.get("meta") or {}).get(name, "")
    if not isinstance(given, str) or (given and not re.match(r"https?://|mailto:", given)):
        raise BookError(f"book.yml must give `{name}` an address that begins with https://.")
    if unknown := set(re.findall(r"{(.*?)}", given)) - PLACES[name]:
        known = " and ".join(f"{{{one}}}" for one in sorted(PLACES[name]))
        raise BookError(
            f"book.yml gives `{name}` an address with {{{unknown.pop()}}}, where only {known} can "
            "be filled in."
        )
    return given


def link(given: str, page: str) -> str:
    """Return the address for one page; `_static/report.js` fills in the section."""
    return given.replace("{page}", quote(page, safe=""))
