"""The schedule explorer, alive: it computes as lib/predict does, and can be edited."""

import random
from dataclasses import replace

import numpy as np
import pytest

from lib.draw.parts import javascript
from lib.draw.schedule import KINDS, schedule
from lib.predict.pipeline.actions import Schedule, ScheduleError
from lib.predict.pipeline.play import Costs, play
from lib.predict.pipeline.schedules import dualpipe_v

# Plays each case, and gives every number it knows of it.
PLAYED = """async ([text, cases]) => {
    const url = URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
    window.own ??= await import(url);
    return cases.map(({ kind, ranks, microbatches, chunks, rows, costs }) => {
        let made;
        try {
            made = rows ? own.readSchedule(rows, "given")
                : own.generate(kind, ranks, microbatches, chunks);
        } catch (wrong) {
            return { wrong: wrong.message };
        }
        const refused = own.refusal(own.gridOf(made)), text = own.scheduleText(made);
        if (refused) {
            const { first, rank } = own.gridOf(made);
            const cells = refused.waits.map(([at]) => [rank[at], at - first[rank[at]]]);
            const stuck = own.playStuck(made, costs);
            return { text, sentence: refused.sentence, cells, length: stuck.makespan };
        }
        const { starts, ends, makespan, share, overhead, span, peaks, alive } =
            own.playSchedule(made, costs);
        return { text, starts: [...starts], ends: [...ends], makespan, share, overhead, span,
            peaks, alive };
    });
}"""


@pytest.fixture(scope="module")
def played(new_page):
    """What JavaScript makes of a list of cases."""
    page = new_page()

    def ask(cases):
        return page.evaluate(PLAYED, [javascript.module("schedule"), cases])

    yield ask
    page.context.close()


def some_costs(rng, stages, **more) -> Costs:
    """Random times: one for all, or one a stage; some of them 0."""

    def times(count):
        if rng.random() < 0.3:
            return [rng.choice([0.0, 0.5, 1.0, 3.0])] * count
        return [rng.uniform(0.1, 5.0) for _ in range(count)]

    names = ("forward", "backward_input", "backward_weight")
    given = {name: times(stages) for name in names}
    added = [rng.choice([0.0, 0.25]) * weights for weights in given["backward_weight"]]
    send = times(stages - 1)
    return Costs(**given, send=send, accumulate=added, activation=1, **more)


LINKS = [{}, {"link": "device"}, *({"link": "pair", "ahead": ahead} for ahead in (None, 0, 1, 2)),
         {"sends_block": True}]  # fmt: skip


def as_javascript(costs: Costs, stages: int) -> dict:
    """The same costs, spelled out."""
    overlap = None if costs.overlap is None else costs.each("overlap", stages).tolist()
    send = costs.each("send", stages - 1).tolist()
    table = costs.table(stages).tolist()
    accumulate = costs.each("accumulate", stages).tolist()
    return {"table": table, "send": send, "overlap": overlap, "block": costs.sends_block,
            "link": costs.link, "ahead": costs.ahead, "accumulate": accumulate}  # fmt: skip


def is_the_same(found: dict, made: Schedule, costs: Costs) -> None:
    """Every number of JavaScript against play()'s."""
    assert found.get("text") == str(made)
    run = play(made, costs)
    with np.errstate(divide="ignore"):  # nothing but messages may take time
        ours = {name: run.bubble(name) for name in ("share", "overhead", "span")}
    ours |= {"starts": run.starts, "ends": run.ends, "makespan": run.makespan}
    for name, value in ours.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-12, err_msg=name)
    assert tuple(found["peaks"]) == run.peak_microbatches
    assert tuple(found["alive"]) == run.peak_bytes  # an activation is one byte here


def test_a_thousand_random_schedules_play_as_in_python(played):
    """Case 14: event by event, with messages that pass each other, queue or keep their sender."""
    rng, cases, ours = random.Random(4), [], []
    while len(cases) < 1000:
        kind, ranks, chunks = rng.choice(list(KINDS)), rng.randint(1, 8), rng.randint(1, 4)
        microbatches = rng.randint(1, 24)
        each, rule = KINDS[kind]
        stages = ranks * (each or chunks)
        costs = some_costs(rng, stages, **rng.choice(LINKS))
        case = {"kind": kind, "ranks": ranks, "microbatches": microbatches, "chunks": chunks}
        cases.append(case | {"costs": as_javascript(costs, stages)})
        more = (chunks,) if not each else ()
        ours.append((lambda a=(rule, stages, microbatches, *more): a[0](*a[1:]), costs))
    refused = 0
    for at in range(0, len(cases), 100):
        for found, (make, costs) in zip(played(cases[at : at + 100]), ours[at : at + 100]):
            try:
                made = make()
            except ValueError as wrong:
                assert found == {"wrong": str(wrong)}
                refused += 1
                continue
            is_the_same(found, made, costs)
    assert 0 < refused < 200  # rounds of different lengths, and little else


