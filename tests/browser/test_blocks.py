"""The living picture of the allocator's blocks: choose a replay, point, zoom, play."""

import pytest

from lib.draw import blocks
from lib.ledger.lives import Life
from lib.predict.allocator.caching import MIB
from lib.predict.allocator.replay import replay
from tests.browser.same import crowded, same
from tests.predict.allocator.lives import checkpointed


def replays():
    lives = checkpointed()
    return {"best fit": replay(lives), "an arena": replay(lives, arena=["activations"])}


def three():
    """4 MiB all the time, 6 MiB from event 1 to 3, 8 MiB from event 2 to 4: five events."""
    return replay([
        Life(0, 4 * MIB, "parameters", 0),
        Life(1, 6 * MIB - 100, "activations", 1, 3, "mm in forward"),
        Life(2, 8 * MIB, "other", 2, 4, "mm in backward"),
    ])  # fmt: skip


def block(seen, event):
    (found,) = [mark for mark in seen.marks if mark.get("id") == f"b{event}"]
    return found


def test_the_chosen_replay_is_drawn_as_python_draws_it(bench_page):
    runs = replays()
    seen = bench_page(blocks(runs))
    first = seen.status
    seen.control("Allocator").select_option("an arena")
    seen.settle()
    assert seen.status != first
    same(seen, blocks(dict(reversed(runs.items()))))


def test_pointing_tells_of_a_block_and_of_its_segment(bench_page):
    seen = bench_page(blocks(three()))
    assert seen.hover(block(seen, 1)).splitlines() == [
        "activations: 6,291,356 bytes", "in a block of 6,291,456", "made by mm in forward",
        "events 1 to 3"]  # fmt: skip
    (segment,) = [mark for mark in seen.marks if mark.get("id") == "s0"]
    top = {**segment, "h": 4}  # where no block lies
    assert seen.hover(top) == "segment of large blocks: 20,971,520 bytes, events 0 to 5"


def test_the_play_head_says_what_is_free_after_an_event(bench_page):
    seen = bench_page(blocks(three()))
    assert seen.status.startswith("Most scattered after event ")
    for event, allocated in enumerate([4, 10, 18, 12, 4]):
        seen.ask("(p, at) => p.set({ at })", event + 1.5)
        seen.settle()
        said = f"After event {event}: {allocated * MIB / 1e6:.3g} MB allocated of 21 MB reserved"
        assert seen.status.startswith(said)


def test_zoom_by_keys_and_buttons(bench_page):
    seen = bench_page(blocks(replay(checkpointed())))
    before = block(seen, 15)["w"]
    seen.press("+")
    assert block(seen, 15)["w"] == pytest.approx(1.6 * before)
    seen.control("Whole").click()
    seen.settle()
    assert block(seen, 15)["w"] == pytest.approx(before)


def test_arrow_keys_go_from_block_to_block(bench_page):
    seen = bench_page(blocks(three()))
    assert seen.press("End").startswith("parameters: 4,194,304 bytes")
    assert seen.press("ArrowUp").startswith("activations: 6,291,356 bytes")


@pytest.mark.parametrize("width", [304, 640, 1100])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_fits_any_width(bench_page, width, dark):
    seen = bench_page(blocks(replays()), width, dark=dark)
    seen.screenshot(f"blocks-{width}-{'dark' if dark else 'light'}")
    assert crowded(seen) == [] and len(seen.colours()) > 5


def test_it_lives_in_the_book_without_a_kernel(in_book):
    seen = in_book("blocks")
    seen.control("Allocator").select_option("an arena")
    seen.settle()
    assert seen.state["run"] == 1
