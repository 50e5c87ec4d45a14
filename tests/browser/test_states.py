"""The living picture of states: every control leads to what Python draws for that setting."""

import pytest

from lib.draw import states
from tests.browser.same import crowded, same


def test_every_control_leads_to_what_python_draws(bench_page):
    drawn = states("Llama 3 8B", ranks=8)
    seen, data = bench_page(drawn), drawn.live[1]
    assert seen.ask("p => p.laid.summary") == drawn.summary
    seen.control("Model").select_option("Llama 3 405B")
    seen.slide("Ranks", data["ranks"].index(1024))
    seen.control("Optimizer and precision").select_option("sgd, fp32")
    seen.control("Device").select_option("MI300X, 192 GB")
    seen.settle()
    wanted = {"ranks": 1024, "optimizer": "sgd", "precision": "fp32", "gpu": "MI300X"}
    new = states("Llama 3 405B", **wanted)
    same(seen, new)
    assert seen.ask("p => p.laid.summary") == new.summary
    seen.slide("Parameters", 0)
    seen.settle()
    smallest = states(data["sizes"][0]["numel"], **wanted)
    same(seen, smallest)


@pytest.mark.parametrize("width", [304, 640, 1100])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_fits_any_width(bench_page, width, dark):
    seen = bench_page(states("Llama 3 70B", ranks=16), width, dark=dark)
    seen.screenshot(f"states-{width}-{'dark' if dark else 'light'}")
    assert crowded(seen) == []


def test_pointing_at_a_bar_tells_its_bytes(bench_page):
    seen = bench_page(states("GPT-2", ranks=4))
    bar = next(mark for mark in seen.marks if mark.get("id") == "1 optimizer")
    assert seen.hover(bar) == "stage 1: optimizer 4,672,833,600 bytes"


def test_it_lives_in_the_book_without_a_kernel(in_book):
    seen = in_book("states")
    seen.slide("Ranks", 0)
    assert "on 1 rank with" in " ".join(m["text"] for m in seen.marks if m["kind"] == "text")
