"""Spread equals whole for FSDP, ZeRO-1 and ZeRO-2: outputs, gradients and weights, in float64."""

import pytest

from tests.parallel.sharded import models
from tests.parallel.sharded.steps import differences, fsdp, plain, zero1, zero2

SAME = [kind for kind in models.MODELS if kind is not models.Images]  # its norms see a share alone


def tolerance(kind):
    return 1e-5 if kind is models.Precisions else 1e-12


@pytest.mark.parametrize("method", [fsdp, zero1, zero2])
@pytest.mark.parametrize("kind", [*SAME, models.Grouped])
def test_spread_equals_whole(world, kind, method):
    found = differences(world.run(method, kind), plain(kind))
    assert max(found.values()) < tolerance(kind), found


@pytest.mark.parametrize("method", [fsdp, zero1, zero2])
def test_batch_norm_on_one_rank_is_the_plain_models(worlds, method):
    found = differences(worlds(1).run(method, models.Images), plain(models.Images))
    assert max(found.values()) < 1e-12, found