def test_forwards_beside_backwards_play_as_in_python(played):
    """Case 16: pairs too, where their sender waits for their messages, and on every link."""
    rng, cases, ours = random.Random(5), [], []
    for number in range(140):
        stages = 2 * rng.randint(1, 4)
        made = dualpipe_v(stages, rng.randint(stages, stages + 8))
        overlap = [rng.uniform(1.0, 6.0) for _ in range(stages)] if rng.random() < 0.8 else None
        costs = some_costs(rng, stages, overlap=overlap, **LINKS[number % len(LINKS)])
        cases.append({"rows": str(made), "costs": as_javascript(costs, stages)})
        ours.append((made, costs))
    for found, (made, costs) in zip(played(cases), ours):
        is_the_same(found, made, costs)


def test_impossible_orders_are_refused_with_the_same_words(played):
    rng, cases, words = random.Random(6), [], []
    for _ in range(400):
        each, rule = rng.choice([KINDS[kind] for kind in KINDS if kind != "interleaved"])
        made = rule(each * rng.randint(1, 5), rng.randint(1, 6))
        if rng.random() < 0.2:
            made = dualpipe_v(4, rng.randint(4, 8))
        rows = [[str(cell) for cell in line] for line in made]
        for _ in range(rng.randint(1, 3)):
            row = rng.choice(rows)
            row.insert(rng.randrange(len(row)), row.pop(rng.randrange(len(row))))
        text = "\n".join(map(",".join, rows))
        costs = as_javascript(Costs(), made.stages)
        cases.append({"rows": text, "costs": costs})
        try:
            words.append((Schedule.read(text), ""))
        except ScheduleError as wrong:
            words.append((wrong.cells, wrong.sentence))
    kinds = {"legal": 0, "Deadlock": 0, "comes before": 0}
    for found, (made, sentence) in zip(played(cases), words):
        if not sentence:
            kinds["legal"] += 1
            is_the_same(found, made, Costs(activation=1))
            continue
        kinds["Deadlock" if "Deadlock" in sentence else "comes before"] += 1
        assert found["sentence"] == sentence
        assert [tuple(cell) for cell in found["cells"]] == list(made)
        assert found["length"] > 0
    assert min(kinds.values()) > 20, kinds  # each of them was met


UNEVEN = Costs([1, 2, 1, 1.5], [1.5, 1, 1, 2], [1, 0.5, 1, 1], send=0.25)
QUEUED = Costs(1, 1, 1, send=3.0, link="pair", ahead=1, accumulate=[0.5, 0.25])
PICTURES = {
    "1f1b": lambda: schedule(),
    "interleaved": lambda: schedule("interleaved", 8, 8, 2, par=60, limit=5),
    "uneven": lambda: schedule("zb-h1", 4, 6, costs=UNEVEN, unit="s", limit=3),
    "zb-v": lambda: schedule("zb-v", 6, 9, par=40.25),
    "several chunks": lambda: schedule("interleaved", 12, 3, 4),
    "side by side": lambda: schedule(dualpipe_v(8, 10), costs=Costs(overlap=2.5)),
    "one": lambda: schedule("gpipe", 1, 3),
    "queued": lambda: schedule("gpipe", 2, 4, costs=QUEUED),
    "in turn": lambda: schedule(
        dualpipe_v(4, 6), costs=Costs(send=2.0, link="device", in_turn=True)
    ),
    "whole": lambda: schedule(
        "gpipe", 3, 4, costs=Costs(send=0.2, backward=[2, 3, 2.5], sends_block=True)
    ),
}


@pytest.mark.parametrize("which", PICTURES)
def test_the_browser_says_what_python_says(bench_page, which):
    picture = PICTURES[which]()
    assert bench_page(picture).ask("p => p.laid.summary") == picture.summary


def number(seen, name: str) -> float:
    """One of the numbers above the rows, as it is read off the page."""
    texts = [mark["text"] for mark in seen.marks if mark["kind"] == "text"]
    value = texts[texts.index(name) + 1].split(" ·")[0]
    return float(value.removesuffix(" %").replace(",", ""))


