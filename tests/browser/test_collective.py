"""Collectives, alive: pieces fly from where they are to where they belong, and bytes add up."""

import re
import statistics

import pytest

from lib.draw import collective
from lib.predict.collectives import formulas
from lib.predict.collectives.plans import PLANS, all_to_all, halving_doubling, ring
from tests.browser.same import crowded, same

EVERY = {**PLANS, "all_to_all": all_to_all}
TOKENS = """p => p.laid.marks.filter((m) => m.id?.token).map((m) => ({
    who: m.id.token.join(), x: m.x + m.w / 2, y: m.y + m.h / 2 }))"""


def at(seen, place):
    """Puts the picture at a moment, in rounds."""
    seen.ask("(p, at) => p.set({ at })", place)
    seen.settle()


def rounds(seen, number=None) -> int:
    """Moves the slider of rounds, where a number is given; tells how many rounds it has."""
    slider = seen.node.locator(".mrom-player input")
    if number is not None:
        slider.fill(str(number))
        seen.settle()
    return int(slider.evaluate("input => input.max"))


# --- on a phone


PHONE = [("ring", "ring"), ("ring", "rows"), ("tree", "rows"), ("all_to_all", "ring")]
PHONE += [("everyone", "rows")]


@pytest.mark.parametrize(("kind", "view"), PHONE)
def test_a_phone_has_room_for_it(bench_page, kind, view):
    plan = EVERY[kind](8)
    seen = bench_page(collective(plan, view=view), 376)
    assert crowded(seen) == []
    at(seen, len(plan.rounds))
    assert crowded(seen) == []


@pytest.mark.parametrize(
    "ops", [("all_reduce",), ("all_gather",), ("reduce_scatter", "all_gather")]
)
def test_a_phone_has_room_for_before_and_after(bench_page, ops):
    assert crowded(bench_page(collective(*ops, ranks=8), 376)) == []


# --- bytes and rounds


@pytest.mark.parametrize("kind", PLANS)
@pytest.mark.parametrize("n", [4, 7])
def test_rounds_and_bytes_on_the_page_are_the_formulas(bench_page, kind, n):
    counted = formulas.all_reduce(kind, n, 1001)
    seen = bench_page(collective(PLANS[kind](n), numel=1001))
    assert rounds(seen) == counted.rounds
    assert seen.status.startswith("Sent so far: 0 bytes")
    rounds(seen, counted.rounds)
    most, total = re.search(
        r"Sent so far: ([\d,]+) bytes by \D+([\d,]+) by all", seen.status
    ).groups()
    assert int(most.replace(",", "")) == max(counted.sent)
    assert int(total.replace(",", "")) == counted.total
    assert seen.status.startswith(f"Done after {counted.rounds} rounds.")


def test_an_all_to_all_on_the_page_is_the_formula(bench_page):
    wire = formulas.collective("all_to_all", 5, 4000)
    seen = bench_page(collective(all_to_all(5), numel=1000))
    rounds(seen, wire.rounds)
    assert f"Sent so far: {round(wire.bytes):,} bytes by each rank" in seen.status
    assert seen.status.startswith(f"Done after {wire.rounds} rounds")


def test_bytes_by_rank_stand_at_each_rank(bench_page):
    seen = bench_page(collective(PLANS["tree"](4), numel=250_000))
    at(seen, 1)
    told = [m["text"] for m in seen.marks if m["kind"] == "text" and m["text"].endswith(" sent")]
    assert told == ["0 B sent", "1 MB sent", "0 B sent", "1 MB sent"]


