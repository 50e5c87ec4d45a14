"""Korthikanti's table 4 beside its prediction, with the errors that chapter 12 names."""

import pytest

from lib.predict.roofline import Speeds, speeds
from lib.predict.sequence.published_times import (
    RANKS,
    SAMPLES,
    SHAPE_22B,
    TABLE_4,
    recomputed_scores,
    saved_by_splitting_tokens,
)

A100 = speeds("A100", "NVLink3")


def test_the_saved_forward_is_what_was_published():
    before, after = TABLE_4["tensor parallel"], TABLE_4["sequence parallel"]
    saved = saved_by_splitting_tokens(SHAPE_22B, RANKS, SAMPLES, A100)
    assert saved.forward == pytest.approx((before[0] - after[0]) * 1e-3, rel=0.06)


def test_the_published_backward_lies_near_gathers_that_nothing_hides():
    saved = saved_by_splitting_tokens(SHAPE_22B, RANKS, SAMPLES, A100)
    published = (TABLE_4["tensor parallel"][1] - TABLE_4["sequence parallel"][1]) * 1e-3
    assert saved.backward - saved.gathered == pytest.approx(published, abs=0.1e-3)
    assert saved.backward > 8 * published


def test_bytes_decide_and_one_rank_saves_nothing():
    slow = Speeds(peak=1e30, memory_bandwidth=1.0, alpha=0.0, bandwidth=1e30)
    saved = saved_by_splitting_tokens(SHAPE_22B, 8, 1, slow)
    numbers = 2048 * 6144 * 7 // 8
    assert (saved.forward, saved.backward) == (22 * numbers, 38 * numbers)
    assert saved_by_splitting_tokens(SHAPE_22B, 1, 1, slow)[:2] == (0, 0)
    with pytest.raises(ValueError, match="A sequence has 2048 tokens"):
        saved_by_splitting_tokens(SHAPE_22B, 3, 1, slow)


def test_attention_again_takes_two_thirds_of_what_was_published():
    added = TABLE_4["selective"][1] - TABLE_4["tensor parallel"][1]
    again = recomputed_scores(SHAPE_22B, RANKS, SAMPLES, A100)
    assert again * 1e3 / added == pytest.approx(0.68, abs=0.01)
    products = Speeds(peak=1.0, memory_bandwidth=1e30, alpha=0.0, bandwidth=1e30)
    assert recomputed_scores(SHAPE_22B, 8, 1, products) == 2 * 2 * 8 * 2048**2 * 96
