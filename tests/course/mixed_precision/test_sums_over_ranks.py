"""Sums of real gradients over ranks: what chapter 10 says of their errors, with three seeds."""

import pytest
import torch

from lib.course.mixed_precision.sums_over_ranks import (
    ALGORITHMS,
    gradients_by_rank,
    in_common,
    measured,
    predicted,
)
from lib.draw.curves import curve

COUNTS = (4, 16, 64, 256)


def test_equal_rows_have_everything_in_common_and_others_nothing():
    draw = torch.Generator("cpu").manual_seed(0)
    rows = torch.randn(16, 5000, generator=draw)
    assert in_common(rows[:1].expand(16, -1)) == pytest.approx(1)
    assert in_common(rows) == pytest.approx(0, abs=0.01)
    assert in_common(rows / 2 + rows[:1]) == pytest.approx(0.8, abs=0.03)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_early_gradients_are_alike_and_a_ring_loses_most(seed):
    """Before training, half of each gradient's square is common to all ranks."""
    gradients = gradients_by_rank(256, seed=seed)
    assert 0.4 < in_common(gradients) < 0.8
    errors = {name: line[1] for name, line in measured(gradients, COUNTS).items()}
    assert errors["ring"][-1] > 6 * errors["tree"][-1], "of 256 ranks"
    assert errors["ring"][-1] > 2.5 * errors["ring"][-2], "more than the root of 4: it stalls"
    assert max(errors["tree"]) < 0.004 and max(errors["widened"]) < 0.003


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_later_gradients_err_as_is_predicted(seed):
    gradients = gradients_by_rank(64, steps=100, seed=seed)
    counts = COUNTS[:3]
    expected = predicted(in_common(gradients), counts)
    for name, (_, errors) in measured(gradients, counts).items():
        assert errors == pytest.approx(expected[name][1], rel=0.3), name


def test_a_curve_can_be_drawn_of_both():
    gradients = gradients_by_rank(16)
    lines = measured(gradients, (2, 4, 16)), predicted(in_common(gradients), (2, 4, 16))
    picture = curve(*lines, x=("ranks", ""), y=("error", ""))
    assert all(name in picture.summary for name in ALGORITHMS)