# --- pieces fly


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("view", ["ring", "rows"])
def test_pieces_leave_where_they_are_and_arrive_where_they_belong(bench_page, kind, view):
    plan = EVERY[kind](6)
    seen = bench_page(collective(plan, view=view), 640)
    for number in (0, len(plan.rounds) - 1):
        at(seen, number)
        start = {t["who"]: t for t in seen.ask(TOKENS)}
        boxes = {m["id"]: m for m in seen.marks if isinstance(m.get("id"), str)}
        assert len(start) == sum(move.count for move in plan.rounds[number])
        at(seen, number + 1 - 1e-6)
        end = {t["who"]: t for t in seen.ask(TOKENS)}
        for move in plan.rounds[number]:
            for p in range(move.piece, move.piece + move.count):
                for rank, tokens in ((move.source, start), (move.destination, end)):
                    box, token = boxes[f"{rank} {p}"], tokens[f"{move.source},{p}"]
                    assert token["x"] == pytest.approx(box["x"] + box["w"] / 2, abs=0.1)
                    assert token["y"] == pytest.approx(box["y"] + box["h"] / 2, abs=0.1)


@pytest.mark.parametrize("view", ["ring", "rows"])
def test_pieces_move_without_a_jump(bench_page, view):
    seen = bench_page(collective(halving_doubling(8), view=view), 640)
    moments = [step / 100.5 for step in range(101)]
    tokens = f"""(p, moments) => moments.map((at) =>
        ({TOKENS})({{ laid: p.shape.layout({{ ...p.state, at }}, 640) }}))"""
    frames = [{t["who"]: t for t in tokens} for tokens in seen.ask(tokens, moments)]
    far = max(abs(now[who][axis] - old[who][axis]) for old, now in zip(frames, frames[1:])
              for who in now for axis in "xy")  # fmt: skip
    before = frames[-1]
    whole = max(abs(t["y"] - s["y"]) for t, s in [(before[w], before["0,4"]) for w in before])
    assert 0 < far < whole / 10


def test_what_arrives_is_there_when_the_round_is_over(bench_page):
    seen = bench_page(collective(ring(4)))
    (piece,) = [m for m in seen.marks if m.get("id") == "1 0"]
    assert "the part of rank 1" in piece["about"]
    at(seen, 0.99)
    assert "the part of rank 1" in [m for m in seen.marks if m.get("id") == "1 0"][0]["about"]
    at(seen, 1)
    assert "the parts of ranks 0, 1" in [m for m in seen.marks if m.get("id") == "1 0"][0]["about"]
    at(seen, 6)
    about = [m["about"] for m in seen.marks if re.fullmatch(r"\d \d", str(m.get("id")))]
    assert len(about) == 16 and all(text.endswith("the whole sum") for text in about)


# --- hands


def test_play_runs_to_the_end_and_again(bench_page):
    seen = bench_page(collective(ring(2)))
    play = seen.node.get_by_role("button", name="Rounds: play")
    play.click()
    seen.page.wait_for_function("document.querySelector('.mrom').picture.state.at > 0.2")
    assert 0.2 < seen.state["at"] < 2
    seen.node.get_by_role("button", name="Rounds: pause").click()
    seen.settle()
    held = seen.state["at"]
    seen.page.wait_for_timeout(150)
    assert seen.state["at"] == held
    play.click()
    seen.page.wait_for_function("document.querySelector('.mrom').picture.state.at === 2")
    seen.settle()
    assert "Done after 2 rounds" in seen.status
    play.click()
    seen.page.wait_for_function("document.querySelector('.mrom').picture.state.at < 1")


def test_ahead_glides_to_the_next_round_and_back_goes_to_the_one_before(bench_page):
    seen = bench_page(collective(ring(3)))
    ahead = seen.node.get_by_role("button", name="Rounds: ahead")
    back = seen.node.get_by_role("button", name="Rounds: back")
    ahead.click()
    seen.page.wait_for_function("document.querySelector('.mrom').picture.state.at > 0.1")
    assert seen.state["at"] < 1
    seen.page.wait_for_function("document.querySelector('.mrom').picture.state.at === 1")
    seen.page.wait_for_timeout(100)
    assert seen.state["at"] == 1
    ahead.click()
    ahead.click()  # impatient: the second is done at once, the third begins
    assert 2 <= seen.state["at"] < 3
    back.click()
    seen.settle()
    assert seen.state["at"] in (1, 2)
    rounds(seen, 2)
    back.click()
    seen.settle()
    assert seen.state["at"] == 1


