"""The text of every section of the book, for the search in the reader's browser.

`_static/search.js` searches it. It is a script and no JSON, because a page from file:// may load
scripts and fetch nothing.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from docutils import nodes

FILE = "_static/search-sections.js"
SKIPPED = (nodes.section, nodes.title, nodes.image, nodes.math_block, nodes.comment)


def sections(document: nodes.document) -> list[list[str]]:
    """Return [anchor, heading, text] of each section of a page, without those inside it.

    What is folded away (solutions, answers) is left out, so that no excerpt tells it.
    """
    return [
        [section["ids"][0], _line(section.next_node(nodes.title)), " ".join(_texts(section))]
        for section in document.findall(nodes.section)
    ]


def write(pages: dict[str, list[list[str]]], out: Path) -> None:
    """Write the sections of all pages, by address, into the book in `out`."""
    rows = [[page, found] for page, found in pages.items() if found]
    text = json.dumps(rows, ensure_ascii=False, separators=(",", ":"))
    (out / FILE).write_text(f"globalThis.manyRanksSections = {text};\n", encoding="utf-8")


def _texts(node: nodes.Element) -> Iterator[str]:
    """Give the lines of what stands in `node`: paragraphs, code, and what cells print."""
    folded = 0
    for child in node.children:
        if isinstance(child, nodes.raw):  # HTML, whose words are no prose
            folded += child.astext().count("<details") - child.astext().count("</details")
        elif folded or isinstance(child, SKIPPED):
            continue
        elif isinstance(child, nodes.TextElement):
            yield _line(child)
        else:
            yield from _texts(child)


def _line(node: nodes.Element) -> str:
    """Return the text of `node` in one line; a formula with commands in it is a dash."""
    parts = [
        "–" if isinstance(text.parent, nodes.math) and "\\" in text else str(text)
        for text in node.findall(nodes.Text)
    ]
    return " ".join("".join(parts).split())