def test_every_slider_moves_everything_and_says_what_play_says(bench_page):
    seen = bench_page(schedule())
    for label, value in (("Stages", 6), ("Microbatches", 12), ("Forward F", 1.5),
                         ("Backward I", 2.0), ("Backward W", 0.5), ("Send", 0.3)):  # fmt: skip
        seen.slide(label, value)
    costs = Costs(1.5, 2.0, 0.5, 0.3)
    stages, before = 6, []
    for kind, (each, rule) in KINDS.items():
        seen.node.get_by_role("combobox", name="Schedule").select_option(
            seen.ask("(p, kind) => p.shape.controls[0].options.find(([k]) => k === kind)[1]", kind)
        )
        seen.settle()
        many = each or 2
        split = Costs(*(time / many for time in (1.5, 2.0, 0.5)), send=0.3)
        made = rule(stages * many, 12) if each else rule(stages * many, 12, many)
        run = play(made, split)
        assert number(seen, "makespan") == pytest.approx(run.makespan, rel=1e-3)
        for name in ("share", "overhead", "span"):
            assert number(seen, f"bubble {name}") == pytest.approx(100 * run.bubble(name), abs=0.06)
        assert seen.ask("p => p.laid.run.makespan") == pytest.approx(run.makespan, rel=1e-9)
        assert seen.ask("p => p.laid.run.peaks") == list(run.peak_microbatches)
        assert run.work[0] == pytest.approx(12 * (costs.forward + 2.5))  # the same work, cut anew
        before.append(seen.ask("p => p.laid.summary"))
        assert before[-1] == schedule(made, costs=split).summary
        assert seen.canvas.get_attribute("aria-label").startswith(before[-1])
    assert len(set(before)) == len(KINDS)


def test_messages_pass_each_other_or_queue_as_the_reader_says(bench_page):
    """Case 14: the control says which messages wait, and is there where messages take time."""
    seen = bench_page(schedule("interleaved", 6, 6, 2))
    choice = seen.node.get_by_role("combobox", name="Messages")
    assert not choice.is_visible()
    seen.slide("Send", 2.0)
    for label, link in (("queue, by pair", "pair"), ("queue, by device", "device"),
                        ("pass each other", None)):  # fmt: skip
        choice.select_option(label)
        seen.settle()
        run = play(KINDS["interleaved"][1](6, 6, 2), Costs(send=2.0, link=link))
        assert seen.ask("p => p.laid.run.makespan") == pytest.approx(run.makespan, rel=1e-12)
        assert (f"queued by {link}" in seen.ask("p => p.laid.summary")) == (link is not None)
    own = bench_page(schedule("gpipe", 2, 8, costs=QUEUED))  # a pair's messages are asked for
    own.slide("Send", 5.0)
    run = play(KINDS["gpipe"][1](2, 8), replace(QUEUED, send=5.0))
    assert own.ask("p => p.laid.run.makespan") == pytest.approx(run.makespan, rel=1e-12)
    assert own.ask("p => p.laid.summary") == schedule("gpipe", 2, 8, costs=run.costs).summary


def test_numbers_that_no_schedule_has_get_the_same_sentence(bench_page):
    seen = bench_page(schedule("interleaved", 8, 8, 2))
    with pytest.raises(ValueError) as refused:
        KINDS["interleaved"][1](8, 9, 2)
    seen.slide("Microbatches", 9)
    assert seen.status == str(refused.value)
    words = [mark["text"] for mark in seen.marks]
    assert " ".join(words) == str(refused.value)
    seen.slide("Microbatches", 12)
    assert number(seen, "makespan") == play(KINDS["interleaved"][1](8, 12, 2)).makespan


def test_a_phone_shows_the_number_of_each_microbatch(bench_page):
    """Four stages and eight microbatches, as in the chapters, 360 px less what is around."""
    seen = bench_page(schedule("1f1b", 4, 8), 304)
    bars = [m for m in seen.marks if m["kind"] == "box" and "microbatch" in (m["about"] or "")]
    bars = [m for m in bars if " on rank " in m["about"]]
    assert len(bars) == 64 and sum(bool(m.get("isNumber")) for m in seen.marks) == 64
    assert "too small" not in seen.caption
    thin = bench_page(schedule("zb-h1", 4, 16), 304)
    assert "Bars that are too small have no number." in thin.caption
    assert "Tap a bar" in thin.status and "By keyboard" not in thin.status
    assert "By keyboard" in bench_page(schedule("zb-h1", 4, 16), 640).status


def test_a_tap_tells_what_a_bar_is(bench_page):
    """A finger does not hover: its tip comes when it is lifted, and stays."""
    seen = bench_page(schedule("1f1b", 4, 8), 304)
    bar = next(m for m in seen.marks if m["kind"] == "box" and (m["about"] or "").startswith("1B0"))
    seen.canvas.evaluate(
        """(node, at) => {
            const box = node.getBoundingClientRect();
            const place = { clientX: box.left + at.x, clientY: box.top + at.y };
            const more = { ...place, pointerId: 1, pointerType: "touch", bubbles: true };
            node.setPointerCapture = () => {};
            for (const name of ["pointerdown", "pointerup", "pointerleave"])
                node.dispatchEvent(new PointerEvent(name, more));
        }""",
        seen.place(bar),
    )
    seen.settle()
    assert seen.tip.startswith("1B0 on rank 1: backward, stage 1, microbatch 0")
