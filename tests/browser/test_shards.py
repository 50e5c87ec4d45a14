"""The living picture of shards: every choice draws what Python planned, and tiles travel."""

import pytest

from lib.draw import shards
from lib.predict.tensor.products import KINDS
from tests.browser.same import crowded, same

ROOMS = """p => p.laid.marks.filter((m) => m.about && String(m.id).startsWith("next "))
    .map((m) => m.about)"""


def choose(seen, label: str, text: str) -> None:
    """Chooses an entry of a list by its words."""
    seen.control(label).select_option(text)
    seen.settle()


def at(seen, place: float) -> None:
    """Puts the picture at a moment, in steps."""
    seen.ask("(p, at) => p.set({ at })", place)
    seen.settle()


@pytest.mark.parametrize("width", [304, 640, 1176])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("kind", ["column", "row", "2.5d", "3d"])
def test_it_fits_any_width(bench_page, kind, width, dark):
    seen = bench_page(shards(kind), width, dark=dark)
    at(seen, 1)
    seen.screenshot(f"shards-{kind}-{width}-{'dark' if dark else 'light'}")
    assert crowded(seen) == []


def test_every_choice_fits_a_phone(bench_page):
    seen = bench_page(shards(), 304)
    data = shards().live[1]
    for way, options in data["splits"].items():
        for a, _ in options:
            for b, _ in options:
                seen.ask("(p, state) => p.set(state)", {"way": way, "a": a, "b": b})
                seen.settle()
                assert crowded(seen) == [], (way, a, b)
                assert seen.heading == data["products"][way][f"{a}|{b}"]["verdict"]


@pytest.mark.parametrize("kind", KINDS[1:])
def test_choosing_leads_to_the_still_of_that_product(bench_page, kind):
    seen = bench_page(shards(), 640)
    if kind == "row":
        choose(seen, "Split A", "dim 1 by tp")
        choose(seen, "Split B", "dim 0 by tp")
    else:
        choose(seen, "Ranks", dict(shards().live[1]["ways"])[kind])
        assert not seen.control("Split A").is_visible()
    same(seen, shards(kind))
    assert seen.ask("p => p.laid.summary") == shards(kind).summary
    at(seen, 1)
    same(seen, shards(kind, step=1))


def test_what_is_impossible_says_why_and_cannot_be_played(bench_page):
    seen = bench_page(shards(), 640)
    choose(seen, "Split B", "not split")
    choose(seen, "Split A", "both dims by tp")
    assert seen.heading.startswith("Impossible: Axis tp cannot split both dims of A")
    assert any(m.get("about") == "B: whole on every rank" for m in seen.marks)
    assert not seen.node.locator(".mrom-player").is_visible()
    choose(seen, "Split A", "not split")
    assert seen.node.locator(".mrom-player").is_visible()


def test_a_choice_of_another_mesh_is_no_split_on_this_one(bench_page):
    seen = bench_page(shards("row"), 640)
    choose(seen, "Ranks", "2×2")
    assert seen.heading.startswith("No collective is needed.")
    assert seen.control("Split A").evaluate("list => list.value") == "not split"


def test_the_status_says_what_was_sent_and_who_sends_next(bench_page):
    seen = bench_page(shards("2d", 8, 16, 32), 640)
    assert "Sent so far: 0 bytes by all ranks." in seen.status
    assert "0 → 1: A[0, 0]; 2 → 3: A[1, 0]" in seen.status
    at(seen, 6)
    assert seen.status == ("C is complete after 6 steps. Sent so far: 1,280 bytes by all ranks.")


def test_tiles_travel_from_their_rank_to_the_room_for_them(bench_page):
    seen = bench_page(shards("2d"), 640)
    room = next(m for m in seen.marks if m.get("id") == "next 1 0 0 0")
    at(seen, 1 - 1e-6)
    assert not seen.ask(ROOMS)
    arrived = [m for m in seen.marks if m.get("fill") and abs(m.get("x", 0) - room["x"] + 2) < 0.1]
    assert any(abs(m["y"] - room["y"] + 2) < 0.1 for m in arrived)
    at(seen, 1)
    assert any(m.get("about") == "rank 1: A, tile 0, 0, from rank 0" for m in seen.marks)


def test_pointing_at_what_all_ranks_have_whole_says_so(bench_page):
    seen = bench_page(shards("column"), 640)
    matrix = next(m for m in seen.marks if m.get("id") == "A")
    assert seen.hover(matrix) == "A: whole on every rank"


def test_a_step_of_the_list_is_gone_to_by_pointer_and_by_key(bench_page):
    seen = bench_page(shards("2d"), 640)
    third = next(m for m in seen.marks if m.get("id") == {"step": 2})
    seen.canvas.click(position=seen.place(third))
    seen.settle()
    assert seen.state["at"] == 2
    assert seen.press("End").startswith("step 6: ")
    seen.press("Enter")
    assert seen.state["at"] == 5


def test_pointing_at_a_tile_tells_whose_it_is(bench_page):
    seen = bench_page(shards("row", step=1), 640)
    tile = next(m for m in seen.marks if m.get("id") == "2 0 0 2")
    assert seen.hover(tile) == "rank 2: A, tile 0, 2, its own"


def test_it_lives_in_the_book_without_a_kernel(in_book):
    seen = in_book("shards")
    choose(seen, "Ranks", "4 in a line")
    choose(seen, "Split B", "dim 0 by tp")
    assert "an all_reduce over tp must add the parts" in seen.heading
