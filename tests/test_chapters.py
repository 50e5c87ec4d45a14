"""Chapters as they are stored: living pictures, open exercises, and what chapter 0 says."""

import json
import re
from pathlib import Path

import nbformat
import pytest
from PIL import Image, ImageChops

from lib.course.ranks import cover
from lib.course.tools.widgets import VIEW, lifeless, states
from lib.draw import collective
from lib.draw.parts.javascript import inflated
from tests.every import every
from tests.solutions import exercises, solved

ROOT = Path(__file__).parents[1]
CHAPTERS = sorted((ROOT / "chapters").glob("*.ipynb"))
every_chapter = pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)


def read(path):
    return nbformat.read(path, as_version=4)


def shown(cell):
    """What a cell shows, as text."""
    plain = [out.get("text") or out.get("data", {}).get("text/plain", "") for out in cell.outputs]
    return "".join(plain)


@every_chapter
def test_every_exercise_has_one_folded_solution(path):
    """nbval runs them behind the chapter's own cells: tests/solutions.py."""
    solutions = solved(read(path))
    assert 3 <= len(solutions) <= 5
    assert every(source.count(".check(") for source in solutions.values())


@every_chapter
def test_every_picture_of_a_chapter_is_stored_alive(path):
    """Case 30: a chapter whose pictures had lost their state passed `make test` and `make book`."""
    notebook = read(path)
    assert lifeless(notebook) == [], "make refresh FRESH=1"
    notebook.metadata.pop("widgets")
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", [])]
    alive = [out for out in outputs if VIEW in out.get("data", {})]
    assert len(lifeless(notebook)) == len(alive) > 5, "every picture was looked at"


@every_chapter
def test_a_stored_picture_says_in_words_what_its_still_says(path):
    """Without its summary a picture cannot be drawn in the browser."""
    notebook, seen = read(path), 0
    for cell in notebook.cells:
        for out in cell.get("outputs", []):
            model = states(notebook).get(out.get("data", {}).get(VIEW, {}).get("model_id"))
            if model and "asks" in model["state"]:
                data = model["state"]["data"]
                data = json.loads(inflated(data["packed"])) if "packed" in data else data
                assert data["summary"] == out.data["text/plain"], cell.source
                seen += 1
    assert seen > 5


@every_chapter
def test_an_unsolved_exercise_says_what_to_do(path):
    notebook = read(path)
    for place, _, _ in exercises(notebook):
        text = shown(notebook.cells[place])
        assert text.startswith(("Not solved yet", "Not yet")), text
        assert "hint()" in text, text


@every_chapter
def test_an_exercise_has_hints(path):
    import importlib

    tree = "\n".join(c.source for c in read(path).cells if c.cell_type == "code")
    imports = re.findall(r"from (lib\.course\.\w+\.exercises) import ([\w, ]+)", tree)
    assert imports
    for module, names in imports:
        for name in names.split(", "):
            exercise = getattr(importlib.import_module(module), name)
            assert exercise.hints and exercise.name == name and exercise.task
            assert f"{name}.check(" in tree


# --- chapter 0


def cell_of(notebook, words):
    (cell,) = [c for c in notebook.cells if c.cell_type == "code" and words in c.source]
    return cell


def text_of(notebook):
    return "\n\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")


@pytest.fixture(scope="module")
def ranks():
    return read(ROOT / "chapters" / "00-ranks.ipynb")


def test_the_ring_that_shipped_is_found_out(ranks):
    text = " ".join(shown(cell_of(ranks, "def their_ring")).split())
    assert "The sums are right, the traffic is not." in text
    assert "Yours moves 2 times the bytes of a good solution." in text  # n/2, on 4 ranks
    assert "message 0 of rank 0 goes to rank 1 with 4,000 bytes" in text


def test_six_ways_to_all_reduce_equal_their_formulas(ranks):
    from lib.predict.collectives import formulas

    lines = shown(cell_of(ranks, "halving_doubling, two_level")).splitlines()[1:7]
    assert [line.split()[0] for line in lines] == list(formulas.ALGORITHMS)
    for line in lines:
        name, rounds, sent, *_ = line.replace(",", "").split()
        counted = formulas.all_reduce(name, 4, 250_000)
        assert (int(rounds), int(sent)) == (counted.rounds, max(counted.sent))


