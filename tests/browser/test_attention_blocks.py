"""The living picture of attention's blocks: every choice is the still of it; steps are played."""

import pytest

from lib.draw import attention_blocks
from tests.browser.same import crowded, same

DOCUMENTS = (0, 700, 1500, 1600, 4096)
LAYOUTS = {"contiguous": "ring, contiguous", "zigzag": "ring, zigzag", "heads": "split by heads"}


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
@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_fits_any_width(bench_page, layout, width, dark):
    seen = bench_page(attention_blocks(layout, documents=DOCUMENTS), width, dark=dark)
    at(seen, 0.5)
    name = f"attention_blocks-{layout}-{width}-{'dark' if dark else 'light'}"
    seen.screenshot(name)
    assert crowded(seen) == []


def test_every_choice_fits_a_phone_and_is_the_still_of_it(bench_page):
    for documents in (None, DOCUMENTS):
        seen = bench_page(attention_blocks(documents=documents), 304)
        for layout, name in LAYOUTS.items():
            choose(seen, "Layout", name)
            for ranks in (2, 4, 8):
                choose(seen, "Ranks", str(ranks))
                at(seen, ranks)
                assert crowded(seen) == [], (layout, ranks)
                still = attention_blocks(layout, ranks=ranks, documents=documents)
                assert seen.ask("p => p.laid.summary") == still.summary


def test_choosing_leads_to_the_still_of_that_layout(bench_page):
    seen = bench_page(attention_blocks("contiguous"), 640)
    choose(seen, "Layout", LAYOUTS["zigzag"])
    same(seen, attention_blocks("zigzag"))
    at(seen, 2)
    same(seen, attention_blocks("zigzag", step=2))
    assert not seen.control("Sequence").is_visible()


def test_the_status_says_whose_keys_a_rank_has(bench_page):
    seen = bench_page(attention_blocks("contiguous", step=1), 640)
    assert seen.status == (
        "Step 1: keys and values have moved on 1 rank. Ranks compute their queries: 0 with those "
        "of 3, 1 with those of 0, 2 with those of 1, 3 with those of 2."
    )
    at(seen, 4)
    assert seen.status.startswith("All blocks are computed")


def test_documents_can_be_put_away(bench_page):
    seen = bench_page(attention_blocks("zigzag", documents=DOCUMENTS), 640)
    assert seen.heading.startswith("Ranks compute 72 % of the time")
    choose(seen, "Sequence", "one document")
    assert seen.heading.startswith("Ranks compute 100 % of the time")


def test_pointing_at_a_block_tells_whose_it_is(bench_page):
    seen = bench_page(attention_blocks("contiguous"), 640)
    block = next(m for m in seen.marks if m.get("id") == "1 3 0")
    words = "rank 3, step 1: queries 3,072 to 4,095, keys 2,048 to 3,071\n1,048,576 scores"
    assert seen.hover(block) == words
