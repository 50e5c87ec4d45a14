"""The texts that the book's search has of a page."""

import json
import re

from docutils.core import publish_doctree

from lib.course.site import sections

PAGE = """
Ranks
=====

A :math:`p` of
:math:`\\frac{1}{2}` and ``dist.barrier()``.

.. image:: ring.png
   :alt: a ring of ranks

Start them
----------

.. code::

   world = World(4)
   world.run(f)

.. raw:: html

   <details><summary>Solution</summary>

It is sixteen.

.. raw:: html

   </details>

Then they wait.
"""


def test_a_section_has_its_own_text_and_nothing_that_is_folded_away():
    """Formulas with commands, pictures and HTML are no prose; a solution is no excerpt."""
    assert sections.sections(publish_doctree(PAGE, settings_overrides={"doctitle_xform": False})) \
        == [
            ["ranks", "Ranks", "A p of – and dist.barrier()."],
            ["start-them", "Start them", "world = World(4) world.run(f) Then they wait."],
        ]  # fmt: skip


def test_html_inside_a_sentence_is_no_text():
    """The glossary's links once stood in the results of a search as they are written."""
    role = ".. role:: html(raw)\n   :format: html\n\n"
    page = role + 'Words\n=====\n\nSee :html:`<a href="x">` chapter 1.\n'
    document = publish_doctree(
        page, settings_overrides={"doctitle_xform": False, "raw_enabled": True}
    )
    assert sections.sections(document) == [["words", "Words", "See chapter 1."]]


def test_a_definition_with_an_anchor_is_a_section_of_its_own():
    """Else the two lists of the glossary would be the first results of every search."""
    page = "Words\n=====\n\nFirst.\n\n_`rank`\n   A process.\n\nplain\n   Stays.\n"
    document = publish_doctree(page, settings_overrides={"doctitle_xform": False})
    assert sections.sections(document) == [
        ["words", "Words", "First. plain Stays."],
        ["rank", "rank", "A process."],
    ]


def test_the_texts_are_a_script_that_a_page_from_a_file_may_load(tmp_path):
    (tmp_path / "_static").mkdir()
    found = {"README.html": [["ranks", 'The "ranks"', "α"]], "empty.html": []}
    sections.write(found, tmp_path)
    text = (tmp_path / sections.FILE).read_text("utf-8")
    held = re.fullmatch(r"globalThis\.manyRanksSections = (.*);\n", text)
    assert json.loads(held[1]) == [["README.html", found["README.html"]]]
