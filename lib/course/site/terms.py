"""Puts the glossary into the book: its page, and a mark at the words of the chapters.

A mark is a link to the word's entry, so it works without JavaScript; definitions.js shows the
definition beside it, which it finds in the page.
"""

import json
import re
from pathlib import PurePosixPath

from docutils import nodes
from sphinx.transforms.post_transforms import SphinxPostTransform

from lib.course.glossary import FILE, Entry, Place, entries
from lib.course.glossary_marks import Section, explained, prose, tables

PAGE = FILE.removesuffix(".yml")  # as Sphinx names it
# Nothing inside these is marked.
LEFT_OUT = (nodes.title, nodes.literal, nodes.literal_block, nodes.reference, nodes.math,
            nodes.math_block, nodes.raw, nodes.figure, nodes.image)  # fmt: skip
INTRODUCTION = """---
myst:
  enable_extensions: [deflist, attrs_inline]
---
# Glossary

These are the symbols and then the words of the course, each in the order of the alphabet. A letter
has one meaning in a chapter, and may have another one in the next. In the chapters, a dotted line
marks a word of this list.
"""


def page(app, docname, source) -> None:
    """Turn the list into the Markdown of its page; called by Sphinx when it has read a file."""
    if docname != PAGE:
        return
    symbols = [_item(app, one) for one in entries() if one.symbols]
    words = [_item(app, one) for one in entries() if not one.symbols]
    source[0] = "\n".join([INTRODUCTION, "## Symbols\n", *symbols, "## Words\n", *words])


def _item(app, one: Entry) -> str:
    said = " ".join(filter(None, [one.means, one.more]))
    explained_in = f"*Explained in {_links(app, one, PAGE)}.*"
    return f"[{one.name}]{{#{one.anchor}}}\n: {said} {explained_in}\n"


def _links(app, one: Entry, docname: str) -> str:
    links = [f'<a href="{_address(app, place, docname)}">{place.says}</a>' for place in one.places]
    return links[0] if len(links) == 1 else f"{', '.join(links[:-1])} and {links[-1]}"


def _address(app, place: Place, docname: str) -> str:
    there = PurePosixPath(place.file).with_suffix("").as_posix()
    return f"{app.builder.get_relative_uri(docname, there)}#{nodes.make_id(place.heading)}"


class Marks(SphinxPostTransform):
    """Marks words of the glossary in a chapter, and adds their definitions to its page."""

    default_priority = 900  # when links are resolved and nothing else changes the text

    def run(self, **kwargs) -> None:
        """Called once for each page."""
        number = re.match(r"chapters/(\d+)-", self.env.docname)
        if self.app.builder.format != "html" or not number or PAGE not in self.env.found_docs:
            return
        here = self.app.builder.get_relative_uri(self.env.docname, PAGE)
        marked = mark(self.document, number[1], here)
        told = {one.anchor: self._told(one, number[1]) for one in entries() if one.anchor in marked}
        text = json.dumps(told, ensure_ascii=False).replace("</", "<\\/")
        script = f'<script type="application/json" id="glossary-definitions">{text}</script>'
        self.document += nodes.raw("", script, format="html")

    def _told(self, one: Entry, number: str) -> dict:
        links = [[place.says, _address(self.app, place, self.env.docname)]
                 for place in one.places_for(number)]  # fmt: skip
        return {"name": one.name, "means": one.plain, "more": one.more, "links": links}


def mark(document: nodes.document, number: str, page: str) -> set[str]:
    """Mark the words of chapter `number` with links to `page`; return the anchors of them."""
    marked = set()
    for section in document.findall(nodes.section):
        heading = section.next_node(nodes.title).astext()
        state = Section(set(explained(number).get(heading, ())))
        before = set(state.seen)
        for text in [text for part in section.children for text in _texts(part)]:
            pattern = tables(number) if _is_within(text, nodes.table) else prose(number)
            if found := state.marks(str(text), pattern):
                text.parent.replace(text, list(_pieces(str(text), found, page)))
        marked |= state.seen - before
    return marked


def _texts(node: nodes.Node):
    """Return the texts of a node that may be marked, without those of sections inside it."""
    if isinstance(node, nodes.Text):
        yield node
    elif not isinstance(node, (nodes.section, *LEFT_OUT)) and not node.get("nb_element"):
        for part in node.children:
            yield from _texts(part)


def _is_within(node: nodes.Node, kind: type) -> bool:
    while node.parent is not None:
        node = node.parent
        if isinstance(node, kind):
            return True
    return False


def _pieces(text: str, found: list[tuple[int, int, str]], page: str):
    end = 0
    for begin, stop, anchor in found:
        if text[end:begin]:
            yield nodes.Text(text[end:begin])
        yield nodes.reference("", text[begin:stop], refuri=f"{page}#{anchor}",
                              internal=True, classes=["term"])  # fmt: skip
        end = stop
    if text[end:]:
        yield nodes.Text(text[end:])


def setup(app) -> dict:
    """Called by Sphinx."""
    app.add_source_suffix(".yml", "myst-nb")
    app.connect("source-read", page)
    app.add_post_transform(Marks)
    app.add_css_file("definitions.css")
    app.add_js_file("definitions.js", defer="defer")
    return {"parallel_read_safe": True, "parallel_write_safe": True}
