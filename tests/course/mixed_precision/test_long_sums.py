"""The fourth network: it learns only where its long sums are kept in fp32, or in blocks."""

import pytest
import torch

from lib.course.mixed_precision.lessons import compare
from lib.course.mixed_precision.networks import AVERAGE, MIDDLE, READINGS
from lib.course.mixed_precision.training import RECIPES, SEEDS, SUMS, losses, means
from lib.single.formats import BF16, FP16
from lib.single.precision import accumulated, sum_in
from tests.course.mixed_precision.test_training import final, ratios
from tests.every import every


def test_sums_in_fp16_learn_nothing_and_sums_in_fp32_learn_as_fp32_does():
    assert every(ratio > 50 for ratio in ratios("average", "fp16, sums fp16"))
    assert every(0.9 < ratio < 1.1 for ratio in ratios("average", "fp16, sums fp32"))


def test_blocks_of_fp16_learn_too():
    assert every(0.9 < ratio < 1.15 for ratio in ratios("average", "fp16, blocks fp16"))


def test_blocks_of_bf16_lie_between():
    """128 terms stand beside a sum of up to 96, whose last bit is 0.5: some of each is lost."""
    assert every(ratio > 50 for ratio in ratios("average", "bf16, sums bf16"))
    blocks, wide = ratios("average", "bf16, blocks bf16"), ratios("average", "bf16, sums fp32")
    assert every(a > b for a, b in zip(blocks, wide, strict=True))
    assert 1.2 < sum(blocks) / 3 < 10 and max(wide) < 1.15


@pytest.mark.parametrize("seed", SEEDS)
def test_without_its_means_it_learns_no_more_than_the_targets_mean(seed):
    """The loss stays at the variance of the targets, 1/3, as that of a network which sees 0.5."""
    targets = torch.cat([AVERAGE.batch(seed, step)[1] for step in range(AVERAGE.steps)])
    spread = targets.var().item()
    assert spread == pytest.approx(1 / 3, rel=0.1)
    assert 0.7 < final("average", "fp16, sums fp16", seed) / spread < 1.5
    assert final("average", "fp32", seed) < spread / 30


def test_pytorchs_own_products_need_no_help_and_scaling_none_either():
    start, *_ = losses(AVERAGE, RECIPES["fp16"], steps=1)
    for recipe in ("fp16", "fp16, masters"):
        assert final("average", recipe, 0) < min(start / 30, 1.5 * final("average", "fp32", 0))


@pytest.mark.parametrize(("form", "count"), [(FP16, 2048), (BF16, 256)], ids=["fp16", "bf16"])
def test_the_mean_stalls_at_the_same_number_for_every_sensor(form, count):
    """Readings between 0.5 and 1 beside a sum of `count`: half of the next step is 1."""
    readings = AVERAGE.batch(0, 0)[0].to(torch.float16).flatten(0, 1)
    assert readings.min() > 0.5 and readings.max() < 1
    assert sum_in(form, readings).eq(count).all()
    layer = accumulated(AVERAGE.model(0).half()[0], form)
    means = layer(readings) / 8 + MIDDLE
    assert means.eq(count / READINGS).all()
    longest = sum_in(form, readings[:, : count * 2 // 3])  # bite: it has not stalled before
    assert longest.lt(count).all()


def test_the_means_are_right_in_fp32_and_in_blocks():
    exact, wide, small, blocks = (
        [float(n) for n in line[20:].split()] for line in means().splitlines()[1:]
    )
    assert small == [0.5] * 4
    assert wide == pytest.approx(exact, abs=2e-3) and blocks == pytest.approx(exact, abs=3e-3)
    assert min(exact) > 0.6 and max(exact) - min(exact) > 0.1


def test_the_tables_fit_a_phone():
    table = compare(AVERAGE, SUMS, steps=1)
    assert [line[:20].strip() for line in table.splitlines()[1:]] == list(SUMS)
    assert every(len(line) <= 49 for line in (table + "\n" + means()).splitlines())


def test_a_run_is_the_same_each_time_and_its_seed_counts():
    first, second, other = (
        losses(AVERAGE, RECIPES["fp16, blocks fp16"], seed, steps=3) for seed in (0, 0, 1)
    )
    assert first == second != other
