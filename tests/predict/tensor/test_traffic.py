"""Predicted shares and bytes of tensor parallelism, from shapes alone, and against publications."""

import pytest

from lib.predict.collectives.exchange import sent_bytes
from lib.predict.shape import GPTShape
from lib.predict.tensor import memory, traffic
from lib.predict.tensor.shapes import parameters_of_a_rank, share_of

SHAPE = GPTShape(vocabulary=64, sequence=16, width=32, heads=8, layers=3)


def test_a_layer_sends_what_four_all_reduces_send():
    """Narayanan et al. 2021, section 3.2: 8·b·s·h·(t - 1)/t numbers for each layer."""
    b, s, h, t = 2, 16, 32, 4
    found = sent_bytes(traffic.of_step(SHAPE, t, b, vocabulary=False))
    assert found == pytest.approx(4 * SHAPE.layers * 8 * b * s * h * (t - 1) / t)


def test_the_vocabulary_adds_two_of_x_and_two_small_ones():
    with_it, without = (traffic.of_step(SHAPE, 4, 2, vocabulary=v) for v in (True, False))
    added = sorted(e.bytes for e in with_it)
    for exchange in without:
        added.remove(exchange.bytes)
    tokens = 2 * 16
    assert added == [4 * tokens, 8 * tokens, 4 * tokens * 32, 4 * tokens * 32]


def test_split_loss_sends_less_than_whole_logits():
    shape = GPTShape(vocabulary=50_257, sequence=1024, width=768, heads=12, layers=1)
    whole = traffic.gathered_logits(shape, 4, 1)
    tokens = 1024
    assert whole.bytes == 4 * tokens * 50_260
    split = sum(e.bytes for e in traffic.of_step(shape, 4, 1) if e.bytes <= 8 * tokens)
    assert split == 12 * tokens


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_the_shares_of_all_ranks_are_the_model(ranks):
    whole = {p.name: p.numel for p in SHAPE.parameters}
    for p in parameters_of_a_rank(SHAPE, ranks):
        end = p.name.split(".", 2)[2]
        replicated = "norm" in end or end in (
            "positions.weight", "attention.proj.bias", "mlp.down.bias"
        )  # fmt: skip
        assert p.numel * (1 if replicated else ranks) == whole[p.name], p.name


def test_ranks_beyond_the_keys_keep_copies():
    shape = GPTShape(width=32, heads=8, kv_heads=2)
    assert share_of(shape, 8)[:4] == (8, 1, 1, 4)
    rows = {p.name: p.shape for p in parameters_of_a_rank(shape, 8)}
    assert rows["blocks.1.attention.qkv.weight"] == (3 * 4, 32)
    shared = [e for e in traffic.of_step(shape, 8, 1) if e.ranks == 4]
    assert [e.bytes for e in shared] == [4 * 8, 4 * 8 * 32] * shape.layers


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"heads": 4}, "An attention has 4 heads; 8 ranks cannot share them equally."),
        ({"hidden": 100}, "The hidden layer has 100 entries; 8 ranks cannot share them equally."),
        ({"width": 48, "heads": 24, "kv_heads": 3}, "8 ranks split an attention; 3 heads of keys"),
        ({"width": 48, "heads": 24, "kv_heads": 12}, "An attention has 12 heads of keys; 8 ranks"),
    ],
)
def test_what_does_not_divide_is_refused_by_name(change, words):
    with pytest.raises(ValueError, match=words):
        traffic.of_step(GPTShape(**{"width": 32, "heads": 8, **change}), 8, 1)


def test_korthikantis_layer():
    """Table 4 of arXiv 2205.05198 has 22B on 8 ranks; 34 + 5as/h bytes for each number on one."""
    one = memory.published_layer(6144, 64, 2048, 4, 1)
    assert one == 2048 * 4 * 6144 * (34 + 5 * 64 * 2048 / 6144)
    eight = memory.published_layer(6144, 64, 2048, 4, 8)
    assert eight == 2048 * 4 * 6144 * (10 + 24 / 8 + 5 * 64 * 2048 / 6144 / 8)
    assert pytest.approx(
        32 * memory.published_layer(8192, 64, 1024, 4, 8, scores=False)
    ) == 32 * 4 * 8192 * 1024 * (10 + 24 / 8)


def test_our_layer_keeps_what_the_published_one_keeps_without_masks():
    """In 2 bytes: 8 of the 10 bytes that stay whole (2 are masks), 2·(3 + 1 + 2·4) of the 24."""
    one, two = (GPTShape(width=32, heads=8, layers=n, sequence=16) for n in (1, 2))
    for ranks in (1, 2, 4):
        layer = memory.activations(two, ranks, 2, itemsize=2) - memory.activations(
            one, ranks, 2, itemsize=2
        )
        statistics = 2 * 16 * (8 + 4 * 8 // ranks)  # of two norms, and of each head's softmax
        assert layer - statistics == 2 * 16 * 32 * (8 + 24 / ranks)


def test_masks_between_the_split_parts_are_whole_on_every_rank():
    """Two of a layer and one of the embedding; of attention three numbers a pair, of its heads."""
    quiet, noisy = (GPTShape(width=32, heads=8, layers=3, dropout=p) for p in (0.0, 0.1))
    tokens, s = 2 * quiet.sequence, quiet.sequence
    for ranks in (1, 2, 4):
        more = memory.activations(noisy, ranks, 2) - memory.activations(quiet, ranks, 2)
        heads = 8 // ranks
        inside = tokens * heads * 4 * (3 * s - 1) + s * s  # the softmax's statistics are not kept
        assert more == 4 * tokens * 7 * 32 + 3 * inside
