"""The living side of pictures in Python: what is joined, what travels, who answers."""

import base64
import json
import re
import subprocess
import sys
import zlib

import pytest

from lib.draw import Picture, curve
from lib.draw.parts import javascript, live, style

KINDS = sorted(
    {path.stem for path in javascript.JS.glob("*.js") if "function picture(" in path.read_text()}
)
TOP = re.compile(r"^(?:export )?(?:async )?(?:function|const|let|class) (\w+)", flags=re.M)


def picture(kind="guess", ask=None):
    return Picture(
        "a question", (kind, {"question": "?", "unit": "", "choices": [], "hint": "!"}), ask=ask
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_joined_files_share_one_scope_without_a_clash(kind):
    files = [javascript.JS / f"{name}.js" for name in javascript.HAND] + javascript.sources(kind)
    names = [name for path in files for name in TOP.findall(path.read_text("utf-8"))]
    assert "mount" in names and "picture" in names
    assert len(names) == len(set(names)), sorted(n for n in set(names) if names.count(n) > 1)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_imported_or_fetched_by_the_joined_text(kind):
    text = javascript.module(kind)
    assert not re.search(
        r"^\s*import\b|\bimport\(|\bfetch\(|https?://|XMLHttpRequest", text, flags=re.M
    )


def test_the_palette_of_the_browser_is_the_palette():
    (text,) = re.findall(r"^const style = (.*);$", javascript.hand(), flags=re.M)
    told = json.loads(text)
    assert {k: tuple(v) for k, v in told["comm"].items()} == style.COMM
    assert (told["size"], told["width"]) == (style.SIZE, style.WIDTH)


def test_a_picture_without_a_file_is_refused_by_name():
    with pytest.raises(ValueError, match="No picture is called 'rainbow'"):
        javascript.kind_text("rainbow")


def test_small_data_travel_as_they_are_and_large_ones_packed():
    small, large = {"a": [1, 2]}, {"a": [7, 8, 9] * 3000}
    assert live.packed(small) is small
    (text,) = live.packed(large).values()
    assert json.loads(zlib.decompress(base64.b64decode(text))) == large
    assert len(text) < len(json.dumps(large)) / 2


def test_lines_of_a_curve_keep_their_order_in_a_stored_notebook():
    """Colours go by the order of names, and nbformat sorts the keys of all that it stores."""
    lines = {"ring": ([1, 2], [1, 2]), "pairs": ([1, 2], [2, 1])}
    made = curve(None, lines, dial=("Kind", {"ring": "r", "pairs": "p"}))
    stored = json.loads(json.dumps(made.widget().data, sort_keys=True))
    shown = json.loads(zlib.decompress(base64.b64decode(stored["packed"])))
    assert list(shown["lines"]) == list(shown["dial"][1]) == ["ring", "pairs"]
    assert live.packed({"b": [{"a": 1, "b": 2}], "a": 3}) == {"b": [{"a": 1, "b": 2}], "a": 3}
    assert "packed" in live.packed({"a": [{"b": 1, "a": 2}]})


def test_not_a_number_is_refused_before_it_reaches_a_notebook():
    with pytest.raises(ValueError):
        live.packed({"a": float("nan")})


def test_pictures_of_a_kind_point_at_the_same_texts():
    one, two = (picture().widget() for _ in range(2))
    assert one.code == two.code and one.code[0] is live._shared()
    other = picture("traffic").widget()
    assert other.code[0] is one.code[0]
    text = json.dumps(one.get_state(), default=str)
    assert len(text) < 4_000, "a picture's own state holds the shared texts"


def test_a_notebook_gets_the_still_the_words_and_the_living_twin():
    shown = picture()
    data, _ = shown._repr_mimebundle_()
    assert data["text/plain"] == "a question" and data["image/png"][:4] == b"\x89PNG"
    view = data["application/vnd.jupyter.widget-view+json"]
    assert view["model_id"] == shown.widget().model_id
    assert shown.widget().data["summary"] == "a question"


def heard(widget, content):
    """What the browser hears after it says `content`."""
    said = []
    widget.send = lambda content, buffers=None: said.append(content)
    widget._hear(widget, content, [])
    return said


def test_the_kernel_answers_a_greeting_and_what_is_asked():
    asked = []

    def ask(name, state):
        asked.append((name, state))
        return {"answer": 42}

    widget = picture(ask=ask).widget()
    assert widget.asks and heard(widget, {"ask": "", "state": {}}) == [{"manyRanks": ""}]
    assert widget.data["question"] == "?" and not asked
    assert heard(widget, {"ask": "run", "state": {"n": 3}}) == [{"manyRanks": ""}]
    assert asked == [("run", {"n": 3})] and widget.data == {"answer": 42}


def test_what_goes_wrong_in_the_kernel_is_told_and_the_picture_stays():
    def ask(name, state):
        raise ValueError("eight ranks do not share seven")

    widget = picture(ask=ask).widget()
    assert heard(widget, {"ask": "run", "state": {}}) == [
        {"manyRanks": "ValueError: eight ranks do not share seven"}
    ]
    assert widget.data["question"] == "?"


def test_a_run_that_is_interrupted_is_told_and_the_button_is_free_again():
    def ask(name, state):
        raise KeyboardInterrupt

    answers = heard(picture(ask=ask).widget(), {"ask": "run", "state": {}})
    assert answers == [{"manyRanks": "The run was interrupted."}]


def test_stills_do_without_widgets():
    code = (
        "import sys, lib.draw; sys.exit('ipywidgets' in sys.modules or 'matplotlib' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
