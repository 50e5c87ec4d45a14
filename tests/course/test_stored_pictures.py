"""A stored picture is of the code above it: nbval compares its text form, which has no caption."""

import re

import nbformat
import pytest

from lib.course.tools.book import ROOT
from lib.course.tools.widgets import data_of, states, untold

CHAPTERS = sorted((ROOT / "chapters").glob("*.ipynb"))


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_what_the_code_says_stands_in_the_stored_picture(path):
    assert untold(nbformat.read(path, as_version=4)) == []


def test_a_caption_of_other_code_is_found():
    notebook = nbformat.read(CHAPTERS[0], as_version=4)
    (cell,) = (
        c for c in notebook.cells if "ranks are hypothetical" in c.source and c.get("outputs")
    )
    cell.source = cell.source.replace("ranks are hypothetical", "ranks are not measured")
    assert untold(notebook) == [(cell.id, "Values above 8 ranks are not measured.")]


# What a picture says of its own recording: shares of time, and how long all of it took.
SHARES = re.compile(r"([\d.]+)% recorded, ([\d.]+)% predicted")
TIMES = re.compile(r"Slow motion ([\d.]+) (\S+), predicted ([\d.]+) (\S+):")
SECONDS = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0}


def disturbed(words: str) -> list[str]:
    """Give what a picture of slow motion says of itself that is far from its prediction."""
    found = []
    for match in SHARES.finditer(words):
        recorded, predicted = map(float, match.groups())
        found += [match[0]] if abs(recorded - predicted) > 2 else []
    for match in TIMES.finditer(words):
        recorded, predicted = (float(match[n]) * SECONDS[match[n + 1]] for n in (1, 3))
        found += [match[0]] if abs(recorded / predicted - 1) > 0.05 else []
    return found


def words_of_pictures(path):
    """Give the heading and the caption of every picture that a chapter stores."""
    for model in states(nbformat.read(path, as_version=4)).values():
        if "data" in model["state"]:
            data = data_of(model)
            yield f"{data.get('heading', '')} {data.get('caption', '')}"


def timelines(path):
    """Give what every timeline of slow motion holds that a chapter stores."""
    for model in states(nbformat.read(path, as_version=4)).values():
        data = data_of(model) if "data" in model["state"] else {}
        if "low motion" in str(data.get("caption")) and "span" in data:
            yield data


SLIPPED = re.compile(r"slipped ([\d.]+) (ns|µs|ms|s)\b")


def delay(data: dict) -> float:
    """Give how late a row of a recording was at worst, as a share of the recording."""
    runs = [run for run in data.get("runs", []) if "notes" in run]
    notes = [note for run in runs for note in run["notes"]]
    slips = [float(slip[1]) * SECONDS[slip[2]] for n in notes for slip in SLIPPED.finditer(n)]
    return max(slips, default=0.0) / (data["span"] * float(data.get("tick", 1)))


def test_stored_recordings_were_made_while_nothing_else_ran():
    """A recording that another program disturbed shows waiting that its text cannot explain."""
    words = [(path.stem, text) for path in CHAPTERS for text in words_of_pictures(path)]
    told = [text for _, text in words if SHARES.search(text) or TIMES.search(text)]
    assert len(told) >= 7, "there is something to compare"
    assert [(name, disturbed(text)) for name, text in words if disturbed(text)] == []
    delays = [(path.stem, delay(data)) for path in CHAPTERS for data in timelines(path)]
    assert len(delays) >= 12, "there are recordings"
    assert [(name, share) for name, share in delays if share > 0.02] == []


@pytest.mark.parametrize(
    "words, count",
    [
        ("Idle share: 46.5% recorded, 34.8% predicted.", 1),
        ("Idle share: 34.9% recorded, 34.8% predicted.", 0),
        ("Slow motion 20 ms, predicted 20 ms: equally long.", 0),
        ("Slow motion 1.2 ms, predicted 900 µs: 300 µs (33%) longer.", 1),
    ],
)
def test_a_disturbed_recording_is_found(words, count):
    assert len(disturbed(words)) == count


def tables():
    """Give the lines of every table that an answer covers, with its chapter."""
    for path in CHAPTERS:
        for cell in nbformat.read(path, as_version=4).cells:
            for output in cell.get("outputs", []):
                found = re.search(
                    "<pre>(.*)</pre>", str(output.get("data", {}).get("text/html")), re.S
                )
                if found:
                    yield path.stem, found[1].split("\n")


def test_a_number_in_a_covered_table_stands_in_a_column_of_its_own():
    """Two spaces part columns, so a number that is padded inside a sentence tears it apart."""
    number = r"[\d.,×%+-]+( \(.*\)| [^\W\d]+| [\d.,]+)?"  # a range, a unit, two numbers
    name = r"\d+k|(1|2|2\.5|3)D( -(\d+%)?)?"  # a width, or a kind of grid with its gain
    lone, torn, count = re.compile(f"{number}|{name}"), [], 0
    for stem, lines in tables():
        for line in lines:
            count += 1
            later = [match[0] for match in re.finditer(r"\S+( \S+)*", line)][1:]
            torn += [(stem, line) for field in later
                     if field[0].isdigit() and not lone.fullmatch(field)]  # fmt: skip
    assert count > 30 and not torn
