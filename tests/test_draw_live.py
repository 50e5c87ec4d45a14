"""The living side of pictures in Python: what is joined, what travels, who answers."""

import base64
import json
import re
import subprocess
import sys
import zlib

import pytest

from lib.draw import Picture, live, style
from lib.draw.picture import Mark

KINDS = sorted(
    {path.stem for path in live.JS.glob("*.js") if "function picture(" in path.read_text()}
)
TOP = re.compile(r"^(?:export )?(?:async )?(?:function|const|let|class) (\w+)", flags=re.M)


def picture(**more):
    mark = Mark("box", 0, 0, 10, 10, fill=style.INK)
    return Picture([mark], 20, "a box", **more)


@pytest.mark.parametrize("kind", KINDS)
def test_the_joined_files_share_one_scope_without_a_clash(kind):
    files = [live.JS / f"{name}.js" for name in live.HAND] + live.sources(kind)
    names = [name for path in files for name in TOP.findall(path.read_text("utf-8"))]
    assert "mount" in names and "picture" in names
    assert len(names) == len(set(names)), sorted(n for n in set(names) if names.count(n) > 1)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_imported_or_fetched_by_the_joined_text(kind):
    text = live.module(kind)
    assert not re.search(
        r"^\s*import\b|\bimport\(|\bfetch\(|https?://|XMLHttpRequest", text, flags=re.M
    )


def test_every_import_of_a_file_names_what_the_other_exports():
    taken = re.compile(r"^import \{([^}]*)\} from \"\./([\w-]+)\.js\";", flags=re.M)
    given = re.compile(r"^export (?:async )?(?:function|const|class) (\w+)", flags=re.M)
    for path in live.JS.glob("*.js"):
        for names, file in taken.findall(path.read_text("utf-8")):
            exported = set(given.findall((live.JS / f"{file}.js").read_text("utf-8")))
            assert {name.strip() for name in names.split(",") if name.strip()} <= exported, (
                path.name
            )


def test_the_palette_of_the_browser_is_the_palette():
    (text,) = re.findall(r"^const style = (.*);$", live.hand(), flags=re.M)
    told = json.loads(text)
    assert {k: tuple(v) for k, v in told["comm"].items()} == style.COMM
    assert (told["size"], told["width"]) == (style.SIZE, style.WIDTH)


def test_a_picture_without_a_file_is_refused_by_name():
    with pytest.raises(ValueError, match="No picture is called 'rainbow'"):
        live.kind_text("rainbow")


def test_small_data_travel_as_they_are_and_large_ones_packed():
    small, large = {"a": [1, 2]}, {"a": [7, 8, 9] * 3000}
    assert live.packed(small) is small
    (text,) = live.packed(large).values()
    assert json.loads(zlib.decompress(base64.b64decode(text))) == large
    assert len(text) < len(json.dumps(large)) / 2


def test_not_a_number_is_refused_before_it_reaches_a_notebook():
    with pytest.raises(ValueError):
        live.packed({"a": float("nan")})


def test_pictures_of_a_kind_point_at_the_same_texts():
    one, two = (picture(live=(KINDS[0], {})).widget() for _ in range(2))
    assert one.code == two.code and one.code[0] is live._shared()
    other = picture(live=(KINDS[-1], {})).widget()
    assert other.code[0] is one.code[0]
    text = json.dumps(one.get_state(), default=str)
    assert len(text) < 4_000, "a picture's own state holds the shared texts"


def test_a_notebook_gets_the_still_the_words_and_the_living_twin():
    shown = picture(live=(KINDS[0], {}))
    data, _ = shown._repr_mimebundle_()
    assert data["text/plain"] == "a box" and data["image/png"][:4] == b"\x89PNG"
    view = data["application/vnd.jupyter.widget-view+json"]
    assert view["model_id"] == shown.widget().model_id
    assert shown.widget().data["summary"] == "a box"
    assert "application/vnd.jupyter.widget-view+json" not in picture()._repr_mimebundle_()[0]


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

    widget = picture(live=(KINDS[0], {"answer": 0}), ask=ask).widget()
    assert widget.asks and heard(widget, {"ask": "", "state": {}}) == [{"manyRanks": ""}]
    assert widget.data["answer"] == 0 and not asked
    assert heard(widget, {"ask": "run", "state": {"n": 3}}) == [{"manyRanks": ""}]
    assert asked == [("run", {"n": 3})] and widget.data == {"answer": 42}


def test_what_goes_wrong_in_the_kernel_is_told_and_the_picture_stays():
    def ask(name, state):
        raise ValueError("eight ranks do not share seven")

    widget = picture(live=(KINDS[0], {"answer": 0}), ask=ask).widget()
    assert heard(widget, {"ask": "run", "state": {}}) == [
        {"manyRanks": "ValueError: eight ranks do not share seven"}
    ]
    assert widget.data["answer"] == 0


def test_stills_do_without_widgets():
    code = (
        "import sys, lib.draw; sys.exit('ipywidgets' in sys.modules or 'matplotlib' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
