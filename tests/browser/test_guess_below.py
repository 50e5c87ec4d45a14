"""What a cell shows below an answer that is covered, and the text that goes on from it."""

import pytest

from lib.draw import guess
from tests.browser.test_guess import HOW_MANY, asked, say

__all__ = ["asked"]  # a fixture

MAKE = """() => void (window.make = (name, ...inside) => { // a node of that kind or class
    const isTag = /^(p|h2|hr)$/.test(name), node = document.createElement(isTag ? name : "div");
    if (!isTag) node.className = name;
    node.append(...inside);
    return node;
})"""


@pytest.mark.parametrize("host", ["JupyterLab", "book"])
def test_what_a_cell_shows_below_a_covered_answer_is_covered_too(asked, host):
    """What stands before it is not, nor are errors."""
    size = guess(HOW_MANY, unit="bytes")
    question, reveal = asked(size, size.reveal(3_000_000))
    page = reveal.page
    page.evaluate(MAKE)
    page.evaluate(
        """(isLab) => {
            const figure = document.querySelectorAll("figure.mrom")[1];
            const child = isLab ? "jp-OutputArea-child" : "output";
            const error = make("", "an error");
            error.dataset.mimeType = "application/vnd.jupyter.error";
            const all = make(isLab ? "jp-OutputArea" : "cell_output", make(child, "printed before"),
                make(child, figure.parentElement), make(child, "printed below"),
                make(child, error));
            const texts = [make("", "the answer again"), make("h2", "a heading"),
                make("", "another thing")];
            const text = isLab
                ? [make("jp-Cell jp-MarkdownCell", make("jp-RenderedMarkdown", ...texts))] : texts;
            const cell = isLab ? "jp-Cell" : "cell";
            const page = [make(cell, all), ...text, make(cell, "a cell"), make("", "its text")];
            document.querySelector("#here").after(make("", ...page));
        }""",
        host == "JupyterLab",
    )
    reveal.ask("p => { p.cover.end(); p.set({}); }")  # it stands elsewhere than when it was drawn
    reveal.settle()
    note = reveal.node.get_by_text(
        "What this cell shows below and the text that follows are covered too."
    )
    assert note.is_visible()

    def seen(*texts):
        return [page.get_by_text(text, exact=True).is_visible() for text in texts]

    covered = "printed below", "the answer again"
    assert all(
        seen("printed before", "an error", "a heading", "another thing", "a cell", "its text")
    )
    assert seen(*covered) == [False, False]
    page.emulate_media(media="print")
    assert seen(*covered) == [True, True]
    page.emulate_media(media="screen")
    say(question, "6 MB")
    assert seen(*covered) == [True, True] and not note.is_visible()


@pytest.mark.parametrize(
    "around, says",
    [
        (["cell", "p"], "The text that follows is covered too."),
        (["cell", "h2", "p"], None),
        (["cell", "hr", "p"], None),
        (["cell", "p", "hr", "p"], "The text that follows is covered too."),
        (["cell", "cell"], None),
        (["jp-Cell", "jp-Cell jp-MarkdownCell"], "The text that follows is covered too."),
        (["jp-Cell", "jp-Cell jp-CodeCell"], None),
        (["jp-Cell"], None),
    ],
)
def test_the_picture_says_only_what_it_covers(asked, around, says):
    """A cell of which nothing else is shown, with text, a heading or another cell behind it."""
    size = guess(HOW_MANY, unit="bytes")
    _, reveal = asked(size, size.reveal(3_000_000))
    reveal.page.evaluate(MAKE)
    reveal.page.evaluate(
        """names => {
            const figure = document.querySelectorAll("figure.mrom")[1];
            const isLab = names[0] === "jp-Cell";
            const child = make(isLab ? "jp-OutputArea-child" : "output", figure.parentElement);
            const first = make(names[0], isLab ? child : make("cell_output", child));
            const text = document.createElement("p"), shown = document.createElement("div");
            text.append("words");
            shown.className = "jp-RenderedMarkdown";
            shown.append(text);
            const rest = names.slice(1).map((name) => make(name, isLab ? shown : name));
            document.querySelector("#here").after(make("", first, ...rest));
        }""",
        around,
    )
    reveal.ask("p => { p.cover.end(); p.set({}); }")
    reveal.settle()
    note = reveal.node.locator(".mrom-covers")
    assert note.is_visible() == bool(says)
    assert not says or note.inner_text() == says


WAITS = "What this cell shows is covered until you have made the guess above."


@pytest.mark.parametrize("between", ["words", "a heading", ""])
@pytest.mark.parametrize("host", ["JupyterLab", "book"])
def test_what_the_next_cell_shows_is_covered_where_no_heading_is_between(asked, host, between):
    """And the text below it, up to a heading; a cell right below the answer's goes its own way."""
    size = guess(HOW_MANY, unit="bytes")
    question, reveal = asked(size, size.reveal(3_000_000))
    reveal.page.evaluate(MAKE)
    reveal.page.evaluate(
        """([isLab, between]) => {
            const figure = document.querySelectorAll("figure.mrom")[1];
            const child = isLab ? "jp-OutputArea-child" : "output";
            const shown = (...all) => make(isLab ? "jp-OutputArea" : "cell_output",
                ...all.map((one) => make(child, one)));
            const cell = (code, ...all) => make(isLab ? "jp-Cell jp-CodeCell" : "cell",
                make("", code), shown(...all));
            const error = make("", "its error");
            error.dataset.mimeType = "application/vnd.jupyter.error";
            const text = (...inside) => !isLab ? inside
                : [make("jp-Cell jp-MarkdownCell", make("jp-RenderedMarkdown", ...inside))];
            const words = between === "words" ? text(make("", "words")) :
                between ? text(make("", "words"), make("h2", between)) : [];
            const page = [cell("first", figure.parentElement), ...words,
                cell("second", "its table", error),
                ...text(make("", "what it says"), make("h2", "next")),
                cell("third", "its picture")];
            document.querySelector("#here").after(make("", ...page));
        }""",
        [host == "JupyterLab", between],
    )
    reveal.ask("p => { p.cover.end(); p.set({}); }")
    reveal.settle()
    page = reveal.page

    def seen(*texts):
        return [page.get_by_text(text, exact=True).is_visible() for text in texts]

    def notes():
        said = "nodes => nodes.map(node => getComputedStyle(node, '::before').content)"
        found = page.locator(".jp-OutputArea, .cell_output").evaluate_all(said)
        return [text.strip('"') for text in found if text != "none"]

    later = "its table", "what it says"
    assert all(seen("first", "second", "its error", "third", "next", "its picture"))
    assert seen("words", *later) == [False] * 3 if between == "words" else all(seen(*later))
    assert notes() == [WAITS] * (between == "words")
    page.emulate_media(media="print")
    assert all(seen(*later)) and not notes()
    page.emulate_media(media="screen")
    say(question, "6 MB")
    assert all(seen(*later)) and not notes()
