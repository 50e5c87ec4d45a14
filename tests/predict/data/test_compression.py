"""Predicted bytes and times of compressed exchanges: by hand, and against published figures."""

import pytest

from lib.predict.collectives.formulas import time_of
from lib.predict.data import compression
from lib.predict.data.compression import Call
from lib.predict.shape import GPTShape


def test_by_hand():
    shapes = [(10, 20), (20,)]  # 220 entries
    assert compression.plain(shapes) == [Call("all_reduce", 880)]
    assert compression.plain(shapes, itemsize=8) == [Call("all_reduce", 1760)]
    assert compression.top_k(shapes, 4, 0.01) == [Call("all_gather", 4 * 3 * (4 + 4))]
    assert compression.quantized(shapes, 4, 3, block=100) == [Call("all_gather", 4 * (83 + 3 * 4))]
    assert compression.sign(shapes, 4) == [Call("all_gather", 4 * (28 + 2 * 4))]
    first, second = Call("all_reduce", (2 * 10 + 20) * 4), Call("all_reduce", 2 * 20 * 4)
    assert compression.power_sgd(shapes, 4, 2) == [first, second]
    assert compression.power_sgd([(20,), ()], 4, 2) == [Call("all_reduce", 21 * 4)]
    assert compression.power_sgd([(10, 20)], 4, 2, itemsize=2) == [
        Call("all_reduce", 40), Call("all_reduce", 80)]  # fmt: skip
    assert compression.local_sgd(shapes, steps=11, every=4) == compression.plain(shapes) * 2
    assert compression.residual_bytes(shapes) == 880
    assert compression.power_sgd_bytes(shapes, 2) == (10 * 20 + 2 * 20) * 4


def test_what_one_percent_is():
    counts = {(700, 0.01): 7, (100, 0.07): 7, (701, 0.01): 8, (3, 0.01): 1, (5, 1.0): 5}
    assert {key: compression.kept_entries(*key) for key in counts} == counts


def test_a_matrix_is_cut_where_that_is_less():
    assert compression.low_rank((64, 3, 3, 3), 4) == (64, 27, 4)
    assert compression.low_rank((4, 4), 4) is None  # 2·16 is more than 16
    assert compression.low_rank((4, 4), 2) is None  # 16 is not less than 16
    assert compression.low_rank((5, 4), 2) == (5, 4, 2)
    assert compression.low_rank((64,), 4) is None and compression.low_rank((), 4) is None
    assert compression.low_rank((2, 1000), 8) is None  # rank 2 at most, and that is all of it


def resnet18():
    """The shapes of ResNet-18 for CIFAR-10 (He et al. 2015, with a first convolution of 3 × 3)."""
    shapes, before = [(64, 3, 3, 3), (64,), (64,)], 64
    for width in (64, 128, 256, 512):
        for _ in range(2):
            shapes += [(width, before, 3, 3), (width,), (width,)]
            shapes += [(width, width, 3, 3), (width,), (width,)]
            if before != width:
                shapes += [(width, before, 1, 1), (width,), (width,)]
            before = width
    return [*shapes, (10, 512), (10,)]


def test_powersgd_on_resnet18_as_published():
    """Vogels et al. 2019 (arXiv 1905.13727), Table 3: 1023, 4, 8, 14 MB an epoch; 243, 136, 72.

    An epoch there: 50,000 pictures on 16 workers of 128, so 24 whole steps; MB of 2^20 bytes.
    """
    whole = compression.plain(resnet18())[0].bytes
    assert round(24 * whole / 2**20) == 1023
    for rank, ratio, megabytes in ((1, 243, 4), (2, 136, 8), (4, 72, 14)):
        cut = sum(call.bytes for call in compression.power_sgd(resnet18(), 16, rank))
        assert round(whole / cut) == ratio and round(24 * cut / 2**20) == megabytes


GPT = [parameter.shape for parameter in GPTShape().parameters]


@pytest.mark.parametrize("ranks", [1, 2, 4, 50])
def test_what_goes_on_the_wire(ranks):
    whole = compression.plain(GPT)[0].bytes
    assert compression.sent(compression.plain(GPT), ranks) == 2 * (ranks - 1) / ranks * whole
    calls = compression.top_k(GPT, ranks, 0.01)
    assert compression.sent(calls, ranks) == (ranks - 1) * calls[0].bytes / ranks
    calls = compression.power_sgd(GPT, ranks, 4)
    both = sum(call.bytes for call in calls)
    assert compression.sent(calls, ranks) == pytest.approx(2 * (ranks - 1) / ranks * both)


@pytest.mark.parametrize(
    ("method", "about"),
    [
        (lambda ranks: compression.top_k(GPT, ranks, 0.01), 100),  # 8 bytes of each 400
        (lambda ranks: compression.quantized(GPT, ranks, 4), 16),  # 4 bits of each 32
        (lambda ranks: compression.sign(GPT, ranks), 64),  # 1 bit of each 32
    ],
)
def test_gathered_messages_are_more_than_a_sum_on_many_ranks(method, about):
    """The count of ranks at which both send the same, and one more or less on either side."""
    payload, whole = method(1)[0].bytes, compression.plain(GPT)[0].bytes
    even = compression.break_even(payload, whole)
    assert even == pytest.approx(about, rel=0.05)
    plain, small = compression.plain(GPT), int(even)
    assert compression.sent(method(small), small) <= compression.sent(plain, small)
    assert compression.sent(method(small + 1), small + 1) > compression.sent(plain, small + 1)


def test_seconds_are_those_of_the_calls():
    link = {"alpha": 1e-5, "beta": 1 / 1e10}
    calls = compression.power_sgd(GPT, 8, 4)
    assert len(calls) == 2
    want = sum(time_of("all_reduce", 8, call.bytes, **link) for call in calls)
    assert compression.seconds(calls, 8, **link) == want
    # Twice the rounds: on a fast link a small model is slower compressed than whole.
    fast = {"alpha": 1e-5, "beta": 1 / 1e12}
    assert compression.seconds(calls, 8, **fast) > compression.seconds(
        compression.plain(GPT), 8, **fast
    )
    assert compression.seconds(calls, 8, **link) < compression.seconds(
        compression.plain(GPT), 8, **link
    )