def test_the_training_time_is_the_published_one(ranks):
    from lib.predict.flops import training_flop
    from lib.predict.shape import GPTShape

    assert "one A100: 95 years, 1,024: 33.9 days" in shown(cell_of(ranks, "training_days"))
    *exact, rate = shown(cell_of(ranks, "gpt3 = GPTShape")).splitlines()
    assert [line.split()[-2] for line in exact] == ["34.7", "26.8", "26.1"]
    assert "2.2 PFLOP/s, 7.0 A100s" in rate
    gpt3 = GPTShape(51_200, sequence=2048, width=12_288, heads=96, layers=96)
    none, printed = (training_flop(gpt3, 300e9, again) for again in ("none", "selective"))
    once = none + (printed - none) / 3  # the forward products alone, of three that count as much
    days = once / (1024 * 140e12) / 86_400
    assert round(days, 1) == 26.3 and "it is 26.3 days" in text_of(ranks)


def test_the_questions_of_chapter_0_are_answered_by_its_runs(ranks):
    texts = "".join(shown(cell) for cell in ranks.cells if cell.cell_type == "code")
    for answer in ("the mean", "16", "1,500,000 B", "ring", "an error at once"):
        assert texts.count(f"It is {answer}.") == 1, answer
    assert "1,024 B, latency longer than bytes: True" in texts


def test_the_cost_models_and_the_published_times_are_what_the_text_says(ranks):
    from lib.predict.collectives import formulas
    from lib.predict.hardware import link

    lines = shown(cell_of(ranks, "formulas.cost(m, 64")).splitlines()
    printed = [line.replace(",", "").split() for line in lines[2:6]]
    assert [name for name, *_ in printed] == ["central", "tree", "bytes", "ring"]
    nvlink = link("NVLink4")
    kilo, mega, giga = (
        {name: formulas.cost(name, 64, 10**e, nvlink.alpha, nvlink.beta) for name, *_ in printed}
        for e in (3, 6, 9)
    )
    for name, *times in printed:
        for time, cost in zip(times, (kilo[name], mega[name], giga[name])):
            assert float(time) == pytest.approx(cost * 1e6, abs=0.51)
    text = text_of(ranks)
    assert "280 ms for 1 GB, while a ring needs 5 ms" in text
    assert (round(giga["central"] * 1e3), round(giga["ring"] * 1e3)) == (280, 5)
    assert kilo["ring"] / kilo["tree"] > 10 and giga["tree"] / giga["ring"] > 5
    assert "9 % below the ring" in text and round(giga["bytes"] / giga["ring"], 2) == 0.91
    below = [
        formulas.cost("tree", n, 10**6, nvlink.alpha, nvlink.beta)
        < formulas.cost("ring", n, 10**6, nvlink.alpha, nvlink.beta)
        for n in range(2, 513)
    ]
    assert [n for n, lower in enumerate(below, 2) if not lower] == [2, 3, 5]
    rounds = [formulas.all_reduce(name, 1000, 1000).rounds for name in ("ring", "tree")]
    assert rounds == [1998, 20] and "1,998 for 1,000 ranks" in text and "20 for 1,000" in text


def test_the_published_times_of_one_machine_are_as_far_off_as_the_text_says(ranks):
    from lib.predict.collectives import formulas
    from lib.predict.hardware import link, sweep

    lines, text = shown(cell_of(ranks, "A100 8-GPU")).splitlines(), text_of(ranks)
    errors = {}
    for place, name in ((0, "A100 8-GPU all-reduce"), (6, "H200 8-GPU all-reduce")):
        run = sweep(name)
        nvlink = link(run.link)
        times = [formulas.cost("ring", 8, n, nvlink.alpha, nvlink.beta) for n in run.nbytes]
        off = [time / seconds - 1 for time, seconds in zip(times, run.seconds)]
        errors[name[:4]] = dict(zip(run.nbytes, (round(100 * error) for error in off)))
        printed = [line.split()[-1] for line in lines[place + 2 : place + 6]]
        assert lines[place].startswith(name) and printed == [f"{e:+.0%}" for e in off[::5]]
    long = [error for size, error in errors["A100"].items() if size >= 2**19]
    assert "22 to 47 % too short from 0.5 MB on" in text and (max(long), min(long)) == (-22, -47)
    h200 = errors["H200"]
    short = [error for size, error in h200.items() if size <= 2**20]
    assert "12 to 30 % too long up to 1 MB" in text and (min(short), max(short)) == (12, 30)
    assert "and 2 to 16 % too short from 2 to 134 MB" in text
    assert h200[2**25] == min(h200.values()) == -16
    assert [size for size, error in h200.items() if error < 0] == [2**n for n in range(21, 28)]
    rest = [1e6 * seconds - host for seconds in run.seconds[:5] for host in (20, 30)]
    assert "10 to 20 µs might remain where the formula says 48" in text
    assert min(rest) > 8 and max(rest) < 20.5 and round(1e6 * times[0]) == 48
    long = [error for size, error in h200.items() if size >= 2**28]
    assert "the formula is 1 to 7 % too *long* from 268 MB on" in text
    assert (min(long), max(long)) == (1, 7)


