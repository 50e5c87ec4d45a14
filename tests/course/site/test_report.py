"""The link "Report this": set by the owner of a copy, in book.yml."""

import pytest
import yaml

from lib.course.site import report
from lib.course.tools.book import ROOT, BookError

NEW = "https://example.org/issues/new?title={page}: {section}&labels=a"


def book(root, address):
    """Write a book.yml with that address, in place of the one that is there."""
    listed = yaml.safe_load((ROOT / "book.yml").read_text("utf-8"))
    listed["meta"]["report"] = address
    (root / "book.yml").write_text(yaml.safe_dump(listed))


def test_this_repository_says_nowhere():
    assert report.address() == ""


def test_an_address_may_have_the_page_and_the_section(tmp_path):
    book(tmp_path, NEW)
    assert report.address(tmp_path) == NEW
    assert report.link(NEW, 'A & "B"?') == NEW.replace("{page}", "A%20%26%20%22B%22%3F")


@pytest.mark.parametrize(
    ("address", "sentence"),
    [("javascript:alert()", "begins with https://"), ("https://a/{user}", "with {user}")],
)
def test_another_address_is_refused(tmp_path, address, sentence):
    book(tmp_path, address)
    with pytest.raises(BookError, match=sentence):
        report.address(tmp_path)
