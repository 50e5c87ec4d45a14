"""Predicted traffic against algorithms acted out message by message, and against published figures.

`Act` keeps one NumPy array per rank and moves slices of it round by round: it counts what it really
copies, and at the end every rank must hold the sum. The formulas know nothing of it.
"""

import math
import re

import numpy as np
import pytest

from lib.predict.collectives import formulas
from lib.predict.collectives.formulas import (
    ALGORITHMS,
    all_reduce,
    collective,
    cost,
    fit,
    mean_sent,
)
from tests.every import every

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
        assert every(all_reduce(a, ranks, 4096).busiest >= least for a in ALGORITHMS)


def test_bad_questions_are_answered_in_a_sentence():
    for call, words in [
        (
            lambda: all_reduce("star", 4, 8),
            "No all-reduce is called 'star'. Choose one of central, everyone",
        ),
        (
            lambda: all_reduce("ring", 0, 8),
            "The number of ranks must be a whole number of at least 1, not 0.",
        ),
        (lambda: all_reduce("ring", 4, 8, node=2), "Only two_level uses nodes"),
        (
            lambda: all_reduce("two_level", 6, 8, node=4),
            "There are 6 ranks; nodes of 4 cannot share them equally.",
        ),
        (
            lambda: all_reduce("two_level", 6, 8, node=0),
            "There are 6 ranks; nodes of 0 cannot share them equally.",
        ),
        (lambda: collective("all_sum", 4, 8), "No collective is called 'all_sum'"),
        (
            lambda: collective("all_reduce", 0, 8),
            "The number of ranks must be a whole number of at least 1, not 0.",
        ),
        (lambda: cost("square", 4, 8, 1, 1), "No cost model is called 'square'"),
        (lambda: fit([8, 8], [1, 1]), "at least two sizes"),
        (lambda: fit([8, 16], [1, 0]), "a time above 0"),
        (lambda: formulas.training_days(1, 1, 1, 1, 52), "above 0 and at most 1, not 52"),
    ]:
        with pytest.raises(ValueError, match=re.escape(words)):
            call()


def test_the_cost_of_a_ring_is_its_bytes_and_the_latency_of_its_rounds():
    latency, nbytes = 3e-6, 1_000_000
    alone = cost("bytes", 8, nbytes, latency, 1e-9)
    assert cost("ring", 8, nbytes, latency, 1e-9) == pytest.approx(alone + 14 * latency)
    assert cost("ring", 8, nbytes, 0.0, 1e-9) == pytest.approx(alone)


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_what_ranks_send_on_average_is_what_a_ring_passes_on(ranks):
    """A broadcast's buffer, and a reduce's sum, cross all but one link of the ring."""
    for op in ("broadcast", "reduce"):
        assert ranks * mean_sent(op, ranks, 120) == pytest.approx(120 * (ranks - 1))
    for op in ("all_reduce", "all_gather", "reduce_scatter"):
        assert mean_sent(op, ranks, 120) == collective(op, ranks, 120).bytes
