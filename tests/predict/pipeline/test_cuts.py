"""Partitions: by hand, and against every partition there is."""

from itertools import combinations, product
from math import inf

import numpy as np
import pytest

from lib.predict.pipeline.cuts import (
    Layer,
    Partition,
    Stage,
    by_channel,
    equal,
    exact,
    greedy,
    mixed,
    stage_time,
    with_replicas,
)


def random_layers(seed, most=6):
    rng = np.random.default_rng(seed)
    return [
        Layer(*(float(x) for x in rng.integers(1, 20, 3)), channels=int(rng.integers(1, 9)))
        for _ in range(rng.integers(2, most + 1))
    ]


def every_cut(first, last):
    """Every way to cut layers first .. last-1 into stages: lists of (i, j)."""
    inside = range(first + 1, last)
    for count in range(last - first):
        for cuts in combinations(inside, count):
            yield list(zip((first, *cuts), (*cuts, last)))


def every_partition(count, ranks, shares):
    """Every partition of `count` layers on at most `ranks` ranks."""
    for cuts in every_cut(0, count):
        for numbers in product(range(1, ranks + 1), repeat=len(cuts)):
            if sum(numbers) <= ranks:
                yield Partition(tuple(
                    Stage(i, j, n, shares if n > 1 else "") for (i, j), n in zip(cuts, numbers)
                ))  # fmt: skip


# --- text


@pytest.mark.parametrize("text", ["0:3", "0:3 | 3:6 x2 | 6:8 /4", "0:1 x16"])
def test_a_partition_prints_as_its_notation_and_reads_back(text):
    assert str(Partition.read(text)) == text
    assert Partition.read("0:3 | 3:4 /2").stages == (Stage(0, 3), Stage(3, 4, 2, "/"))


@pytest.mark.parametrize("text", ["", "3:6", "0:3 | 4:6", "0:3 | 3:3", "0:3 x0"])
def test_a_partition_with_holes_is_refused(text):
    with pytest.raises(ValueError, match="is not a stage|cannot stand here"):
        Partition.read(text)


def test_a_partition_says_how_it_is_run():
    partition = Partition.read("0:3 | 3:6 x2 | 6:8")
    assert (partition.lengths, partition.replicas) == ([3, 3, 2], [1, 2, 1])
    with pytest.raises(ValueError, match="The ranks of stage 3:6 /2 share its channels"):
        _ = Partition.read("0:3 | 3:6 /2").replicas


def test_fewer_layers_than_stages_are_refused():
    for rule in (equal, greedy, exact):
        with pytest.raises(ValueError, match="2 layers cannot fill 3 stages"):
            rule([1, 2], 3)


# --- by layer


def test_by_hand():
    times = [5, 1, 1, 1, 3, 3, 8, 2]
    assert str(equal(times, 3)) == "0:3 | 3:6 | 6:8"
    assert equal(times, 3).loads(times) == [7, 7, 10]
    assert str(greedy(times, 3)) == "0:4 | 4:6 | 6:8"
    assert exact(times, 3).time == 10 and equal(times, 5).loads(times) == [6, 2, 6, 8, 2]
    # a heavy last layer (the vocabulary): counting gives it company, the others do not
    heavy = [1] * 9 + [4]
    assert [rule(heavy, 4).time for rule in (equal, greedy, exact)] == [5, 4, 4]
    # the greedy walk cannot look ahead
    trap = [1, 1, 1, 3, 1]
    assert (str(greedy(trap, 3)), greedy(trap, 3).time) == ("0:2 | 2:4 | 4:5", 4)
    assert (str(exact(trap, 3)), exact(trap, 3).time) == ("0:3 | 3:4 | 4:5", 3)


@pytest.mark.parametrize("seed", range(40))
def test_the_exact_partition_is_the_best_of_all(seed):
    layers = random_layers(seed, most=8)
    for stages in range(1, len(layers) + 1):
        for bandwidth in (inf, 2.0, 0.5):
            best = min(
                Partition(tuple(Stage(*pair) for pair in cuts)).bottleneck(layers, bandwidth)
                for cuts in every_cut(0, len(layers))
                if len(cuts) == stages
            )
            found = exact(layers, stages, bandwidth)
            assert len(found.stages) == stages
            assert found.time == found.bottleneck(layers, bandwidth) == best
        plain = [layer.time for layer in layers]
        assert max(greedy(plain, stages).loads(plain)) >= exact(plain, stages).time
        assert len(greedy(plain, stages).stages) == len(equal(plain, stages).stages) == stages


# --- by channel, and mixed


def test_channels_by_hand():
    layers = [Layer(8.0, activation=30.0, channels=8), Layer(6.0, activation=12.0, channels=3)]
    # 4 ranks: 2 of 8 channels, 1 of 3; each sends and receives 3/4 of 30 and of 12, there and back
    assert stage_time(layers, Stage(0, 2, 4, "/")) == 8 / 4 + 6 / 3
    found = by_channel(layers, 4, bandwidth=6.0)
    assert str(found) == "0:2 /4"
    assert found.time == pytest.approx(2 + 2 + 2 * 0.75 * (30 + 12) / 6)
    assert str(by_channel(layers, 1)) == "0:2"


