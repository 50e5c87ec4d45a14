"""Heads, memory or bandwidth: at corners that are worked out by hand."""

from dataclasses import replace

import pytest

from lib.predict.roofline import Speeds, speeds
from lib.predict.sequence import memory
from lib.predict.sequence.ring_step import Attention, ring_seconds
from lib.predict.sequence.what_runs_out import STATES, computing_share, what_runs_out
from lib.predict.shape import GPTShape
from lib.predict.tensor import sequence as megatron

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
        kept += 2 * S // 8 * SHAPE.vocabulary * 2  # the logits, and as many numbers of the loss
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


NODES = speeds("H100", "NVLink4", node=8, between="InfiniBand NDR")


@pytest.mark.parametrize("method", ["megatron", "ulysses", "ring"])
def test_with_recomputation_a_rank_keeps_inputs_of_layers_and_one_layer_or_the_logits(method):
    tokens, one = S // 8, replace(SHAPE, layers=1)
    if method == "megatron":
        layer = megatron.activations(one, 8, 1, S, 2)
    else:
        layer = memory.activations(one, method, 8, 1, S, 2)
    inputs = SHAPE.layers * tokens * SHAPE.width * 2
    for vocabulary, largest in ((1, layer), (128_256, 2 * tokens * 128_256 * 2)):
        shape = replace(SHAPE, vocabulary=vocabulary)
        limit = what_runs_out(shape, method, S, 8, FREE, 1e30, recompute=True)
        assert limit.bytes == STATES * shape.numel // 8 + inputs + largest
    whole = what_runs_out(SHAPE, method, S, 8, FREE, 1e30)
    assert what_runs_out(SHAPE, method, S, 8, FREE, 1e30, recompute=True).bytes < whole.bytes


def test_a_gated_mlp_has_a_matrix_more():
    plain, gated = (
        what_runs_out(SHAPE, "ring", S, 8, FREE, 1e30, gated=it) for it in (False, True)
    )
    weights, numbers = SHAPE.layers * 4096 * 16_384, SHAPE.layers * 2 * 16_384 * S // 8
    assert gated.bytes - plain.bytes == STATES * weights // 8 + 2 * numbers
    slow = replace(FREE, bandwidth=1e9)
    shares = [computing_share(SHAPE, "ulysses", S, 8, slow, gated=it) for it in (False, True)]
    assert shares[0] < shares[1], "the same bytes beside more products"


def test_both_is_ulysses_in_a_node_and_a_ring_of_a_share_of_the_heads_over_nodes():
    for ranks in (2, 8):
        shares = [computing_share(SHAPE, m, S, ranks, NODES) for m in ("both", "ulysses")]
        assert shares[0] == shares[1]
    inside = replace(NODES, nodes=None)
    link = {"alpha": NODES.nodes.alpha, "bandwidth": NODES.nodes.bandwidth}
    ring = ring_seconds(
        Attention(1, 4, 1, S, 128, 2), 4, replace(inside, **link), backward=False, masked=0.5
    )
    scores = 2 * S**2 * 4096 / 32 / NODES.peak
    weights = 4096 * (4096 + 2 * 1024) + 4096**2 + 2 * 4096 * 16_384
    computed = 2 * S * weights / 32 / NODES.peak + scores
    numbers = (2 * 4096 + 2 * 1024) * S // 32 * 2
    swaps = 7 / 8 * numbers / NODES.bandwidth + 2 * 7 * NODES.alpha
    share = computing_share(SHAPE, "both", S, 32, NODES)
    assert share == pytest.approx(computed / (computed + ring - scores + swaps))
    kept = what_runs_out(SHAPE, "both", S, 32, NODES, 1e30).bytes
    logits = 2 * S // 32 * 2
    assert kept == STATES * SHAPE.numel // 32 + logits + memory.activations(
        SHAPE, "ring", 4, 1, S, 2, inner=8
    )
    assert computing_share(SHAPE, "ring", S, 32, NODES) < share
    assert what_runs_out(SHAPE, "both", S, 64, NODES, 1e30).missing != "heads"


def test_a_ring_over_several_nodes_is_as_slow_as_the_link_between_them():
    link = {"alpha": NODES.nodes.alpha, "bandwidth": NODES.nodes.bandwidth}
    alone = replace(NODES, nodes=None)
    share = lambda ranks, at: computing_share(SHAPE, "ring", S, ranks, at)
    assert share(8, NODES) == share(8, alone)
    assert share(16, NODES) == share(16, replace(alone, **link)) < share(16, alone)


def test_bad_questions_are_refused():
    with pytest.raises(ValueError, match="needs several nodes"):
        what_runs_out(SHAPE, "both", S, 16, FREE, 1e9)
    with pytest.raises(ValueError, match="There are 12 ranks; nodes of 8 cannot share"):
        what_runs_out(SHAPE, "both", 3 * S, 12, NODES, 1e9)
    with pytest.raises(ValueError, match="No method is called 'rings'"):
        what_runs_out(SHAPE, "rings", S, 8, FREE, 1e9)
    with pytest.raises(ValueError, match="cannot share them equally"):
        what_runs_out(SHAPE, "ring", S + 1, 8, FREE, 1e9)
    for method in ("ulysses", "ring"):  # not taken for a want of heads
        with pytest.raises(ValueError, match="dropout"):
            what_runs_out(replace(SHAPE, dropout=0.1), method, S, 8, FREE, 1e9)
    kept = [what_runs_out(replace(SHAPE, dropout=p), "megatron", S, 8, FREE, 1e9).bytes
            for p in (0.0, 0.1)]  # fmt: skip
    assert kept[0] < kept[1], "masks, and scores that dropout keeps"
    with pytest.raises(ValueError, match="cannot share them equally"):
        what_runs_out(replace(SHAPE, hidden=16_380), "megatron", S, 8, FREE, 1e9)


def test_keys_may_be_copied_but_not_unequally():
    six = GPTShape(1, 2**20, 96, 12, 1, kv_heads=6, hidden=96, positions="rotary")
    for ranks, missing in ((2, ""), (3, ""), (4, "heads"), (6, ""), (12, "")):
        limit = what_runs_out(six, "ulysses", 24 * 16, ranks, FREE, 1e30)
        assert limit.missing == missing, ranks
