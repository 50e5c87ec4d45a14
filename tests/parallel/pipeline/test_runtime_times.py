"""Predicted and recorded steps of pipelines: random models on random links, in slow motion."""

import random
import sys
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from lib.parallel.pipeline.runtime import Pipeline, stage_costs
from lib.predict.pipeline import schedules as rules
from lib.predict.pipeline.play import play
from lib.ranks.slow_motion import SlowMotion
from lib.single.train import mean_squares

pytestmark = pytest.mark.quiet

EACH = {"gpipe": 1, "one_f_one_b": 1, "interleaved": 2, "zb_v": 2, "dualpipe_v": 2}  # stages a rank
SECONDS = 0.5  # what a step is stretched to, and twice as long each time it is tried again


def chain(widths):
    """A chain of layers of these widths, the same on every rank."""
    torch.manual_seed(3)
    return nn.Sequential(*(nn.Sequential(nn.Linear(i, o), nn.ReLU()) for i, o in pairwise(widths)))


def any_case(name, ranks, messages):
    """A random model, batch and link; messages take up to so many forwards."""
    rng = random.Random(f"{name} {ranks} {messages}")
    stages = EACH[name] * ranks
    m = {"dualpipe_v": stages + 2, "interleaved": 2 * ranks}.get(name, 8)
    widths = [2 ** rng.randint(3, 8) for _ in range(stages + rng.randint(1, stages + 1))]
    rows = rng.choice([4, 16, 64])
    schedule = getattr(rules, name)(stages, m)
    x, y = torch.randn(rows * m, widths[0]), torch.randn(rows * m, widths[-1])
    speeds = SlowMotion("H100", dtype="fp32", alpha=0.0, bandwidth=1e15)
    forward = np.mean(stage_costs(chain(widths), schedule, x, y, speeds, loss=mean_squares).forward)
    longest = messages * forward
    start_up = rng.choice([0.0, 0.3]) * longest
    bandwidth = 4 * rows * max(widths) / (longest - start_up)
    return schedule, widths, (x, y), replace(speeds, alpha=start_up, bandwidth=bandwidth)


def build(widths, schedule):
    kept = sys.modules["__main__"].__dict__  # what a rank keeps between two calls
    kept["pipeline"] = Pipeline(chain(widths), schedule, loss=mean_squares)


def step(batch):
    pipeline = sys.modules["__main__"].pipeline
    pipeline.zero_grad()
    pipeline.step(*batch)


def ratios(world, case, monkeypatch):
    """Recorded ÷ predicted makespan, of up to four runs, until one is within 5 %.

    Each is stretched twice as far as the one before: a busy machine is late by its own seconds.
    """
    schedule, widths, batch, speeds = case
    costs = stage_costs(chain(widths), schedule, *batch, speeds, loss=mean_squares)
    predicted = play(schedule, costs).makespan
    world.run(build, widths, schedule)
    world.run(step, batch)  # the shapes are found
    found = []
    while len(found) < 4 and not (found and abs(found[-1] - 1) < 0.05):
        stretched = replace(speeds, factor=SECONDS * 2 ** len(found) / predicted)
        monkeypatch.setattr(world, "slow_motion", stretched)
        rows = world.record(step, batch).where(lane="compute", op=list("FBIW"))
        found.append((rows.column("end").max() - rows.column("start").min()) / predicted)
    monkeypatch.undo()
    return found


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", EACH)
def test_a_random_model_takes_as_long_as_predicted(worlds, name, ranks, monkeypatch):
    """Case 14: on a fast link and on one whose messages outlast actions several times."""
    for messages in (0.1, 1.0, 8.0):
        found = ratios(worlds(ranks, device="cpu"), any_case(name, ranks, messages), monkeypatch)
        assert min(abs(ratio - 1) for ratio in found) < 0.05, (messages, found)


def test_without_a_queue_the_prediction_is_several_times_too_short():
    """Case 14: two ranks, GPipe, m = 8: a message of 20 forwards queues eight times each way."""
    schedule, model, batch = rules.gpipe(2, 8), chain([64] * 5), torch.randn(2, 128, 64)
    speeds = SlowMotion("H100", dtype="fp32", alpha=0.0, bandwidth=1e15)
    forward = stage_costs(model, schedule, *batch, speeds, loss=mean_squares).forward[0]
    speeds = replace(speeds, bandwidth=4 * 16 * 64 / (20 * forward))
    costs = stage_costs(model, schedule, *batch, speeds, loss=mean_squares)
    assert (costs.link, costs.ahead, costs.in_turn) == ("pair", 1, True)
    free = play(schedule, replace(costs, link=None, ahead=None)).makespan
    assert 4 * free < play(schedule, costs).makespan < 8 * free
