"""Addresses in book.yml: where readers report to, and where the files of the library lie."""

import pytest
import yaml

from lib.course.site import addresses
from lib.course.tools.book import ROOT, BookError

NEW = "https://example.org/issues/new?title={page}: {section}&labels=a"


def book(root, address, name="report"):
    """Write a book.yml with that address, in place of the one that is there."""
    listed = yaml.safe_load((ROOT / "book.yml").read_text("utf-8"))
    listed["meta"][name] = address
    (root / "book.yml").write_text(yaml.safe_dump(listed))


def test_this_repository_says_nowhere():
    assert addresses.address() == addresses.address(name="source") == ""


def test_a_source_has_the_file_and_nothing_else(tmp_path):
    place = "https://example.org/blob/main/{file}"
    book(tmp_path, place, "source")
    assert addresses.address(tmp_path, "source") == place
    book(tmp_path, "https://example.org/{page}", "source")
    with pytest.raises(BookError, match="`source` an address with {page}, where only {file} can"):
        addresses.address(tmp_path, "source")


def test_an_address_may_have_the_page_and_the_section(tmp_path):
    book(tmp_path, NEW)
    assert addresses.address(tmp_path) == NEW
    assert addresses.link(NEW, 'A & "B"?') == NEW.replace("{page}", "A%20%26%20%22B%22%3F")


@pytest.mark.parametrize(
    ("address", "sentence"),
    [("javascript:alert()", "begins with https://"), ("https://a/{user}", "with {user}")],
)
def test_another_address_is_refused(tmp_path, address, sentence):
    book(tmp_path, address)
    with pytest.raises(BookError, match=sentence):
        addresses.address(tmp_path)
