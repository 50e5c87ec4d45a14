"""Words of the glossary in a text: whole words, the longest first, each once, and not too many."""

import re

import pytest
from docutils import nodes

from lib.course.glossary import entries
from lib.course.glossary_marks import (
    MOST,
    Pattern,
    Section,
    definitions,
    explained,
    expression,
    prose,
    tables,
)
from lib.course.site.terms import mark
from lib.course.tools.book import chapters
from tests.every import every


def marked(text, pattern, section=None):
    found = (section or Section()).marks(text, pattern)
    return [(text[begin:end], anchor.removeprefix("glossary-")) for begin, end, anchor in found]


@pytest.mark.parametrize(
    "text", ["all-reduce", "All-reduces", "all_reduce", "all reduce", "all\nreduce"]
)
def test_spellings_of_one_word(text):
    assert marked(f"An {text} ends.", prose("00")) == [(text, "all-reduce")]


def test_only_whole_words():
    assert marked("It brings all-reduce-like franked ZeRO++ things.", prose("00")) == []
    assert marked("A rank’s tensor", prose("00")) == [("rank", "rank")]
    assert marked("PyTorch’s own, 2S, S²", tables("00")) == []


def test_the_longest_word_wins():
    assert marked("dynamic loss scaling", prose("10")) == [
        ("dynamic loss scaling", "dynamic-loss-scaling")
    ]
    assert marked("model buffers", prose("01")) == [("model buffers", "model-buffer")]


def test_capitals_of_a_name_count():
    assert marked("FSDP, and fsdp", prose("03")) == [("FSDP", "fsdp")]
    assert marked("mx", prose("10")) == []


def test_letters_are_marked_in_tables_only_and_greek_ones_everywhere():
    assert marked("n ranks, α", prose("01")) == [("ranks", "rank"), ("α", "alpha-latency")]
    assert marked("2(n − 1)/n · G", tables("01")) == [
        ("n", "n-ranks"),
        ("G", "g-gradients"),
    ]


def test_a_letter_means_what_it_means_in_its_chapter():
    meanings = {number: dict(marked("k", tables(number)))["k"] for number in ("00", "02", "08")}
    assert meanings == {
        "00": "k-round",
        "02": "k-b-compression",
        "08": "k-experts-of-a-token",
    }
    assert marked("B", tables("04")) == [("B", "b-samples")]
    assert marked("a", tables("09")) == [], "it is a word of English"


def test_a_word_with_other_meanings_is_marked_where_it_has_ours():
    assert marked("A unit of one GB", prose("06")) == []
    assert marked("A unit of the model", prose("03")) == [("unit", "unit")]
    assert "glossary-reduce" not in {
        anchor for c in chapters() for anchor in prose(c.number).anchors
    }


def test_each_once_and_at_most_twelve_in_a_section():
    section = Section({"glossary-rank"})
    assert marked("ranks, a ring, a ring", prose("00"), section) == [("ring", "ring")]
    assert marked("the ring", prose("00"), section) == []
    many = " ".join(entry.name for entry in entries() if entry.spellings and "00" in entry.chapters)
    assert len(marked(many, prose("00"))) == MOST


def test_each_group_is_one_spelling():
    """JavaScript counts groups as Python does."""
    for chapter in chapters():
        for pattern in (prose(chapter.number), tables(chapter.number)):
            assert re.compile(pattern.expression).groups == len(pattern.anchors) > 20
    assert re.fullmatch(expression("2.5D"), "2x5D") is None
    assert isinstance(prose("00"), Pattern)


def test_what_jupyterlab_gets_tells_all_that_it_may_mark():
    told = definitions("03")
    anchors = {*told["prose"]["anchors"], *told["tables"]["anchors"]}
    assert anchors and anchors <= set(told["entries"])
    unit = told["entries"]["glossary-unit"]
    assert unit["means"].startswith("A unit is")
    assert unit["places"] == [
        ["chapter 3, Build it: ZeRO-3", "03-fsdp.ipynb", "Build-it:-ZeRO-3-(10-min)"]
    ]


# --- a page of the book

LINE = "The ranks of a ring wait, and ranks send. "


@pytest.fixture
def document():
    """A chapter's page with all that must not be marked, and two sections."""
    from docutils.utils import new_document

    made = new_document("chapters/00-ranks")
    outer, inner = nodes.section(), nodes.section()
    outer += nodes.title("", "A title with ranks")
    text = nodes.paragraph("", "", nodes.literal("", "rank"), nodes.Text(" "), nodes.Text(LINE))
    text += nodes.reference("", "a ring", refuri="x")
    text += nodes.math("", "ring")
    outer += [text, nodes.literal_block("", "rank"), nodes.raw("", "<b>rank</b>", format="html")]
    outer += nodes.container("", nodes.paragraph("", "rank world size"), nb_element="output")
    inner += [nodes.title("", "The ring"), nodes.paragraph("", LINE)]
    outer += inner
    made += outer
    return made


def links(node):
    return [(one.astext(), one["refuri"]) for one in node.findall(nodes.reference)
            if "term" in one.get("classes", ())]  # fmt: skip


def test_marks_change_no_text_and_stay_out_of_code_links_headings_and_outputs(document):
    before = document.astext()
    anchors = mark(document, "00", "../glossary.html")
    assert document.astext() == before
    outer, inner = document.findall(nodes.section)
    assert links(document) == [
        ("ranks", "../glossary.html#glossary-rank"),
        ("ring", "../glossary.html#glossary-ring"),
        ("ranks", "../glossary.html#glossary-rank"),
    ]
    assert links(inner) == [("ranks", "../glossary.html#glossary-rank")], (
        "the section that explains the ring does not mark it"
    )
    assert anchors == {"glossary-rank", "glossary-ring"}
    inside = (nodes.title, nodes.literal, nodes.literal_block, nodes.container, nodes.raw)
    assert every(not links(node) for kind in inside for node in outer.findall(kind))


def test_headings_of_a_chapter_explain_what_the_glossary_says():
    assert "glossary-bucket" in explained("01")["Build it: buckets (5 min)"]
    assert "glossary-g-gradients" in explained("01")["DP versus DDP"]