def test_the_answers_under_turn_it_follow_from_the_formulas(ranks):
    from lib.course.ranks.lessons import predicted_overlap
    from lib.ranks.slow_motion import SlowMotion

    def microseconds(gpu, link, ranks, width, numel=1_000_000):
        speeds = SlowMotion(gpu, link=link, dtype="fp32", factor=1)
        ends = predicted_overlap(speeds, ranks, width, numel).where(rank=0).column("end")
        return tuple(round(float(end) * 1e6) for end in ends)

    (text,) = [c.source for c in ranks.cells if c.source.startswith("*Slow motion: four H100")]
    assert microseconds("H100", "NVLink4", 4, 1024) == (32, 34)
    assert "The product takes 32 µs and the all-reduce 34 µs" in text
    assert microseconds("H100", "NVLink4", 4, 2048) == (256, 34) and "takes 256 µs" in text
    assert microseconds("H100", "NVLink4", 8, 1024)[1] == 63 and "takes 63 µs" in text
    assert microseconds("RTX4090", "PCIe4", 4, 1024, 1) == (26, 34)
    assert microseconds("RTX4090", "PCIe4", 4, 2112) == (228, 228) and "width = 2112" in text


def test_the_code_that_chapter_0_quotes_in_its_text_runs(ranks):
    from lib.course.source import source
    from lib.draw import timeline
    from lib.predict.collectives import plans

    prose = " ".join(cell.source for cell in ranks.cells if cell.cell_type == "markdown")
    assert "`source(timeline)`" in prose and "def timeline(" in source(timeline).text
    assert "`collective(plans.tree(8))`" in prose and collective(plans.tree(8))


def test_all_reduces_over_nodes_stand_beside_what_was_measured(ranks):
    """Case 17: two sizes of each published sweep of several nodes, with every way's error."""
    from lib.predict.collectives.nodes import errors
    from lib.predict.hardware import sweep, sweeps

    text = shown(cell_of(ranks, "import errors"))
    lines = text.split("\n\n")[1].splitlines()
    assert lines.pop(0) == "nodes: predicted ÷ published − 1"
    assert lines[0].split() == ["flat", "rails", "levels", "at", "once"]
    runs = [sweep(name) for name in sweeps(one_node=False)]
    assert len(lines) == 1 + 3 * len(runs) >= 13  # a name and two sizes
    assert max(map(len, text.splitlines())) <= 56
    for run, name, *sizes in zip(runs, lines[1::3], lines[2::3], lines[3::3]):
        assert name == run.name
        for line, size in zip(sizes, (2**20, run.nbytes[-1])):
            percents = " ".join(f"{error:+.0%}" for error in errors(run, size).values())
            assert line.split() == f"{size / 1e6:,.0f} MB {percents}".split()


def test_the_first_picture_comes_before_any_code_and_is_what_draw_draws(ranks, tmp_path):
    first = ranks.cells[0]
    assert first.cell_type == "markdown"
    (name,) = re.findall(r"!\[[^\]]+\]\((images/[\w-]+\.png)\)", first.source)
    drawn = tmp_path / cover.IMAGE
    cover.write(drawn)
    pictures = [Image.open(file).convert("L") for file in (ROOT / "chapters" / name, drawn)]
    assert pictures[0].size == pictures[1].size
    difference = ImageChops.difference(*pictures).resize((64, 16))
    assert difference.getextrema()[1] < 24  # letters may differ by a hair between versions


@every_chapter
def test_what_solves_an_exercise_is_said_before_its_answer_is_folded(path):
    texts = [cell.source for cell in read(path).cells if "<summary>Solution" in cell.source]
    ends = [re.split("<summary>Solution.*?</details>", text, flags=re.S)[-1] for text in texts]
    assert ends and not "".join(re.split("\n##", end)[0] for end in ends).strip()
