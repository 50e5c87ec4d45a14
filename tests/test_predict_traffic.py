"""Traffic on paper against algorithms acted out message by message, and against published figures.

`Act` keeps one NumPy array per rank and moves slices of it round by round: it counts what it really
copies, and at the end every rank must hold the sum. The formulas know nothing of it.
"""

import math
import re

import numpy as np
import pytest

from lib.predict import traffic
from lib.predict.hardware import sweep
from lib.predict.traffic import ALGORITHMS, all_reduce, collective, cost, fit, time_of

RANKS = [*range(1, 10), 12, 16, 17]
NUMELS = [0, 1, 3, 7, 16, 23, 64, 1001]


class Act:
    """Ranks with one array each; a round is a list of messages that leave at the same time."""

    def __init__(self, ranks, numel):
        self.n, self.numel = ranks, numel
        self.data = np.random.default_rng(0).integers(0, 1000, (ranks, numel))
        self.want = self.data.sum(axis=0)
        self.rounds = self.critical = 0
        self.sent, self.received = [0] * ranks, [0] * ranks

    def round(self, messages, add=True):
        """messages: (source, destination, slice); what arrives is added, or replaces."""
        parcels = [(a, b, part, self.data[a, part].copy()) for a, b, part in messages]
        for a, b, part, parcel in parcels:
            self.sent[a] += len(parcel)
            self.received[b] += len(parcel)
            self.data[b, part] = self.data[b, part] + parcel if add else parcel
        self.rounds += 1
        self.critical += max((len(parcel) for *_, parcel in parcels), default=0)

    def cuts(self, pieces):
        """The slices of numel elements cut into pieces, as NumPy cuts."""
        parts = np.array_split(np.arange(self.numel), pieces)
        ends = np.cumsum([0] + [len(part) for part in parts])
        return [slice(int(a), int(b)) for a, b in zip(ends, ends[1:])]


ALL = slice(None)


def central(act):
    for rank in range(1, act.n):
        act.round([(rank, 0, ALL)])
    for rank in range(1, act.n):
        act.round([(0, rank, ALL)], add=False)


def everyone(act):
    mine = act.data.copy()
    total = act.data.copy()
    for k in range(1, act.n):
        before = act.data
        act.data = mine.copy()  # each round sends the rank's own numbers, not the sum so far
        act.round([(r, (r + k) % act.n, ALL) for r in range(act.n)])
        total += act.data - mine
        act.data = before
    act.data = total


def ring(act, ranks=None):
    ranks = ranks or list(range(act.n))
    n, cut = len(ranks), act.cuts(len(ranks))
    for k in range(n - 1):
        act.round([(ranks[r], ranks[(r + 1) % n], cut[(r - k) % n]) for r in range(n)])
    for k in range(n - 1):
        hop = [(ranks[r], ranks[(r + 1) % n], cut[(r + 1 - k) % n]) for r in range(n)]
        act.round(hop, add=False)


def tree(act):
    masks = [1 << k for k in range((act.n - 1).bit_length())]
    for mask in masks:
        leaving = [r for r in range(act.n) if r & mask and not r & (mask - 1)]
        act.round([(r, r - mask, ALL) for r in leaving])
    for mask in reversed(masks):
        joining = [r for r in range(act.n) if r & mask and not r & (mask - 1)]
        act.round([(r - mask, r, ALL) for r in joining], add=False)


def halving_doubling(act):
    p = 2 ** int(math.log2(act.n))
    extra = range(p, act.n)
    if extra:
        act.round([(r, r - p, ALL) for r in extra])
    cut = act.cuts(p)
    held = dict.fromkeys(range(p), (0, p))  # the pieces a rank still works on

    def span(low, high):
        return slice(cut[low].start, cut[high - 1].stop)

    history = []
    distance = p // 2
    while distance:
        messages = []
        history.append(dict(held))
        for r in range(p):
            low, high = held[r]
            middle = (low + high) // 2
            lower, upper = (low, middle), (middle, high)
            keep, give = (upper, lower) if r & distance else (lower, upper)
            messages.append((r, r ^ distance, span(*give)))
            held[r] = keep
        act.round(messages)
        distance //= 2
    distance = 1
    while distance < p:
        act.round([(r, r ^ distance, span(*held[r])) for r in range(p)], add=False)
        held = history.pop()
        distance *= 2
    if extra:
        act.round([(r - p, r, ALL) for r in extra], add=False)


def two_level(act, node):
    leaders = list(range(0, act.n, node))
    for k in range(1, node):
        act.round([(leader + k, leader, ALL) for leader in leaders])
    ring(act, leaders)
    for k in range(1, node):
        act.round([(leader, leader + k, ALL) for leader in leaders], add=False)


