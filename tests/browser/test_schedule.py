"""The schedule explorer, alive: it computes as lib/predict does, and can be edited."""

import random
import statistics

import numpy as np
import pytest

from lib.draw import live
from lib.draw.schedule import KINDS, schedule
from lib.predict.actions import Schedule, ScheduleError
from lib.predict.play import Costs, play
from lib.predict.schedule import dualpipe_v, one_f_one_b

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
PICTURES = {
    "1f1b": lambda: schedule(),
    "interleaved": lambda: schedule("interleaved", 8, 8, 2, par=60, limit=5),
    "uneven": lambda: schedule("zb-h1", 4, 6, costs=UNEVEN, unit="s", limit=3),
    "zb-v": lambda: schedule("zb-v", 6, 9, par=40.25),
    "several chunks": lambda: schedule("interleaved", 12, 3, 4),
    "side by side": lambda: schedule(dualpipe_v(8, 10), costs=Costs(overlap=2.5)),
    "one": lambda: schedule("gpipe", 1, 3),
    "whole": lambda: schedule(
        "gpipe", 3, 4, costs=Costs(send=0.2, backward=[2, 3, 2.5], sends_block=True)
    ),
}


@pytest.mark.parametrize("which", PICTURES)
def test_the_still_and_the_living_agree(bench_page, which):
    picture = PICTURES[which]()
    seen = bench_page(picture)
    living = seen.marks
    assert [m["kind"] for m in living] == [mark.kind for mark in picture.marks]
    for mark, alive in zip(picture.marks, living):
        for side in ("x", "y", "w", "h") if mark.kind == "box" else ("x", "y"):
            assert (alive.get(side) or 0) == pytest.approx(getattr(mark, side), abs=0.1), (
                mark,
                alive,
            )
        np.testing.assert_allclose(alive.get("points") or [], mark.points or [], atol=0.1)
        assert (alive.get("text") or "") == mark.text
        if mark.h != 12:  # a swatch of the legend
            assert (alive.get("about") or "") == mark.about
        for paint in ("fill", "edge"):
            shade = getattr(mark, paint)
            assert alive.get(paint) == (list(shade) if shade else None), (mark, alive)
        assert (alive.get("align") or "left") == mark.align
    assert seen.ask("p => p.laid.height") == picture.height
    assert seen.ask("p => p.laid.summary") == picture.summary


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


def row(seen, rank: int) -> list[str]:
    """The row of a rank as it stands, in text."""
    text = seen.ask("p => p.shape.words(p.state, p.laid)").split("\n\n")[1]
    return text.splitlines()[rank].split(",")


def bar(seen, action: str) -> dict:
    """The bar of an action."""
    return next(m for m in seen.marks if (m["about"] or "").startswith(f"{action} on "))


def drag(seen, action: str, x: float) -> None:
    """Drags a bar to another place, x pixels from the left of the picture."""
    mark = bar(seen, action)
    seen.drag(mark, x - seen.place(mark)["x"], 3)


def test_a_bar_is_dragged_to_a_legal_place_and_the_picture_says_what_it_is_worth(bench_page):
    seen = bench_page(schedule("gpipe", 4, 4, limit=3))
    assert "The limit is not kept" in seen.status
    was = row(seen, 3)
    drag(seen, "3B0", bar(seen, "3F1")["x"])  # the last rank may go back at once
    now = ["3F0", "3B0", "3F1", "3F2", "3F3", "3B1", "3B2", "3B3"]
    assert was != row(seen, 3) == now
    rows = [*KINDS["gpipe"][1](4, 4)][:3] + [now]
    run = play([[str(action) for action in line] for line in rows])
    assert number(seen, "makespan") == pytest.approx(run.makespan)
    assert seen.ask("p => p.laid.run.peaks") == list(run.peak_microbatches)
    assert seen.status.startswith("3B0 now stands before 3F1 on rank 3. Legal. Makespan ")
    assert Schedule.read(seen.ask("p => p.shape.words(p.state, p.laid)").split("\n\n")[1])
    seen.control("Undo").click()
    seen.settle()
    assert row(seen, 3) == was


