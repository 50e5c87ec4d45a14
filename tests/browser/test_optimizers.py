"""The living picture of optimizers: every control leads to what Python draws for that setting."""

import pytest

from lib.draw import optimizers
from tests.browser.same import crowded, same

LOSSES = {
    "adamw": [2.560, 2.571, 2.564],
    "adafactor": [2.417, 2.428, 2.409],
    "adafactor + momentum": [2.417, float("nan"), 2.409],
    "sm3": [2.701, 2.683, 2.715],
}


def test_every_control_leads_to_what_python_draws(bench_page):
    drawn = optimizers("Llama 3 8B", LOSSES)
    seen = bench_page(drawn)
    assert seen.ask("p => p.laid.summary") == drawn.summary
    seen.control("Model").select_option("GPT-2, 1.56 billion")
    seen.control("Precision").select_option("bf16")
    seen.control("Device").select_option("MI300X, 192 GB")
    seen.settle()
    new = optimizers("GPT-2", LOSSES, precision="bf16", gpu="MI300X")
    same(seen, new)
    assert seen.ask("p => p.laid.summary") == new.summary


@pytest.mark.parametrize("width", [304, 640, 1100])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_fits_any_width(bench_page, width, dark):
    seen = bench_page(optimizers("Llama 3 70B", LOSSES), width, dark=dark)
    seen.screenshot(f"optimizers-{width}-{'dark' if dark else 'light'}")
    assert crowded(seen) == []


def test_pointing_at_a_bar_tells_its_bytes_and_at_a_point_its_loss(bench_page):
    seen = bench_page(optimizers("GPT-2", LOSSES, precision="fp32"))
    mark = lambda name: next(m for m in seen.marks if m.get("id") == name)
    told = seen.hover(mark("adamw optimizer"))
    assert told.startswith("adamw: optimizer's states 12,460,891,920 bytes, 8 B a parameter")
    told = seen.hover(mark("adafactor loss 1"))
    assert told == "adafactor, seed 1: 2.428\nmean 2.418, 0.147 below adamw"
    assert seen.hover(mark("adafactor + momentum loss 1")).endswith("seed 1: diverged")


def test_all_losses_are_told_in_words(bench_page):
    seen = bench_page(optimizers("GPT-2", LOSSES))
    seen.node.locator(".mrom-summary summary").click()
    seen.settle()
    text = seen.node.locator(".mrom-summary pre").inner_text()
    assert "sm3: losses 2.701, 2.683, 2.715" in text
    assert "adafactor + momentum: losses 2.417, diverged, 2.409" in text


def test_it_lives_in_the_book_without_a_kernel(in_book):
    seen = in_book("optimizers")
    seen.control("Model").select_option("GPT-2, 1.56 billion")
    seen.settle()
    said = " ".join(m["text"] for m in seen.marks if m["kind"] == "text")
    assert "GPT-2 in mixed precision fits with" in said
