"""What a cell shows below an answer that is covered."""

import pytest

from lib.draw import guess
from tests.browser.test_guess import HOW_MANY, asked, say

__all__ = ["asked"]  # a fixture


@pytest.mark.parametrize("host", ["JupyterLab", "book"])
def test_what_a_cell_shows_below_a_covered_answer_is_covered_too(asked, host):
    """What stands before it is not, nor are errors."""
    size = guess(HOW_MANY, unit="bytes")
    question, reveal = asked(size, size.reveal(3_000_000))
    page = reveal.page
    page.evaluate(
        """(isLab) => {
            const figure = document.querySelectorAll("figure.mrom")[1];
            const make = (name, ...inside) => {
                const node = document.createElement("div");
                node.className = name;
                node.append(...inside);
                return node;
            };
            const child = isLab ? "jp-OutputArea-child" : "output";
            const error = make("", "an error");
            error.dataset.mimeType = "application/vnd.jupyter.error";
            const all = make(isLab ? "jp-OutputArea" : "cell_output", make(child, "printed before"),
                make(child, figure.parentElement), make(child, "printed below"),
                make(child, error));
            document.querySelector("#here").after(all);
        }""",
        host == "JupyterLab",
    )
    reveal.ask("p => { p.cover.end(); p.set({}); }")  # it stands elsewhere than when it was drawn
    reveal.settle()
    note = reveal.node.get_by_text("What this cell shows below is covered too.")
    assert note.is_visible()

    def seen(text):
        return page.get_by_text(text, exact=True).is_visible()

    assert [seen(t) for t in ("printed before", "printed below", "an error")] == [1, 0, 1]
    page.emulate_media(media="print")
    assert seen("printed below")
    page.emulate_media(media="screen")
    say(question, "6 MB")
    assert seen("printed below") and not note.is_visible()