def test_an_illegal_place_is_shown_and_told_as_in_python(bench_page):
    seen = bench_page(schedule())
    # 1. A backward before its forward: the bar is ringed, what never runs is pale, nothing is lost.
    drag(seen, "2B1", bar(seen, "2F0")["x"] - 3)
    text = seen.ask("p => p.shape.words(p.state, p.laid)").split("\n\n")[1]
    with pytest.raises(ScheduleError) as refused:
        Schedule.read(text)
    assert refused.value.sentence == "2B1 comes before its forward, 2F1."
    assert seen.status.endswith(f"Not legal. {refused.value.sentence}")
    assert bar(seen, "2B1")["about"].endswith("never runs")
    ringed = [mark for mark in seen.marks if mark.get("thick") == 2.5]
    assert [mark["x"] for mark in ringed] == [pytest.approx(bar(seen, "2B1")["x"])]
    assert "refused: 2B1 comes before" in seen.canvas.get_attribute("aria-label")
    # 2. Legal again, through a second move; then a circle of two ranks that wait for each other.
    drag(seen, "2B1", bar(seen, "2B2")["x"])
    assert "now stands before 2B2 on rank 2. Legal. Makespan 36 instead of 33," in seen.status
    seen.control("Reset").click()
    seen.settle()
    drag(seen, "0F4", bar(seen, "0B0")["x"] + 3)
    drag(seen, "0B0", 560)
    text = seen.ask("p => p.shape.words(p.state, p.laid)").split("\n\n")[1]
    assert Schedule.read(text)  # late, and legal
    drag(seen, "0F7", 600)
    drag(seen, "0B7", bar(seen, "0F7")["x"] - 1)
    text = seen.ask("p => p.shape.words(p.state, p.laid)").split("\n\n")[1]
    with pytest.raises(ScheduleError) as refused:
        Schedule.read(text)
    assert refused.value.sentence in seen.status


def test_a_circle_of_waits_is_named_and_drawn(bench_page):
    seen = bench_page(schedule("gpipe", 2, 2))
    drag(seen, "0B0", bar(seen, "0F1")["x"])
    text = seen.ask("p => p.shape.words(p.state, p.laid)").split("\n\n")[1]
    with pytest.raises(ScheduleError) as refused:
        Schedule.read(text)
    assert refused.value.sentence.startswith("Deadlock: rank 0 stands before 0B0 and waits for 1B0")
    assert seen.status == (
        f"0B0 now stands before 0F1 on rank 0. Not legal. {refused.value.sentence}"
    )
    lines = [mark for mark in seen.marks if mark.get("thick") == 1.6]
    assert len(lines) == 2  # each of the two waits for the other
    assert number_is_missing(seen)


def number_is_missing(seen) -> bool:
    """A refused order has no makespan."""
    texts = [mark["text"] for mark in seen.marks if mark["kind"] == "text"]
    return texts[texts.index("makespan") + 1] == "—"


def test_the_keyboard_does_all_that_the_pointer_does(bench_page):
    seen = bench_page(schedule("gpipe", 3, 3))
    press = lambda *keys: [seen.press(key) for key in keys][-1]
    said = press("Home")  # the numbers above come first
    for _ in range(30):
        if said.startswith("0B0 on rank 0"):
            break
        said = press("ArrowRight" if "rank 0" in said else "ArrowDown")
    assert said.startswith("0B0 on rank 0")
    press("[", "[")
    assert row(seen, 0) == ["0F0", "0B0", "0F1", "0F2", "0B1", "0B2"]
    assert seen.status.startswith("0B0 now stands before 0F1 on rank 0. Not legal. Deadlock:")
    press("Shift+ArrowLeft")
    assert "0B0 comes before its forward, 0F0." in seen.status
    press("[")  # the row ends here: nothing happens
    assert row(seen, 0)[0] == "0B0"
    press("u")
    assert row(seen, 0)[:2] == ["0F0", "0B0"]
    press("Shift+ArrowRight", "]", "]", "]")
    assert row(seen, 0)[-1] == "0B0"
    assert "now stands at the end on rank 0" in seen.status


