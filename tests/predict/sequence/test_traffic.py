"""Predicted bytes of split sequences, from shapes alone, and against publications."""

from collections import Counter

import pytest

from lib.predict.sequence import memory, traffic
from lib.predict.shape import GPTShape

SHAPE = GPTShape(vocabulary=64, sequence=64, width=64, heads=16, layers=3)


def numbers(moves):
    return sum(move.sent for move in moves) / 4


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_ulysses_sends_4nh_over_p(ranks):
    """Jacobs et al. 2023, section 3.2, who leave out the share that stays on the rank."""
    found = numbers(traffic.of_layer(SHAPE, "ulysses", ranks, 2).forward)
    published = traffic.published_layer("ulysses", 2 * 64, 64, ranks)
    assert found == pytest.approx(published * (ranks - 1) / ranks)
    megatron = traffic.published_layer("megatron", 2 * 64, 64, ranks)
    assert megatron == ranks * published
    found = numbers(traffic.of_layer(SHAPE, "megatron", ranks, 2).forward)
    assert found == pytest.approx(megatron * (ranks - 1) / ranks)


@pytest.mark.parametrize("keys", [16, 2])
def test_a_layer_of_megatrons_is_what_a_layer_adds_to_a_step(keys):
    """Its own sums of gradients are all_reduces, and everything else is the layer's."""
    of = lambda layers: traffic.of_step(
        GPTShape(sequence=64, width=64, heads=16, kv_heads=keys, layers=layers), "megatron", 4, 2
    )
    layer = traffic.of_layer(SHAPE, "megatron", 4, 2)
    for part, own in zip(("forward", "backward"), layer):
        moves = [Counter(m for m in getattr(of(n), part) if m.op != "all_reduce") for n in (2, 3)]
        assert moves[1] - moves[0] == Counter(own)
    assert [move.op for move in of(2).forward[-2:]] == ["all_reduce", "all_reduce"]


@pytest.mark.parametrize("groups", [16, 4, 1])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_ring_sends_keys_and_values_of_all_but_one_rank(ranks, groups):
    shape = GPTShape(sequence=64, width=64, heads=16, kv_heads=groups)
    moves = traffic.of_layer(shape, "ring", ranks, 2)
    published = traffic.published_layer("ring", 2 * 64, 64, ranks, key_share=groups / 16)
    assert numbers(moves.forward) == pytest.approx(published)
    assert numbers(moves.backward) == pytest.approx(2 * published)
    assert moves.sent == 4 * 3 * published


def test_grouped_queries_help_the_ring_more_than_ulysses():
    """With one head of keys a ring sends a 16th; Ulysses sends one copy to each rank."""
    one = GPTShape(sequence=64, width=64, heads=16, kv_heads=1)
    ring, ulysses = (
        traffic.of_layer(one, m, 8, 1).sent / traffic.of_layer(SHAPE, m, 8, 1).sent
        for m in ("ring", "ulysses")
    )
    assert ring == 1 / 16
    assert ulysses == (16 + 2 * 8 + 16) / (3 * 16 + 16)


def test_ulysses_inside_a_ring_sends_less_than_the_ring_alone():
    alone = traffic.of_layer(SHAPE, "ring", 8, 1)
    both = traffic.of_layer(SHAPE, "ring", 2, 1, inner=4)
    ring = [move.bytes for move in both.forward if move.op == "send"]
    assert ring == [2 * 64 * 64 // 8 * 4]
    assert both.sent < alone.sent


def test_a_step_sums_every_gradient():
    moves = traffic.of_step(SHAPE, "ring", 4, 2)
    sums = [move.bytes for move in moves.backward if move.op == "all_reduce"]
    assert sum(sums) == SHAPE.nbytes()
    assert [move.bytes for move in moves.forward[-2:]] == [4, 8]


@pytest.mark.parametrize("method", ["ring", "ulysses"])
def test_activations_fall_with_the_ranks_and_grow_with_the_sequence(method):
    shape = GPTShape(sequence=8192, width=64, heads=16)
    by_ranks = [memory.activations(shape, method, p, 1, 4096) for p in (2, 4, 8)]
    assert by_ranks[0] == 2 * by_ranks[1] == 4 * by_ranks[2]
    assert memory.activations(shape, method, 2, 1, 8192) == 2 * by_ranks[0]
    assert memory.travelling(shape, 4, 1, 4096) == 4 * 2 * 1024 * 64 * 4
    assert memory.travelling(shape, 2, 1, 4096) == 3 * 2 * 2048 * 64 * 4
    assert memory.travelling(shape, 1, 1, 4096) == 0


@pytest.mark.parametrize(
    ("method", "options", "words"),
    [
        ("ulises", {}, "No method is called 'ulises'. Choose one of ring, ulysses."),
        ("ulysses", {"inner": 2}, "Inner ranks are those of Ulysses inside a ring."),
        ("ring", {"sequence": 30}, "A sequence has 30 tokens; 4 ranks cannot share them equally."),
        ("ring", {"inner": 3}, "A sequence has 64 tokens; 12 ranks cannot share them equally."),
    ],
)
def test_what_does_not_divide_is_refused(method, options, words):
    for function in (traffic.of_layer, memory.activations):
        with pytest.raises(ValueError, match=words):
            function(SHAPE, method, 4, 1, **options)


def test_other_refusals():
    with pytest.raises(ValueError, match="What masks of dropout keep is not counted here."):
        memory.activations(GPTShape(dropout=0.1), "ring", 2, 1)
    with pytest.raises(ValueError, match="No method is called 'dp'. Choose one of ring, ulysses"):
        traffic.published_layer("dp", 8, 8, 2)
    with pytest.raises(ValueError, match="An attention has 16 heads; 32 ranks cannot share"):
        traffic.of_layer(SHAPE, "ulysses", 32, 1)
