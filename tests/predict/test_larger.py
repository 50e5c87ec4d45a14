"""Which size of a small run stands for which: by name, by product, as a bucket, as a flat shard."""

import pickle
from dataclasses import replace
from itertools import accumulate

import pytest

from lib.predict import step
from lib.predict.data.ddp_step import gradients_per_bucket, same_buckets
from lib.predict.larger import Larger
from lib.predict.shape import GPTShape, MLPShape

SMALL = GPTShape(vocabulary=70, sequence=20, width=62, heads=2, layers=2)
LARGE = GPTShape(vocabulary=50257, sequence=1024, width=1600, heads=25, layers=2)
EVEN = replace(SMALL, width=32, hidden=128)  # sums of its sizes coincide
GPT = Larger(SMALL, LARGE, batch=(14, 8), microbatches=2)
CHAIN = Larger(MLPShape((96,) * 5, bias=False), MLPShape((8192,) * 5, bias=False), (64, 4096))


@pytest.mark.parametrize(
    "size, large",
    [
        (62, 1600), (2, 25), (31, 64), (248, 6400), (70, 50257), (186, 4800), (3, 3), (20, 1024),
        (14, 8), (7, 4), (14 * 20, 8 * 1024), (7 * 20, 4 * 1024), (7 * 2, 8), (1, 1), (0, 0),
    ],
)  # fmt: skip
def test_a_size_is_found_by_what_it_is(size, large):
    if size == 14:  # the batch, and a microbatch times the heads
        with pytest.raises(ValueError, match=r"14 entries stands for 8 \(batch\) or for 100"):
            GPT.size(size)
    else:
        assert GPT.size(size) == large


def test_indices_grow_with_batch_and_sequence_alone():
    assert GPT.shape((14, 20), index=True) == (8, 1024)
    assert GPT.shape((280,), index=True) == (8192,)
    assert GPT.shape((70,), index=True) == (70,)
    assert CHAIN.shape((256,), index=True) == (256,)


def test_grouped_heads_and_rotary_positions_have_sizes_of_their_own():
    options = {"heads": 6, "kv_heads": 2, "positions": "rotary"}
    small = replace(SMALL, width=84, hidden=336, **options)
    large = replace(LARGE, width=4096, hidden=16384, heads=32, kv_heads=8, positions="rotary")
    larger = Larger(small, large, (9, 8))
    pairs = {2: 8, 5: 6, 3: 4, 14: 128, 140: 6144, 54: 256, 6: 32}
    assert {size: larger.size(size) for size in pairs} == pairs
    assert larger.flat(7) == 64 and larger.flat(20) == 1024
    assert "heads 32, hidden 16,384, vocabulary 50,257, kv_heads 8 (" in str(larger)
    for other in (
        replace(large, kv_heads=32), replace(large, kv_heads=1),
        replace(large, positions="learned"), replace(large, dropout=0.1),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="so their operations differ. Give a large shape with"):
            Larger(small, other, (9, 8))


def test_ranks_that_share_a_key_have_sizes_of_their_own():
    small = replace(SMALL, width=320, heads=16, hidden=456, kv_heads=1)
    large = replace(LARGE, width=8192, heads=64, hidden=32_768, kv_heads=1)
    larger = Larger(small, large, (9, 8), shared_by=(4,))
    pairs = {6: 18, 120: 2304, 40: 256, 4: 16}  # n + 2, (n + 2) K and 2 K, with n = H/4
    assert {size: larger.size(size) for size in pairs} == pairs
    with pytest.raises(ValueError, match="A dim of 120 entries is no size of the small run"):
        Larger(small, large, (9, 8)).size(120)


def numels(shape):
    return [parameter.numel for parameter in shape.parameters]


@pytest.mark.parametrize("limit", [1, 2**22, 25 * 2**20, 2**40])
def test_each_bucket_stands_for_the_large_models(limit):
    counts = gradients_per_bucket(LARGE, limit)
    sizes = [{p.name: p.numel for p in shape.parameters} for shape in (SMALL, LARGE)]
    order = step.arrivals(step.backward(SMALL, 1))
    ends = list(accumulate(counts))
    assert ends[-1] == len(order)
    for count, end in zip(counts, ends):
        small, large = (sum(size[name] for name in order[end - count : end]) for size in sizes)
        if count > 1 or len(counts) == len(order):  # norms arrive weight first, and are as large
            assert GPT.flat(small) == large


