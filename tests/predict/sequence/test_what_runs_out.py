"""Heads, memory or bandwidth: at corners that are worked out by hand."""

from dataclasses import replace

import pytest

from lib.predict.roofline import Speeds, speeds
from lib.predict.sequence import memory
from lib.predict.sequence.what_runs_out import STATES, computing_share, what_runs_out
from lib.predict.shape import GPTShape

SHAPE = GPTShape(1, 2**20, 4096, 32, 2, kv_heads=8, hidden=16_384, positions="rotary")
FREE = Speeds(peak=1e15, memory_bandwidth=1e30, alpha=0.0, bandwidth=1e30)
S = 2**16


def test_whole_heads_run_out_where_there_are_more_ranks_than_heads():
    for ranks, missing in ((32, ""), (64, "heads")):
        for method in ("megatron", "ulysses"):
            limit = what_runs_out(SHAPE, method, S, ranks, FREE, 1e30)
            assert limit.missing == missing
        assert not what_runs_out(SHAPE, "ring", S, ranks, FREE, 1e30).missing
    assert what_runs_out(SHAPE, "ulysses", S, 64, FREE, 1e30)[1:] == (0, 0.0)


@pytest.mark.parametrize("method", ["megatron", "ulysses", "ring"])
def test_what_a_rank_keeps_needs_the_memory_that_it_says(method):
    limit = what_runs_out(SHAPE, method, S, 8, FREE, 1e30)
    if method != "megatron":
        kept = memory.activations(SHAPE, method, 8, 1, S, 2)
        assert limit.bytes == kept + STATES * SHAPE.numel // 8
    assert what_runs_out(SHAPE, method, S, 8, FREE, limit.bytes).missing == ""
    assert what_runs_out(SHAPE, method, S, 8, FREE, limit.bytes - 1).missing == "memory"


@pytest.mark.parametrize("method", ["megatron", "ulysses", "ring"])
def test_without_a_price_for_messages_ranks_compute_all_the_time(method):
    assert computing_share(SHAPE, method, S, 8, FREE) == pytest.approx(1)


def test_what_is_sent_is_weighed_against_the_products():
    slow = replace(FREE, bandwidth=1e10)
    d, ranks = 4096, 8
    weights = d * (d + 2 * 1024) + d * d + 2 * d * 16_384
    computed = (2 * S * weights + 2 * S * S * d) / ranks / 1e15
    sent = {"megatron": 4 * S * d, "ulysses": (2 * d + 2 * 1024) * S / ranks}
    for method, numbers in sent.items():
        exposed = 7 / 8 * 2 * numbers / 1e10
        share = computing_share(SHAPE, method, S, ranks, slow)
        assert share == pytest.approx(computed / (computed + exposed))
        least = {"least": share * 1.001}
        limit = what_runs_out(SHAPE, method, S, ranks, slow, 1e30, **least)
        assert limit.missing == "bandwidth" and limit.computing == share


def test_of_long_sequences_only_a_ring_goes_on_over_a_slow_link():
    """The map of chapter 12: 32 heads, 64 ranks over InfiniBand, a million tokens."""
    deep, link = replace(SHAPE, layers=32), speeds("H100", "InfiniBand NDR")
    missing = {
        (method, ranks): what_runs_out(deep, method, 2**20, ranks, link, 80e9).missing
        for method in ("megatron", "ulysses", "ring")
        for ranks in (32, 64)
    }
    assert missing == {
        ("megatron", 32): "memory", ("ulysses", 32): "memory", ("ring", 32): "memory",
        ("megatron", 64): "heads", ("ulysses", 64): "heads", ("ring", 64): "",
    }  # fmt: skip


def test_bad_questions_are_refused():
    with pytest.raises(ValueError, match="No method is called 'rings'"):
        what_runs_out(SHAPE, "rings", S, 8, FREE, 1e9)
    with pytest.raises(ValueError, match="cannot share them equally"):
        what_runs_out(SHAPE, "ring", S + 1, 8, FREE, 1e9)
    for method in ("megatron", "ulysses", "ring"):  # not taken for a want of heads
        with pytest.raises(ValueError, match="dropout"):
            what_runs_out(replace(SHAPE, dropout=0.1), method, S, 8, FREE, 1e9)
    with pytest.raises(ValueError, match="cannot share them equally"):
        what_runs_out(replace(SHAPE, hidden=16_380), "megatron", S, 8, FREE, 1e9)


def test_keys_may_be_copied_but_not_unequally():
    six = GPTShape(1, 2**20, 96, 12, 1, kv_heads=6, hidden=96, positions="rotary")
    for ranks, missing in ((2, ""), (3, ""), (4, "heads"), (6, ""), (12, "")):
        limit = what_runs_out(six, "ulysses", 24 * 16, ranks, FREE, 1e30)
        assert limit.missing == missing, ranks