@pytest.mark.parametrize("seed", range(30))
def test_the_mixed_partition_is_the_best_of_all(seed):
    layers = random_layers(seed, most=5)
    for bandwidth in (inf, 10.0, 1.0):
        choices = every_partition(len(layers), 4, "/")
        best = min(partition.bottleneck(layers, bandwidth) for partition in choices)
        found = mixed(layers, 4, bandwidth)
        assert found.time == pytest.approx(best, rel=1e-12)
        assert sum(stage.ranks for stage in found.stages) <= 4
        assert found.time <= by_channel(layers, 4, bandwidth).time
        assert found.time <= exact(layers, min(4, len(layers)), bandwidth).time


def test_of_equally_fast_partitions_the_simplest_is_taken():
    assert str(with_replicas([1.0] * 6, [(3, inf)])) == "0:6 x3"  # and not 0:2 | 2:4 | 4:6
    slow = [Layer(4, 100, 10), Layer(8, 10, 10), Layer(1, 10, 1000), Layer(1, 5, 1000)]
    assert str(with_replicas(slow, [(4, 1.0)])) == "0:2 x2 | 2:4"  # 10 s for the message anyway
    assert str(mixed([2.0, 1.0, 1.0, 2.0, 4.0], 4)) == "0:2 | 2:4 | 4:5"
    assert str(exact([5, 1, 1, 1, 3, 3, 8, 2], 3)) == "0:3 | 3:6 | 6:8"  # 5, 9, 10 is as fast


def test_mixed_shares_channels_only_where_links_are_fast():
    layers = [Layer(4, 100, 0, 64), Layer(8, 10, 0, 64), Layer(1, 10, 0, 3), Layer(1, 5, 0, 1)]
    assert str(mixed(layers, 4, 1e9)) == "0:1 | 1:2 /2 | 2:4"
    assert str(mixed(layers, 4, 1.0)) == "0:2 | 2:4"


# --- PipeDream


def test_replicas_by_hand():
    layers = [Layer(9.0, activation=2.0, weights=6.0)]
    assert with_replicas(layers, [(3, inf)]).time == 3.0
    # averaging 6 bytes among 3: 2 · 2/3 · 6 = 8 bytes a rank, every 3 microbatches
    assert with_replicas(layers, [(3, 0.5)]).time == pytest.approx(8 / 0.5 / 3)
    assert str(with_replicas(layers, [(3, 0.5)])) == "0:1 x3"
    assert str(with_replicas(layers, [(3, 0.1)])) == "0:1"  # 9 is less than 2·(1/2)·6 / 0.1 / 2


def test_convolutions_are_replicated_and_the_large_layers_are_not():
    """Few weights and much work in front, the contrary behind, as in VGG16."""
    layers = [Layer(5.0, 50.0, 1.0)] * 6 + [Layer(1.0, 1.0, 4000.0)] * 2
    assert str(with_replicas(layers, [(16, 100.0)])) == "0:6 x15 | 6:8"


@pytest.mark.parametrize("seed", range(30))
def test_the_partition_with_replicas_is_the_best_of_all(seed):
    layers = random_layers(seed, most=5)
    for bandwidth in (inf, 10.0, 1.0):
        choices = every_partition(len(layers), 4, "x")
        best = min(partition.bottleneck(layers, bandwidth) for partition in choices)
        found = with_replicas(layers, [(4, bandwidth)])
        assert found.time == pytest.approx(best, rel=1e-12)
        assert found.bottleneck(layers, bandwidth) == pytest.approx(best, rel=1e-12)


def nested(layers, levels, first, last):
    """The best time of layers first .. last-1 on one unit of the outermost level, by trying all."""
    if not levels:
        return sum(layer.time for layer in layers[first:last])
    (units, bandwidth), inside = levels[-1], levels[:-1]
    best = inf
    for cuts in every_cut(first, last):
        for numbers in product(range(1, units + 1), repeat=len(cuts)):
            if sum(numbers) > units:
                continue
            parts = [layers[i - 1].activation / bandwidth for i, _ in cuts[1:]]
            for (i, j), n in zip(cuts, numbers):
                weights = sum(layer.weights for layer in layers[i:j])
                update = 2 * (n - 1) / n * weights / bandwidth
                parts.append(max(nested(layers, inside, i, j), update) / n)
            best = min(best, max(parts))
    return best


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("bandwidths", [(inf, inf), (8.0, 2.0), (50.0, 1.0)])
def test_machines_inside_machines(seed, bandwidths):
    layers = random_layers(seed, most=4)
    levels = [(2, bandwidths[0]), (3, bandwidths[1])]
    found = with_replicas(layers, levels)
    assert found.time == pytest.approx(nested(layers, levels, 0, len(layers)), rel=1e-12)
    assert sum(stage.ranks for stage in found.stages) <= 6
    assert Partition.read(str(found)) == found


def test_a_slow_link_between_servers_is_crossed_by_activations_alone():
    layers = [Layer(2.0, 1.0, 50.0)] * 8
    fast = with_replicas(layers, [(4, 1000.0), (2, 1000.0)])
    slow = with_replicas(layers, [(4, 1000.0), (2, 1.0)])
    assert str(fast) == "0:8 x8" and str(slow) == "0:4 x4 | 4:8 x4"
    assert fast.time == slow.time == 2.0
