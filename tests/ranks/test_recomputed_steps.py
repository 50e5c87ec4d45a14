"""Steps that compute activations again take the predicted time in slow motion."""

import sys

import pytest
import torch

from lib.predict.recompute import best, every, none, square_root, use_of
from lib.predict.recompute.costs import backward_of, costs_of
from lib.predict.recompute.played import play_plan
from lib.predict.shape import MLPShape
from lib.ranks.slow_motion import SlowMotion
from lib.single import MLP
from lib.single.recompute import recompute
from tests.slow_steps import least_late

WIDTHS = (256, 1024, 256, 2048, 256, 512, 4096, 256, 1024, 256, 2048, 512, 256)
SHAPE, BATCH = MLPShape(WIDTHS, bias=False), 64
SPEEDS = SlowMotion("H100", factor=1e4)


def costs():
    return costs_of(SHAPE, BATCH, SPEEDS), backward_of(SHAPE, BATCH, SPEEDS)


def plans():
    chain, _ = costs()
    root = square_root(len(chain))
    return {
        "none": none(len(chain)),
        "all": every(len(chain), 1),
        "√n": root,
        "best": best(chain, use_of(root, chain).peak),
    }


def build(plan):
    kept = sys.modules["__main__"].__dict__
    kept["model"] = recompute(MLP(SHAPE), plan)
    kept["batch"] = torch.randn(BATCH, WIDTHS[0]), torch.randn(BATCH, WIDTHS[-1])


def step():
    kept = sys.modules["__main__"].__dict__
    model, (x, gradient) = kept["model"], kept["batch"]
    model.zero_grad()
    model(x).backward(gradient)


def recorded(world, plan):
    """Build, warm up, and record a step in slow motion."""
    world.run(build, plan)
    return least_late(world, SPEEDS, step)


@pytest.mark.quiet
@pytest.mark.parametrize("name", ["none", "all", "√n", "best"])
def test_a_step_takes_the_predicted_time(worlds, name):
    plan = plans()[name]
    ledger = recorded(worlds(1), plan)
    predicted = max(bar.end for bar in play_plan(plan, *costs()).bars)
    assert ledger.makespan == pytest.approx(predicted, rel=0.05)


def test_the_best_plan_at_the_bytes_of_the_root_takes_less_time():
    chain, backward = costs()
    root, found = (use_of(plans()[name], chain) for name in ("√n", "best"))
    assert found.peak <= root.peak and found.again < 0.7 * root.again
    once = sum(cost.forward for cost in chain) + sum(backward)
    assert root.again > 0.2 * once  # so a plan that was not followed would be seen above