PLAYS = {play.__name__: play for play in (central, everyone, ring, tree, halving_doubling)}


def same(act, counted, itemsize):
    assert (act.data == act.want).all(), "the acted algorithm is no all-reduce"
    assert counted.rounds == act.rounds
    assert counted.sent == tuple(itemsize * n for n in act.sent)
    assert counted.received == tuple(itemsize * n for n in act.received)
    assert counted.critical_bytes == itemsize * act.critical
    assert counted.total == itemsize * sum(act.sent) == sum(counted.received)
    assert counted.busiest == itemsize * max(act.sent + act.received)


@pytest.mark.parametrize("algorithm", PLAYS)
@pytest.mark.parametrize("ranks", RANKS)
def test_formula_equals_the_acted_algorithm(algorithm, ranks):
    for numel in NUMELS:
        act = Act(ranks, numel)
        PLAYS[algorithm](act)
        same(act, all_reduce(algorithm, ranks, numel, itemsize=2), 2)


@pytest.mark.parametrize("ranks", RANKS)
def test_two_level_equals_the_acted_algorithm_for_every_node_size(ranks):
    for node in (d for d in range(1, ranks + 1) if ranks % d == 0):
        for numel in NUMELS:
            act = Act(ranks, numel)
            two_level(act, node)
            same(act, all_reduce("two_level", ranks, numel, itemsize=8, node=node), 8)


@pytest.mark.parametrize(("ranks", "node"), [(1, 1), (4, 2), (6, 2), (7, 1), (8, 2), (16, 4)])
def test_two_level_picks_the_largest_divisor_up_to_the_root(ranks, node):
    assert all_reduce("two_level", ranks, 97) == all_reduce("two_level", ranks, 97, node=node)


def test_acting_notices_a_wrong_algorithm():
    act = Act(4, 16)
    act.round([(0, 1, ALL)])
    with pytest.raises(AssertionError):
        same(act, all_reduce("ring", 4, 16), 4)


def test_every_algorithm_names_a_source_and_one_rank_moves_nothing():
    assert set(ALGORITHMS) == {*PLAYS, "two_level"}
    for algorithm in ALGORITHMS:
        alone = all_reduce(algorithm, 1, 100)
        assert (alone.rounds, alone.total, alone.critical_bytes, alone.busiest) == (0, 0, 0, 0)
        assert len(alone.source) > 20


def test_no_all_reduce_that_needs_all_sums_moves_less_than_the_ring():
    """2(n-1)/n S a rank is the least for the busiest rank (Patarasuk and Yuan 2009, theorem 1)."""
    for ranks in (2, 4, 8, 16):
        least = 2 * (ranks - 1) * 4096 * 4 // ranks
        assert all_reduce("ring", ranks, 4096).busiest == least
        assert all_reduce("halving_doubling", ranks, 4096).busiest == least
        assert all(all_reduce(a, ranks, 4096).busiest >= least for a in ALGORITHMS)


def test_bad_questions_are_answered_in_a_sentence():
    for call, words in [
        (lambda: all_reduce("star", 4, 8), "No all-reduce is called 'star': central, everyone"),
        (lambda: all_reduce("ring", 0, 8), "0 ranks cannot reduce 8 elements"),
        (lambda: all_reduce("ring", 4, 8, node=2), "Only two_level knows nodes"),
        (lambda: all_reduce("two_level", 6, 8, node=4), "6 ranks do not fill nodes of 4"),
        (lambda: all_reduce("two_level", 6, 8, node=0), "6 ranks do not fill nodes of 0"),
        (lambda: collective("all_sum", 4, 8), "No collective is called 'all_sum'"),
        (lambda: collective("all_reduce", 0, 8), "at least 0 bytes and 1 rank"),
        (lambda: cost("square", 4, 8, 1, 1), "No cost model is called 'square'"),
        (lambda: fit([8, 8], [1, 1]), "two or more sizes"),
        (lambda: fit([8, 16], [1, 0]), "a time above 0"),
        (lambda: traffic.training_days(1, 1, 1, 1, 52), "above 0 up to 1"),
    ]:
        with pytest.raises(ValueError, match=re.escape(words)):
            call()


# --- seconds


def test_seconds_of_a_round_is_its_longest_message():
    """Five elements on two ranks: pieces of 3 and 2; each of the two rounds lasts for the 3."""
    counted = all_reduce("ring", 2, 5, itemsize=1)
    assert counted.sent == (5, 5)
    assert traffic.seconds(counted, alpha=10.0, beta=0.5) == 2 * 10.0 + (3 + 3) * 0.5


