"""The schedule explorer, alive: it computes as lib/predict does, and can be edited."""

import random

import numpy as np
import pytest

from lib.draw import live
from lib.draw.schedule import KINDS
from lib.predict.actions import Schedule, ScheduleError
from lib.predict.play import Costs, play
from lib.predict.schedule import dualpipe_v

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
        return page.evaluate(PLAYED, [live.module("schedule"), cases])

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
    return Costs(**given, send=times(stages - 1), activation=1, **more)


def as_javascript(costs: Costs, stages: int) -> dict:
    """The same costs, spelled out."""
    overlap = None if costs.overlap is None else costs.each("overlap", stages).tolist()
    send = costs.each("send", stages - 1).tolist()
    table = costs.table(stages).tolist()
    return {"table": table, "send": send, "overlap": overlap, "block": costs.sends_block}


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
    rng, cases, ours = random.Random(4), [], []
    while len(cases) < 1000:
        kind, ranks, chunks = rng.choice(list(KINDS)), rng.randint(1, 8), rng.randint(1, 4)
        microbatches = rng.randint(1, 24)
        each, rule = KINDS[kind]
        stages = ranks * (each or chunks)
        costs = some_costs(rng, stages, sends_block=rng.random() < 0.1)
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
    rng, cases, ours = random.Random(5), [], []
    for _ in range(30):
        stages = 2 * rng.randint(1, 4)
        made = dualpipe_v(stages, rng.randint(stages, stages + 8))
        overlap = [rng.uniform(1.0, 6.0) for _ in range(stages)] if rng.random() < 0.8 else None
        costs = some_costs(rng, stages, overlap=overlap)
        cases.append({"rows": str(made), "costs": as_javascript(costs, stages)})
        ours.append((made, costs))
    for found, (made, costs) in zip(played(cases), ours):
        is_the_same(found, made, costs)


def test_impossible_orders_are_refused_with_the_same_words(played):
    rng, cases, words = random.Random(6), [], []
    for _ in range(400):
        each, rule = KINDS[rng.choice([kind for kind in KINDS if kind != "interleaved"])]
        made = rule(each * rng.randint(1, 5), rng.randint(1, 6))
        rows = [[str(action) for action in made.actions(rank)] for rank in range(len(made))]
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
    assert min(kinds.values()) > 30, kinds  # each of them was met
