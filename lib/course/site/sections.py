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

    A definition with an anchor, as the glossary's have, is a section of its own. What is folded
    away (solutions, answers) is left out, so that no excerpt tells it.
    """
    rows = [
        [section["ids"][0], _line(section.next_node(nodes.title)), " ".join(_texts(section))]
        for section in document.findall(nodes.section)
    ]
    for item in document.findall(nodes.definition_list_item):
        if anchor := _anchor(item):
            term, definition = item.next_node(nodes.term), item.next_node(nodes.definition)
            rows.append([anchor, _line(term), " ".join(_texts(definition))])
    return rows


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
        elif folded or isinstance(child, SKIPPED) or _anchor(child):
            continue
        elif isinstance(child, nodes.TextElement):
            yield _line(child)
        else:
            yield from _texts(child)


def _anchor(node: nodes.Node) -> str:
    """Return the anchor of a definition's term; "" of a term without one and of other nodes."""
    term = node.next_node(nodes.term) if isinstance(node, nodes.definition_list_item) else None
    ids = [one for part in (term.findall(nodes.Element) if term else ()) for one in part["ids"]]
    return ids[0] if ids else ""


def _line(node: nodes.Element) -> str:
    """Return the text of `node` in one line; a formula with commands in it is a dash.

    HTML that stands in a text, such as a link of the glossary, is no text.
    """
    parts = [
        "–" if isinstance(text.parent, nodes.math) and "\\" in text else str(text)
        for text in node.findall(nodes.Text)
        if not isinstance(text.parent, nodes.raw)
    ]
    return " ".join("".join(parts).split())