@pytest.mark.parametrize("ranks", range(1, 9))
def test_time_of_an_all_reduce_is_the_counted_ring_where_the_ranks_divide(ranks):
    counted = all_reduce("ring", ranks, 840, itemsize=4)
    expected = traffic.seconds(counted, 2e-6, 1e-9)
    assert time_of("all_reduce", ranks, 3360, alpha=2e-6, beta=1e-9) == pytest.approx(expected)


def test_a_reduce_scatter_and_an_all_gather_are_an_all_reduce():
    for ranks in (1, 2, 5, 8):
        halves = [
            time_of(op, ranks, 4000, alpha=3.0, beta=0.1) for op in ("reduce_scatter", "all_gather")
        ]
        assert sum(halves) == pytest.approx(time_of("all_reduce", ranks, 4000, alpha=3.0, beta=0.1))


def test_factors_are_those_of_nccl_tests():
    """nccl-tests, doc/PERFORMANCE.md: AR 2(n-1)/n; RS, AG, A2A (n-1)/n; broadcast, reduce 1."""
    for op, factor in {
        "all_reduce": 1.75, "reduce_scatter": 0.875, "all_gather": 0.875, "all_to_all": 0.875,
        "broadcast": 1, "reduce": 1, "scatter": 1, "gather": 1, "send": 1, "recv": 1,
    }.items():  # fmt: skip
        assert collective(op, 8, 1000).factor == factor
        assert collective(op, 8, 1000).bytes == factor * 1000
    assert collective("all_reduce", 8, 1000).rounds == 14
    assert {collective(op, 8, 0).rounds for op in ("all_gather", "all_to_all", "gather")} == {7}
    assert collective("send", 2, 1000).rounds == 1
    assert collective("barrier", 8, 1000)[:2] == (14, 0.0)
    for op in ("all_reduce", "all_gather", "broadcast", "gather", "barrier"):
        assert collective(op, 1, 1000)[:2] == (0, 0), "alone, nobody waits for anybody"


def test_bus_bandwidth_recomputes_from_published_times():
    """The A100 table prints time and bus bandwidth: each from the other, to its rounding."""
    published = {1048576: 18.00, 8388608: 109.93, 536870912: 222.72, 17179869184: 234.89}
    measured = sweep("A100 8-GPU all-reduce")
    times = dict(zip(measured.nbytes, measured.seconds))
    for nbytes, busbw in published.items():
        found = collective("all_reduce", 8, nbytes).bytes / times[nbytes] / 1e9
        assert found == pytest.approx(busbw, rel=2e-3)


def test_three_cost_models_grow_as_they_are_called():
    def at(model, ranks, alpha=0.0):
        return cost(model, ranks, 1000, alpha, 1.0)

    assert [at("linear", n) for n in (2, 4, 8)] == [2000, 6000, 14000]
    assert [at("logarithmic", n) for n in (2, 4, 8, 9)] == [2000, 4000, 6000, 8000]
    assert [at("constant", n) for n in (2, 4, 8)] == [1000, 1500, 1750]
    assert at("constant", 10**6) < 2000, "a ring's bytes stay under 2 S however many ranks"
    assert at("linear", 8, alpha=5.0) == 14000 + 14 * 5.0
    assert at("logarithmic", 8, alpha=5.0) == 6000 + 6 * 5.0
    assert at("constant", 8, alpha=5.0) == 1750, "blind to latency, and that is its mistake"


# --- fits


def test_fit_finds_the_line_it_was_given():
    sizes = [2.0**k for k in range(10, 30)]
    found = fit(sizes, [20e-6 + 3e-12 * s for s in sizes])
    assert (found.alpha, found.beta) == pytest.approx((20e-6, 3e-12))
    assert found.worst < 1e-9
    assert str(found) == "20 µs + bytes at 333.3 GB/s, off by at most 0%"


def test_no_line_near_the_fitted_one_has_smaller_relative_errors():
    measured = sweep("H200 8-GPU all-reduce")
    size, time = np.array(measured.nbytes, float), np.array(measured.seconds)

    def error(alpha, beta):
        return (((alpha + beta * size) / time - 1) ** 2).sum()

    found = fit(size, time)
    best = error(found.alpha, found.beta)
    for a in (0.98, 1.0, 1.02):
        for b in (0.98, 1.0, 1.02):
            assert error(a * found.alpha, b * found.beta) >= best