def test_moves_belong_to_their_schedule(bench_page):
    seen = bench_page(schedule("gpipe", 3, 3))
    drag(seen, "2B0", bar(seen, "2F1")["x"])
    moved = row(seen, 2)
    seen.slide("Microbatches", 4)
    assert row(seen, 2) == [str(action) for action in KINDS["gpipe"][1](3, 4)[2]]
    assert seen.control("Undo").is_disabled()
    seen.slide("Microbatches", 3)
    assert row(seen, 2) == moved


def test_a_schedule_of_ones_own_is_played_and_its_text_is_copied(bench_page):
    own = Schedule([["0F0", "0F1", "0B1", "0B0"], ["1F0", "1F1", "1B1", "1B0"]], "mine")
    seen = bench_page(schedule(own))
    assert not seen.node.get_by_label("Stages", exact=True).is_visible()
    assert number(seen, "makespan") == play(own).makespan
    seen.page.context.grant_permissions(["clipboard-read"])
    seen.control("Copy as text").click()
    seen.settle()
    assert "Copied: Schedule.read(text) reads it in Python." in seen.status
    assert seen.ask("p => p.shape.words(p.state, p.laid)").endswith(str(own))


def test_the_play_head_shows_what_is_kept_at_that_moment(bench_page):
    seen = bench_page(schedule())
    seen.node.evaluate("figure => figure.picture.set({ now: 4.5 / 33 })")
    seen.settle()
    kept = [
        mark["w"] for mark in seen.ask("p => p.over") if mark["kind"] == "box" and mark["h"] > 6
    ]
    whole = [mark for mark in seen.marks if mark.get("id") == "memory 0"][0]["w"] / 4
    np.testing.assert_allclose(np.array(kept) / whole, [4, 3, 2, 1])
    box = seen.canvas.bounding_box()
    bottom = seen.ask("p => p.laid.place.bottom")
    seen.page.mouse.move(box["x"] + 62, box["y"] + bottom + 8)
    seen.page.mouse.down()
    seen.page.mouse.move(box["x"] + 62 + 439 / 2, box["y"] + bottom + 8)
    seen.page.mouse.up()
    seen.settle()
    assert seen.state["now"] == pytest.approx(0.5, abs=0.01)


def test_a_slider_moves_eight_by_sixty_four_within_a_frame(bench_page):
    seen = bench_page(schedule("zb-h1", 8, 64), 900)
    took = seen.node.evaluate("""async ({ picture }) => {
        const frame = () => new Promise((go) => requestAnimationFrame(() => setTimeout(go)));
        const found = [];
        for (let i = 0; i < 60; i++) {
            picture.set({ forward: 1 + i / 50 });
            await frame();
            if (i >= 20) found.push(picture.took.frame);
        }
        return found;
    }""")
    assert statistics.median(took) < 16, took  # ms, of generating, playing, laying out, painting


@pytest.mark.parametrize("host", ["running", "in_book"])
def test_it_is_turned_and_edited_where_readers_are(request, host):
    """In JupyterLab with a kernel, and in the book from a file."""
    seen = request.getfixturevalue(host)("schedule")
    seen.slide("Microbatches", 6)
    made = one_f_one_b(4, 6)
    assert number(seen, "makespan") == play(made).makespan
    share = next(m for m in seen.marks if (m["about"] or "").startswith("bubble, share"))
    assert "GPipe's (p−1)/(m+p−1)" in seen.hover(share)
    assert number(seen, "bubble share") == pytest.approx(100 * play(made).bubble(), abs=0.06)
    drag(seen, "1B2", bar(seen, "1F1")["x"] - 2)
    rows = [[str(action) for action in line] for line in made]
    rows[1].insert(1, rows[1].pop(rows[1].index("1B2")))
    with pytest.raises(ScheduleError) as refused:
        Schedule(rows)
    assert row(seen, 1) == rows[1]
    assert seen.status.endswith(f"Not legal. {refused.value.sentence}")
    seen.press("u")
    assert row(seen, 1) == [str(action) for action in made[1]]
    seen.screenshot(f"schedule-{host}")