def test_nothing_glides_for_who_does_not_want_it(bench_page):
    seen = bench_page(collective(ring(3)))
    seen.page.emulate_media(reduced_motion="reduce")
    seen.node.get_by_role("button", name="Rounds: ahead").click()
    seen.settle()
    assert seen.state["at"] == 1
    seen.page.emulate_media(reduced_motion="no-preference")


def test_a_round_of_the_strip_is_a_press_away(bench_page):
    seen = bench_page(collective(ring(4)))
    (frame,) = [m for m in seen.marks if m.get("about") == "after round 4"]
    seen.canvas.click(position=seen.place(frame))
    seen.settle()
    assert seen.state["at"] == 4
    assert "round 5 of 6: the sum takes the place (all-gather)" in [
        m.get("text") for m in seen.marks
    ]


def test_a_round_of_the_strip_is_an_enter_away_too(bench_page):
    seen = bench_page(collective(ring(2)), 640)
    seen.press("Home")
    assert seen.press("End") == "after round 2"
    seen.press("Enter")
    assert seen.state["at"] == 2 and seen.status.startswith("Done after 2 rounds.")


def test_hovering_tells_the_piece_and_keys_go_from_one_to_the_next(bench_page):
    seen = bench_page(collective(ring(4)))
    (box,) = [m for m in seen.marks if m.get("id") == "2 3"]
    assert seen.hover(box) == "rank 2, piece 3, 250,000 bytes: the part of rank 2"
    assert "rank 0, piece 0" in seen.press("Home")
    assert "rank 0, piece 1" in seen.press("ArrowRight")


def test_rows_and_ring_are_the_same_pieces(bench_page):
    seen = bench_page(collective(ring(4)))
    ids = {str(m["id"]) for m in seen.marks if m.get("id")}
    seen.control("Ranks").select_option(label="in rows")
    seen.settle()
    same(seen, collective(ring(4), view="rows"))
    assert {str(m["id"]) for m in seen.marks if m.get("id")} == ids


def test_eight_ranks_play_without_a_stutter(bench_page):
    seen, took = bench_page(collective(ring(8))), []
    for step in range(15):
        at(seen, 3 + step / 20)
        took.append(seen.ask("p => p.took.layout + p.took.paint"))
    assert statistics.median(took) < 16


# --- before and after


def test_another_collective_on_more_ranks_is_what_python_draws(bench_page):
    seen = bench_page(collective("all_reduce"), 640)
    seen.control("Collective").select_option(label="scatter")
    seen.slide("Ranks", 6)
    new = collective("scatter", ranks=6)
    same(seen, new)
    assert seen.ask("p => p.laid.summary") == new.summary
    assert seen.status == "scatter: each rank gets one piece of rank 0's."


def test_pieces_fly_from_one_grid_to_the_next(bench_page):
    seen = bench_page(collective("reduce_scatter", "all_gather"), 640)
    full = len(seen.marks)
    at(seen, 0)
    still = [m for m in seen.marks if m["kind"] == "box" and m.get("fill")]
    assert len(still) == 16  # what comes later is empty
    at(seen, 0.5)
    flying = [m for m in seen.marks if m["kind"] == "box" and m.get("fill")]
    assert len(flying) == 16 + 2 * 16  # from each rank to each piece of the sum, on paper
    at(seen, 1.5)
    assert len([m for m in seen.marks if m["kind"] == "box" and m.get("fill")]) == 20 + 2 * 16
    at(seen, 2)
    assert len(seen.marks) == full


def test_in_jupyterlab_a_ring_plays_to_the_bytes_of_the_formula(running):
    seen, counted = running("collective"), formulas.all_reduce("ring", 4, 250_000)
    assert rounds(seen) == counted.rounds
    rounds(seen, counted.rounds - 1)
    seen.node.get_by_role("button", name="Rounds: play").click()
    done = seen.node.get_by_text(f"Done after {counted.rounds} rounds.")
    done.wait_for()
    assert f"{counted.busiest:,} bytes by each rank, {counted.total:,} by all" in seen.status