def test_fit_never_gives_a_time_below_zero():
    falling = fit([1, 2, 3], [3.0, 2.0, 1.0])  # larger is faster: only noise, or a switch
    assert falling.beta == 0 and falling.alpha > 0
    late = fit([1, 2, 4], [0.1, 1.1, 3.1])  # a line that would start below 0
    assert late.alpha == 0 and late.beta > 0
    assert "GB/s" in str(late) and "no measurable time a byte" in str(falling)


@pytest.mark.parametrize(
    ("name", "alpha", "busbw", "worst"),
    [
        ("A100 8-GPU all-reduce", 56, 211, 0.36),
        ("H200 8-GPU all-reduce", 41, 444, 0.21),
    ],
)
def test_fits_of_published_sweeps_recompute(name, alpha, busbw, worst):
    measured = sweep(name)
    found = fit(measured.nbytes, measured.seconds)
    factor = collective("all_reduce", measured.ranks, 1).factor
    assert round(found.alpha * 1e6) == alpha
    assert round(factor / found.beta / 1e9) == busbw
    assert round(found.worst, 2) == worst


def test_the_b200_fit_does_not_recompute_from_the_five_sizes_we_have():
    """Over its whole sweep: 53 µs, 718 GB/s, 37 %. We hold 5 of the 20 sizes: 49, 741, 29 %."""
    measured = sweep("B200 8-GPU all-reduce")
    found = fit(measured.nbytes, measured.seconds)
    assert len(measured.nbytes) == 5
    assert found.alpha * 1e6 == pytest.approx(53, rel=0.10)
    assert 1.75 / found.beta / 1e9 == pytest.approx(718, rel=0.05)
    assert 0.25 < found.worst < 0.37


def test_one_line_is_off_by_a_fifth_and_more_wherever_nccl_switches_algorithms():
    """Over PCIe nothing switches between 256 KiB and 1 GiB, and there one line is good to 3 %."""
    worst = {}
    for name in ("A100 8-GPU", "H200 8-GPU", "B200 8-GPU", "B200 32-GPU", "PCIe 4-GPU"):
        measured = sweep(f"{name} all-reduce")
        worst[name] = fit(measured.nbytes, measured.seconds).worst
    assert worst.pop("PCIe 4-GPU") < 0.04
    assert all(error > 0.20 for error in worst.values())


# --- training time


def test_narayanan_34_and_84_days():
    """arXiv 2104.04473, section 5.1, equation 4: 8 operations (recomputation), X as measured."""
    gpt3 = traffic.training_days(175e9, 300e9, 1024, 140e12, 1.0, factor=8)
    trillion = traffic.training_days(1008e9, 450e9, 3072, 163e12, 1.0, factor=8)
    assert gpt3 == pytest.approx(33.9, abs=0.05)
    assert trillion == pytest.approx(83.9, abs=0.05)
    assert (round(gpt3), round(trillion)) == (34, 84)
    share = traffic.training_days(175e9, 300e9, 1024, 312e12, 140 / 312, factor=8)
    assert share == pytest.approx(gpt3), "rate × efficiency is the measured rate"


def test_palm_trains_a_day_of_tokens_in_a_day():
    """arXiv 2204.02311, table 3: 238.3K tokens/s, 6144 TPUv4 of 275 TFLOP/s, MFU 45.7, 46.2 %."""
    tokens = 238.3e3 * 86400
    attention = 12 * 118 * 48 * 256 * 2048 / 540.35e9
    bare = traffic.training_days(540.35e9, tokens, 6144, 275e12, 0.457)
    whole = traffic.training_days(540.35e9, tokens, 6144, 275e12, 0.462, factor=6 + attention)
    assert bare == pytest.approx(1.0, rel=2e-3)
    assert whole == pytest.approx(1.0, rel=2e-3)


def test_opt_33_days():
    """metaseq chronicles: 4.30e23 operations on 1024 A100 at 147 TFLOP/s, about 33 days."""
    days = traffic.training_days(175e9, 300e9, 1024, 147e12, 1.0, factor=4.30e23 / 175e9 / 300e9)
    assert days == pytest.approx(33, abs=0.1)


def test_deepseek_days_follow_from_its_hours():
    """DeepSeek-V3: 180K H800 hours for each trillion tokens are 3.7 days on 2048 (3.66)."""
    hours = 2664e3 / 14.8
    rate = 6 * 37e9 * 1e12 / (hours * 3600)  # what 37e9 active parameters make of those hours
    days = traffic.training_days(37e9, 1e12, 2048, rate, 1.0)
    assert hours == pytest.approx(180e3)
    assert days == pytest.approx(3.66, abs=0.005)
    assert rate / 989e12 == pytest.approx(0.346, abs=0.001), "of the dense bf16 peak of an H800"
