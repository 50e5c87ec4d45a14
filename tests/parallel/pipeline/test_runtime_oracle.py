"""Pipelines of hard models, bad input, PyTorch's own pipeline, and predicted times."""

import sys

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from lib import RankError
from lib.parallel.pipeline.pipes import cut
from lib.parallel.pipeline.runtime import Pipeline, stage_costs
from lib.predict.pipeline import schedules
from lib.predict.pipeline.play import play
from lib.predict.shape import GPTShape, MLPShape
from lib.ranks.slow_motion import SlowMotion
from lib.single.batches import Batches
from lib.single.models import GPT, MLP
from lib.single.train import mean_squares, next_token_loss
from tests.every import every
from tests.parallel.pipeline.test_runtime import BATCH, far, gpt, named, one_step

# --- models chosen to hurt


class Odd(nn.Module):
    """A layer with a frozen and an unused weight, and one that is used twice."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.twice = nn.Linear(6, 6)
        self.frozen, self.unused = nn.Linear(6, 6), nn.Linear(6, 6)
        self.frozen.requires_grad_(False)

    def forward(self, x):
        return self.twice(torch.tanh(self.frozen(self.twice(x)))) + x


def test_frozen_unused_and_twice_used_weights(worlds):
    def model():
        return nn.Sequential(*(Odd(seed) for seed in range(4))).double()

    x, y = torch.randn(8, 6, dtype=torch.float64), torch.randn(8, 6, dtype=torch.float64)

    def step(schedule):
        whole = model()
        pipeline = Pipeline(whole, schedule, loss=mean_squares)
        pipeline.step(x, y)
        return named(whole, [(p, p.grad) for p in pipeline.parameters()])

    whole = model()
    mean_squares(whole(x), y).backward()
    wanted = {n: p.grad for n, p in whole.named_parameters()}
    for schedule in (schedules.one_f_one_b(2, 4), schedules.zb_h1(2, 4), schedules.zb_v(4, 4)):
        for grads in worlds(2).run(step, schedule):
            for name, grad in grads.items():
                assert (grad is None) == (wanted[name] is None), name
                assert grad is None or far(grad, wanted[name]) < 1e-12, name


def test_a_wholly_frozen_first_stage(worlds):
    def step(schedule):
        model = MLP(MLPShape((6, 6, 6, 6, 2)))
        model[:2].requires_grad_(False)
        pipeline = Pipeline(model, schedule, loss=mean_squares)
        pipeline.step(torch.ones(4, 6), torch.ones(4, 2))
        return [p.grad is None for p in pipeline.parameters()]

    for schedule in (schedules.gpipe(2, 4), schedules.zb_h1(2, 4)):
        first, last = worlds(2).run(step, schedule)
        assert every(first) and not any(last)


# --- bad input


def test_cuts_are_as_equal_as_can_be():
    assert cut([1] * 10, 4) == [(0, 3), (3, 6), (6, 8), (8, 10)]
    assert cut([1] * 4, 2, [1, 3]) == [(0, 1), (1, 4)]


@pytest.mark.parametrize(
    ("blocks", "lengths", "words"),
    [
        (3, None, "A model of 3 blocks cannot fill 4 stages"),
        (8, [2, 2, 2, 3], "must be 4 numbers of at least 1 that add up to the 8 blocks"),
        (8, [0, 4, 2, 2], "must be 4 numbers"),
    ],
)
def test_cuts_that_do_not_fit_are_refused(blocks, lengths, words):
    with pytest.raises(ValueError, match=words):
        cut([1] * blocks, 4, lengths)


def test_what_cannot_be_run_is_told_in_a_sentence_and_the_world_lives_on(worlds):
    world = worlds(2)

    def step(schedule, batch=8, make=None, fail=False):
        model = make() if make else MLP(MLPShape((6,) * 5))
        pipeline = Pipeline(model, schedule, loss=mean_squares)
        if fail and dist.get_rank() == 1:
            pipeline.stages[1].register_forward_pre_hook(broken)
        return pipeline.step(torch.ones(batch, 6), torch.ones(batch, 6)).item()

    def broken(module, inputs):
        if torch.is_grad_enabled():
            raise RuntimeError("the card is gone")

    class Bag(nn.Module):
        def forward(self, x):
            return {x}

    f1b = schedules.one_f_one_b(2, 4)
    with pytest.raises(
        RankError,
        match="Dim 0 of the inputs has 6 entries; 4 microbatches cannot share them equally",
    ):
        world.run(step, f1b, 6)
    with pytest.raises(RankError, match="needs 4 ranks, but the group has 2"):
        world.run(step, schedules.one_f_one_b(4, 4))
    with pytest.raises(RankError, match="Stage 0 returned a set, but only tensors"):
        world.run(step, f1b, 8, lambda: nn.Sequential(Bag(), nn.Linear(6, 6)))
    with pytest.raises(RankError, match="the card is gone"):
        world.run(step, f1b, 8, None, True)
    assert len(set(world.run(step, f1b))) == 1


# --- PyTorch's own


def native(name, stages_per_rank, microbatches, batch):
    """Loss and gradients by name of torch.distributed.pipelining with the same stages."""
    from torch.distributed import pipelining

    model = gpt()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    count = ranks * stages_per_rank
    cuts = cut(model, count)
    v = name in ("ScheduleZBVZeroBubble", "ScheduleDualPipeV")
    mine = [rank, count - 1 - rank] if v else list(range(rank, count, ranks))
    device = batch[0].device
    made = [pipelining.PipelineStage(model[slice(*cuts[s])], s, count, device) for s in mine]
    kind = getattr(pipelining, name, None) or getattr(pipelining.schedules, name)
    run = kind(made if stages_per_rank > 1 else made[0], microbatches, loss_fn=next_token_loss)
    losses = []
    first, last = 0 in mine, count - 1 in mine
    run.step(
        *[batch[0]] * first, target=batch[1] if last else None, losses=losses if last else None
    )
    parameters = [p for s in made for p in s.submod.parameters()]
    return [l.item() for l in losses], named(model, [(p, p.grad) for p in parameters])


@pytest.mark.parametrize(
    ("native_name", "name", "each"),
    [
        ("ScheduleGPipe", "gpipe", 1),
        ("Schedule1F1B", "one_f_one_b", 1),
        ("ScheduleInterleaved1F1B", "interleaved", 2),
        ("ScheduleLoopedBFS", "breadth_first", 2),
        ("ScheduleDualPipeV", "dualpipe_v", 2),
    ],
)
def test_the_same_step_as_pytorchs_own(worlds, native_name, name, each):
    schedule = getattr(schedules, name)(2 * each, 8)
    theirs = worlds(2).run(native, native_name, each, 8, BATCH)
    ours = worlds(2).run(one_step, schedule)
    for (losses, grads), (loss, mine, _, _) in zip(theirs, ours):
        if losses:
            assert np.isclose(np.mean(losses), loss.item(), rtol=1e-12)
        assert grads.keys() == mine.keys()
        assert every(far(mine[name], grads[name]) < 1e-12 for name in grads)


# --- predicted and recorded


def test_costs_of_stages_are_their_rooflines():
    """A layer [w, w] on b rows: F reads x and W and writes y; I and W the like; W adds up."""
    speeds = SlowMotion("H100", dtype="fp32", alpha=0.0, bandwidth=1e9)
    b, w = 16, 8
    model = nn.Sequential(*(nn.Linear(w, w, bias=False) for _ in range(3)))
    x, y = torch.randn(4 * b, w), torch.randn(4 * b, w)
    costs = stage_costs(model, schedules.gpipe(3, 4), x, y, speeds, loss=mean_squares)
    product = speeds.compute(2 * b * w * w, 4 * (2 * b * w + w * w))
    added = speeds.compute(0, 4 * 3 * w * w)  # to the gradient that is there
    assert costs.forward[1] == pytest.approx(product)
    assert costs.backward_input[1] == pytest.approx(product)
    assert costs.backward_weight[1] == pytest.approx(product + added)
    assert costs.backward[1] == pytest.approx(2 * product + added)
    assert costs.send == pytest.approx([4 * b * w / 1e9] * 2)
    assert costs.backward_input[0] == 0 and costs.forward[2] > product  # no input; the loss


@pytest.mark.quiet
@pytest.mark.parametrize("name", ["gpipe", "one_f_one_b", "zb_h1"])
def test_in_slow_motion_it_takes_the_predicted_time(worlds, name, monkeypatch):
    """Four ranks; the best of three, for a machine that does other things as well."""
    world, schedule = worlds(4, device="cpu"), getattr(schedules, name)(4, 8)
    speeds = SlowMotion("H100", link="NVLink4", alpha=5e-8, factor=150_000)
    shape, batch = GPTShape(layers=6, width=32, heads=2, sequence=32), Batches(16, 32)[0]
    predicted = play(schedule, stage_costs(GPT(shape), schedule, *batch, speeds)).makespan

    def build():
        kept = sys.modules["__main__"].__dict__  # what a rank keeps between two calls
        kept["pipeline"] = Pipeline(GPT(shape), schedule)
        kept["pipeline"].step(*batch)

    def step():
        pipeline = sys.modules["__main__"].pipeline
        pipeline.zero_grad()
        pipeline.step(*batch)

    world.run(build)
    monkeypatch.setattr(world, "slow_motion", speeds)
    world.run(step)
    ratios = []
    while len(ratios) < 3 and not (ratios and abs(ratios[-1] - 1) < 0.05):
        rows = world.record(step).where(lane="compute", op=list("FBIW"))
        ratios.append((rows.column("end").max() - rows.column("start").min()) / predicted)
    assert min(abs(ratio - 1) for ratio in ratios) < 0.05, ratios
