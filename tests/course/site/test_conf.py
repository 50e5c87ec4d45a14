"""A tiny book, as Sphinx builds it: what its pages have that the notebooks and texts have not."""

import json
import os
import re
import shutil
import subprocess
import sys

import nbformat
import pytest

from lib.course.tools.book import ROOT
from lib.course.tools.run import KERNEL

NEW = "https://example.org/issues/new?title={page}: {section}&labels=a"
FILES = [{"file": "page.md"}, {"file": "cells.ipynb"}]
LISTED = {"root": "README", "meta": {"report": NEW}, "subtrees": [{"entries": FILES}]}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """The folder of a book of three pages whose owner has set an address for reports."""
    root = tmp_path_factory.mktemp("tiny")
    shutil.copytree(ROOT / "lib", root / "lib", ignore=shutil.ignore_patterns("__pycache__"))
    (root / "README.md").write_text("# All of it\n\nText.\n")
    (root / "page.md").write_text("# A & `B`?\n\n## Then <c>\n\n| | x |\n|---|---|\n| y | 1 |\n")
    long = nbformat.v4.new_code_cell("sleep()", metadata={"many_ranks": {"seconds": 20}})
    cells = [nbformat.v4.new_markdown_cell("# Cells"), nbformat.v4.new_code_cell("wake()"), long]
    notebook = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": KERNEL})
    nbformat.write(notebook, root / "cells.ipynb")
    (root / "book.yml").write_text(json.dumps(LISTED))  # JSON is YAML
    words = [sys.executable, "-m", "sphinx", "-q", "-W", "-c", "lib/course/site", ".", "_build"]
    environ = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(words, cwd=root, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return root / "_build"


def test_each_page_has_the_link_of_its_owner(tiny):
    page = (tiny / "page.html").read_text("utf-8")
    links = re.findall(r'<a class="report-link" href="(.*?)" data-address="(.*?)">', page)
    name = "https://example.org/issues/new?title=A%20%26%20B%3F: "
    assert links == [(f"{name}&amp;labels=a", f"{name}{{section}}&amp;labels=a")]
    assert 'src="_static/report.js"' in page
    assert "title=All%20of%20it: " in (tiny / "README.html").read_text("utf-8")


def test_a_header_without_a_word_is_no_header(tiny):
    page = (tiny / "page.html").read_text("utf-8")
    assert page.count("<th ") == 1 and '<td class="head"></td>' in page


def test_a_long_cell_says_so_above_its_code(tiny):
    text = re.sub("<.*?>", "", (tiny / "cells.html").read_text("utf-8"))
    assert re.search(r"wake\(\)\s+takes about 20 s\s+sleep\(\)", text)
