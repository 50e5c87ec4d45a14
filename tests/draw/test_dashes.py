"""A dashed line or outline is a prediction, in every picture: nothing else is drawn so."""

import re

import nbformat
import pytest

from lib.course.tools.book import ROOT
from lib.course.tools.widgets import data_of, states
from lib.draw import timeline
from lib.draw.parts import javascript, layout
from lib.draw.parts.javascript import inflated
from lib.ledger import Ledger, Row
from tests.draw.marks import box, swatch

CHAPTERS = sorted((ROOT / "chapters").glob("*.ipynb"))
WIDTHS = 328, 760  # px of a phone's page and of a notebook's


def stored(path):
    """Give the kind and the data of every picture that a chapter stores."""
    models = states(nbformat.read(path, as_version=4))
    kinds = {javascript.kind_text(file.stem): file.stem for file in javascript.JS.glob("*.js")
             if "export function picture" in file.read_text("utf-8")}  # fmt: skip
    for model in models.values():
        if "data" in model["state"]:
            _, own = (part.removeprefix("IPY_MODEL_") for part in model["state"]["code"])
            yield kinds[inflated(models[own]["state"]["packed"])], data_of(model)


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_only_predictions_are_dashed_in_a_chapter(path):
    pictures, wrong = list(stored(path)), []
    assert pictures
    for kind, data in pictures:
        marks = [m for width in WIDTHS for m in layout.still(kind, data, width, words=True).marks]
        dashed = {mark.about for mark in marks if mark.dash}
        others = {about for about in dashed if about and not about.startswith("predicted: ")}
        wrong += [(kind, about) for about in others]
        wrong += [(kind, "")] if dashed and "dashed: predicted" not in data["summary"] else []
    assert wrong == []


@pytest.mark.parametrize("source, dashed", [("predicted", True), ("measured", False)])
def test_a_run_laid_over_another_is_dashed_where_it_is_predicted(source, dashed):
    one, other = (Ledger([Row(0, "compute", "forward", 0.0, end)], source=name)
                  for end, name in ((1.0, "slow motion"), (2.0, source)))  # fmt: skip
    drawn, look = timeline(one, over=other), "dashed" if dashed else "solid"
    outline = box(drawn, f"{source}: rank 0: forward")
    assert outline.edge and not outline.fill and outline.dash == dashed
    assert swatch(drawn, source).dash == dashed
    assert drawn.summary.endswith(f"  {look}: {source}")
    assert f"The {look} outlines are {source}" in drawn.caption


def test_nothing_else_in_the_javascript_is_dashed():
    """Controls can bring what the stored states do not show: a goal, a limit, an excess."""
    files = {file.name: file.read_text("utf-8") for file in javascript.JS.glob("*.js")}
    named = {name for name, text in files.items() if re.search(r"\bdash\b(?!: false)", text)}
    drawn = {
        "marks.js",
        "paint.js",
        "page_svg.js",
    }  # how a dash is drawn, wherever one is asked for
    assert named == {*drawn, "axes.js", "timeline_layout.js"}
    assert 'const dash = look === "dashed";' in files["axes.js"]
    assert "dash = isPredicted(run);" in files["timeline_layout.js"]