def test_flat_shards_are_padded():
    larger = Larger(SMALL, LARGE, (7, 8), shared_by=(4,))
    blocks = [
        [sum(p.numel for p in shape.parameters if p.block == n) for n in range(4)]
        for shape in (SMALL, LARGE)
    ]
    for small, large in zip(*blocks):
        assert larger.flat(-(-small // 4)) == -(-large // 4)
        assert larger.flat(small) == large
    ends = [sizes[0] + sizes[-1] for sizes in blocks]  # what FSDP's root keeps
    assert larger.flat(ends[0] // 4) == -(-ends[1] // 4)
    assert larger.shape((62, 62)) == larger.shape((248 // 4, 62)) == (1600, 1600)  # a share
    assert larger.flat(sum(numels(SMALL))) == sum(numels(LARGE))


def test_the_same_buckets():
    assert same_buckets(CHAIN.small, CHAIN.large, 2 * 8192**2 * 4) == 2 * 96**2 * 4
    for limit in (2**22, 25 * 2**20, 2**40):
        small = same_buckets(SMALL, LARGE, limit)
        assert gradients_per_bucket(SMALL, small) == gradients_per_bucket(LARGE, limit)
    wide = MLPShape((2, 100, 2, 2)), MLPShape((100, 2, 2, 100))
    with pytest.raises(ValueError, match="No limit divides the small model's 6 gradients"):
        same_buckets(*wide, 50)


def test_own_sizes_are_added_and_the_name_is_said():
    larger = Larger(
        CHAIN.small, CHAIN.large, (64, 4096), sizes={50: 1000}, name="a chain of layers"
    )
    assert larger.shape((50, 96)) == (1000, 8192) and larger.size(50, index=True) == 1000
    assert str(larger) == (
        "a chain of layers with width 8,192, batch 4,096 (run with width 96, batch 64)"
    )
    assert str(CHAIN).startswith("an MLP with width 8,192")
    uneven = Larger(MLPShape((6, 16, 3)), MLPShape((512, 512, 512)), (8, 4096))
    assert str(uneven) == (
        "an MLP with batch 4,096, 3 widths of 512 (run with batch 8, widths 6, 16 and 3)"
    )
    assert str(GPT).startswith("a GPT with batch 8, sequence 1,024, width 1,600, heads 25, hidden")
    assert pickle.loads(pickle.dumps(larger)) == larger == eval(repr(larger)) and hash(larger)


@pytest.mark.parametrize(
    "wrong, words",
    [
        (lambda: Larger(SMALL, CHAIN.large, (1, 1)), "A GPTShape cannot stand for a MLPShape"),
        (lambda: Larger(SMALL, GPTShape(layers=96), (2, 2)), "29 parameters in 4 blocks, and the "),
        (lambda: Larger(CHAIN.small, CHAIN.large, (96, 4096)), r"8,192 \(width 0\)|4,096 \(batch"),
        (lambda: Larger(CHAIN.small, CHAIN.large, (1, 8)), "batch of the small run is 1 and"),
        (lambda: Larger(CHAIN.small, CHAIN.large, (0, 8)), "whole number of at least 1, not 0"),
        (lambda: Larger(SMALL, LARGE, (7, 8), microbatches=2).size(7), "divided into 2 equal"),
        (lambda: Larger(SMALL, LARGE, (4, 16), microbatches=4).size(7), "microbatch of the"),
        (lambda: Larger(EVEN, LARGE, (7, 8)).flat(8416), r"8 parameters\) or for"),
        (lambda: CHAIN.size(97), "97 entries is no size of the small run"),
        (lambda: CHAIN.flat(96 * 96 + 1), "A tensor of one dim of 9,217 entries"),
        (lambda: CHAIN.shape((64, 96, 2)), r"Say it with Larger\(..., sizes=\{2: ...\}\)"),
    ],
)  # fmt: skip
def test_what_cannot_be_told_is_refused(wrong, words):
    with pytest.raises(ValueError, match=words):
        wrong()
