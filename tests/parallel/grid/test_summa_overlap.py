"""How much of SUMMA's communication overlap hides: in slow motion on four ranks, as predicted."""

import sys

import pytest
import torch
from torch import nn

from lib.parallel.grid import Linear2D
from lib.predict.tensor.summa_step import summa_step
from lib.ranks.mesh import mesh
from lib.ranks.slow_motion import SlowMotion
from tests.slow_steps import late, least_late

pytestmark = pytest.mark.quiet

ROWS, INPUTS, OUTPUTS = 512, 512, 512
# So slow that four ranks on two cores do the real work in a fraction of the stretched time; the
# link is such that a tile takes about as long as a product of tiles.
SPEEDS = SlowMotion("H100", link="NVLink4", factor=2e5, alpha=1e-8, bandwidth=1e12)


def build(overlap):
    kept, here = sys.modules["__main__"].__dict__, mesh(row=2, column=2)
    kept["layer"] = Linear2D(nn.Linear(INPUTS, OUTPUTS), here, overlap)
    kept["x"] = torch.randn(ROWS // 2, INPUTS // 2, requires_grad=True)
    kept["slope"] = torch.randn(ROWS // 2, OUTPUTS // 2)


def step():
    kept = sys.modules["__main__"].__dict__
    kept["x"].grad = None
    kept["layer"].zero_grad()
    kept["layer"](kept["x"]).backward(kept["slope"])


def predicted_step(overlap):
    """In slow motion each group has a lane of its own, so that axes do not share a link."""
    return summa_step(ROWS, INPUTS, OUTPUTS, 2, SPEEDS, overlap=overlap, own_links=True)


def test_a_step_with_and_without_overlap_is_as_predicted(worlds):
    world, predicted = worlds(4, device="cpu"), {}
    for overlap in (False, True):
        world.run(build, overlap)
        ledger = least_late(world, SPEEDS, step)
        predicted[overlap] = predicted_step(overlap).makespan
        # What autograd does with the gradients afterwards is not SUMMA's.
        end = max(row.end for row in ledger.where(lane="comm"))
        ratio = end / predicted[overlap]
        assert abs(ratio - 1) <= 0.05 + late(ledger), f"overlap {overlap}: {ratio:.3f}"
    assert predicted[True] < 0.8 * predicted[False]
