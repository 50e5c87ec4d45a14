"""The book: the README and the chapters as they are stored, with all they need beside them."""

import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(ROOT))

import nbformat  # noqa: E402
from docutils import nodes  # noqa: E402
from markupsafe import Markup  # noqa: E402
from sphinx import addnodes  # noqa: E402
from sphinx.highlighting import PygmentsBridge  # noqa: E402
from sphinx.transforms.post_transforms import SphinxPostTransform  # noqa: E402
from sphinx.util.logging import getLogger  # noqa: E402

from lib.course.site import addresses, sections  # noqa: E402 (a line above makes it importable)
from lib.course.site.code_lines import CodeLines, breakable  # noqa: E402
from lib.course.tools.book import pages  # noqa: E402
from lib.course.tools.widgets import VIEW, lifeless, lifeless_in_page  # noqa: E402

project = "Many Ranks, One Model"
author = "The Many Ranks, One Model authors"
copyright = f"2026, {author}"
language = "en"

extensions = ["myst_nb", "sphinx_external_toc", "lib.course.site.terms"]
external_toc_path = str(ROOT / "book.yml")
external_toc_exclude_missing = False
include_patterns = ["README.md", *(page["file"] for page in pages(ROOT))]

nb_execution_mode = "off"  # published is what the tests compared
nb_merge_streams = True
nb_ipywidgets_js = {"pictures.js": {"defer": "defer"}}  # ours, and no html-manager from outside
myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 3

html_theme = "sphinx_book_theme"
html_title = project
html_static_path = ["_static"]
templates_path = ["_templates"]
_AS_IN_THE_THEME = ["icon-links.html", "search-button-field.html", "sbt-sidebar-nav.html"]
html_sidebars = {"**": ["first-page.html", *_AS_IN_THE_THEME]}
html_use_index = False
html_css_files = ["pages.css", "narrow.css", "print.css"]
html_js_files = [(name, {"defer": "defer"}) for name in ("print.js", "contents.js")]
html_theme_options = {
    "article_header_end": ["report.html", "article-header-buttons.html"],
    "navbar_persistent": [],  # else a second search bar
    "use_download_button": False,
    "use_fullscreen_button": False,
}
html_context = {"default_mode": "auto"}  # light or dark as the reader's system; a button changes it
html_copy_source = False
html_show_sphinx = False

# MathJax 3.2.2, which carries its own glyphs (MathJax 4 fetches fonts); the menu could fetch more.
mathjax_path = "mathjax/tex-svg.js"
mathjax3_config = {"options": {"enableMenu": False}}

SECTIONS: dict[str, list[list[str]]] = {}  # by page: what the search finds
OUTSIDE = re.compile(
    r"""<(?:script|img|iframe|source|video|audio|embed)\b[^>]*\bsrc=["'](?:https?:)?//[^"']*"""
    r"""|<link\b[^>]*\bhref=["'](?:https?:)?//[^"']*"""
    r"""|@import\s+(?:url\()?["']?(?:https?:)?//[^"')]*|url\(["']?(?:https?:)?//[^"')]*"""
)


class Stills(SphinxPostTransform):
    """A picture's PNG says in words what it shows, and stands where the living one will be."""

    default_priority = 3  # before myst-nb takes one type of each output (4)

    def run(self, **kwargs) -> None:
        """Called once for each page."""
        for output in list(self.document.findall(nodes.container)):
            if output.get("nb_element") != "mime_bundle":
                continue
            kinds = {part["mime_type"]: part for part in output.children}
            for image in [n for kind in kinds.values() for n in kind.findall(nodes.image)]:
                if "text/plain" in kinds:
                    image["alt"] = kinds["text/plain"].astext()
                if VIEW in kinds and "text/html" not in kinds:
                    image["classes"].append("picture-still")
                    kinds[VIEW].append(image.deepcopy())
            if VIEW in kinds and "text/html" in kinds:  # a covered answer: what folds is better
                still = nodes.container(classes=["picture-still"])
                still.extend(part.deepcopy() for part in kinds["text/html"].children)
                kinds[VIEW].append(still)


