"""Chapter 4's shipped bugs: attention cut through its heads, and gradients clipped rank by rank."""

import pytest
import torch

from lib.course.tensor_parallel import shipped
from lib.predict.shape import GPTShape
from tests.every import every

SHAPE = GPTShape(width=32, heads=4, layers=2, sequence=16)


@pytest.mark.parametrize("cut", [False, True])
def test_ranks_train_as_one_device_does(worlds, cut):
    """Four ranks that count H heads each train the model whose heads are cut, and fail nowhere."""
    (plain,) = torch.tensor([shipped.trained(0, cut, 4, steps=5)]).double()
    for own in worlds(4).run(shipped.losses_on_ranks, 0, cut):
        assert torch.allclose(torch.tensor(own).double(), plain, rtol=1e-6)
    (other,) = torch.tensor([shipped.trained(0, not cut, 4, steps=5)]).double()
    assert not torch.allclose(other, plain, rtol=1e-4)


@pytest.mark.parametrize("seed", [*shipped.SEEDS, 3, 4])
def test_heads_that_are_cut_learn_less(seed):
    """The loss falls with both, and ends at least twice as high where heads are cut."""
    ends = []
    for cut in (False, True):
        losses = shipped.trained(seed, cut, 4)
        ends.append(sum(losses[-shipped.LAST :]) / shipped.LAST)
        assert losses[0] > 2.5 and ends[-1] < 0.1
    whole, broken = ends
    assert broken > 2 * whole


def test_a_rank_alone_clips_by_another_norm(worlds):
    """Each rank's own norm is too small and another one, so replicated weights drift apart."""
    plain, own, replicated, ours, kept = shipped.norms_when_clipped(worlds(4), SHAPE).splitlines()
    norm = float(plain.split()[-1])
    alone, whole = ([float(n) for n in line.split()[-4:]] for line in (own, ours))
    assert len(set(alone)) == 4 and every(n < norm for n in alone) and whole == [norm] * 4
    assert replicated.endswith("equal: False") and kept.endswith("equal: True")


def test_the_table_of_cuts(worlds):
    title, whole, broken, first = shipped.losses_of_cuts(worlds(4), (0,)).splitlines()
    assert title.endswith("seeds 0") and first.endswith("as on the ranks: True")
    assert float(broken.split()[2]) > 2 * float(whole.split()[2])