class Seconds(SphinxPostTransform):
    """A cell that takes long says so above its code."""

    default_priority = 3

    def run(self, **kwargs) -> None:
        """Called once for each page."""
        for cell in list(self.document.findall(nodes.container)):
            said = cell.get("cell_metadata", {}).get("many_ranks", {}).get("seconds")
            if said:
                takes = nodes.paragraph("", f"takes about {said} s", classes=["cell-seconds"])
                cell.insert(0, takes)


REPORT = addresses.address(ROOT)  # where readers report what is wrong; "" for nowhere
SOURCE = addresses.address(ROOT, "source")  # where the library's files lie; "" for nowhere
EMPTY_HEADER = '<th class="head"><p></p></th>'  # it names no column, as a screen reader would say


def dress(app, name: str, template: str, context: dict, document) -> None:
    """Called for each page: its links, places to break, no headers of tables that say nothing."""
    context["source"] = SOURCE
    context["report"] = addresses.link(REPORT, Markup(context.get("title", "")).striptags())
    body = context.get("body", "")
    context["body"] = breakable(body.replace(EMPTY_HEADER, '<td class="head"></td>'))


def number(app, document) -> None:
    """Put the numbers of the chapters, which count from 0, before their titles in the sidebar."""
    for tree in document.findall(addnodes.toctree):
        if tree["entries"] and tree["entries"][0][1].startswith("chapters/"):
            tree["entries"] = [
                (f"{n}. {title}", to) for n, (title, to) in enumerate(tree["entries"])
            ]


def read(app, document, name: str) -> None:
    """Keeps the sections of a page for the search; `close` writes those of all pages."""
    if app.builder.format == "html":
        SECTIONS[app.builder.get_target_uri(name)] = sections.sections(document)


def close(app, exception) -> None:
    """Gives the site its front door, and refuses what does not live or comes from outside."""
    if exception or app.builder.format != "html":
        return
    out = Path(app.outdir)
    home = f"{app.config.root_doc}.html"
    listed = [home, *(str(Path(page["file"]).with_suffix(".html")) for page in pages(ROOT))]
    sections.write({page: SECTIONS[page] for page in listed}, out)
    (out / "index.html").write_text(
        f'<!doctype html><meta charset="utf-8"><title>{project}</title>'
        f'<meta http-equiv="refresh" content="0; url={home}"><a href="{home}">{project}</a>\n'
    )
    for page in pages(ROOT):
        for sentence in pictures_missing(page["file"], out):
            getLogger(__name__).warning(sentence)  # which is an error where the book is published
    for page in [*out.rglob("*.html"), *out.rglob("*.css")]:
        for found in OUTSIDE.findall(page.read_text(encoding="utf-8", errors="replace")):
            raise RuntimeError(f"{page.relative_to(out)} fetches from outside the site: {found}.")


def pictures_missing(file: str, out: Path) -> list[str]:
    """Return a sentence for each picture of a chapter that should live in the book and does not."""
    if not file.endswith(".ipynb"):
        return []
    notebook = nbformat.read(ROOT / file, as_version=4)
    page = (out / file).with_suffix(".html").read_text(encoding="utf-8")
    wrong = lifeless(notebook) or lifeless_in_page(notebook, page)
    number = Path(file).stem.split("-")[0]
    remedy = f"`make refresh CHAPTER={number} FRESH=1` stores the pictures anew."
    return [f"{file}, {sentence} {remedy}" for sentence in wrong]


def setup(app) -> None:
    """Called by Sphinx."""
    PygmentsBridge.html_formatter = CodeLines
    app.add_post_transform(Stills)
    app.add_post_transform(Seconds)
    app.connect("doctree-read", number, priority=100)  # before the theme's list is made of them
    app.connect("doctree-resolved", read)
    app.connect("html-page-context", dress)
    app.connect("build-finished", close)
