"""Pipelines on ranks: any schedule gives the plain model's loss, gradients and weights."""

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from lib import RankError
from lib.parallel import _pipes
from lib.parallel._pipes import cut
from lib.parallel.pipeline import Pipeline, stage_costs
from lib.predict import schedule as schedules
from lib.predict.play import Costs, play
from lib.predict.shape import GPTShape, MLPShape
from lib.ranks.memory import Memory
from lib.ranks.slow_motion import SlowMotion
from lib.single.batches import Batches
from lib.single.models import GPT, MLP
from lib.single.train import mean_squares, next_token_loss, train_step

BATCH = Batches(8, 16)[0]
SHAPE = GPTShape(layers=6, width=32, heads=2)  # with embedding and head: 8 blocks


def gpt(tied=False, shape=SHAPE):
    return GPT(replace(shape, tied=tied)).double()


def every_schedule(ranks):
    """All schedules that are synchronous, by name, for so many ranks."""
    made = [schedules.naive(ranks, 4), schedules.gpipe(ranks, 8), schedules.one_f_one_b(ranks, 8)]
    made += [schedules.interleaved(2 * ranks, 8), schedules.zb_h1(ranks, 8)]
    made += [schedules.zb_h2(ranks, 8), schedules.breadth_first(2 * ranks, 8)]
    made += [schedules.zb_v(2 * ranks, 8), schedules.dualpipe_v(2 * ranks, 8)]
    return made


CASES = [(ranks, place) for ranks in (1, 2, 4) for place in range(9)]


def case(ranks, place):
    return every_schedule(ranks)[place]


def named(model, values):
    """{name: value} of this rank's parameters."""
    names = {id(p): name for name, p in model.named_parameters()}
    return {names[id(p)]: value for p, value in values}


def one_step(schedule, tied=False, batch=BATCH, lr=0.1, **options):
    """Loss, gradients and weights after a step of SGD, by name; and the most microbatches alive."""
    model = gpt(tied)
    pipeline = Pipeline(model, schedule, **options)
    optimizer = torch.optim.SGD(pipeline.parameters(), lr)
    loss = pipeline.step(*batch)
    grads = named(model, [(p, p.grad) for p in pipeline.parameters()])
    optimizer.step()
    weights = named(model, [(p, p.detach()) for p in pipeline.parameters()])
    return loss, grads, weights, pipeline.peak


def whole_step(tied=False, batch=BATCH, lr=0.1):
    model = gpt(tied)
    loss = train_step(model, torch.optim.SGD(model.parameters(), lr), batch)
    return (
        loss,
        {name: p.grad for name, p in model.named_parameters()},
        dict(model.named_parameters()),
    )


def far(found, wanted):
    return ((found - wanted).norm() / wanted.norm().clamp(min=1e-30)).item()


def assert_whole(answers, wanted):
    """Every rank has the loss; together they have every parameter, as the plain model has it."""
    loss, grads, weights = wanted
    seen = set()
    for found_loss, found_grads, found_weights, _ in answers:
        assert far(found_loss, loss) < 1e-12
        for name, grad in found_grads.items():
            seen.add(name)
            assert far(grad, grads[name]) < 1e-12, name
            assert far(found_weights[name], weights[name]) < 1e-12, name
    assert seen == set(grads)


# --- spread equals whole


@pytest.mark.parametrize("tied", [False, True], ids=["", "tied"])
@pytest.mark.parametrize(("ranks", "place"), CASES, ids=lambda v: f"{v}")
def test_every_schedule_equals_the_plain_model(worlds, ranks, place, tied):
    schedule = case(ranks, place)
    answers = worlds(ranks).run(one_step, schedule, tied)
    assert_whole(answers, whole_step(tied))


@pytest.mark.parametrize("name", ["zb_v", "dualpipe_v", "one_f_one_b"])
def test_eight_ranks(worlds, name):
    v = name != "one_f_one_b"
    schedule = getattr(schedules, name)(16 if v else 8, 16)
    shape = GPTShape(layers=14, width=16, heads=2)
    batch = Batches(16, 8)[0]

    def step(schedule):
        model = GPT(shape).double()
        pipeline = Pipeline(model, schedule)
        loss = pipeline.step(*batch)
        return loss, named(model, [(p, p.grad) for p in pipeline.parameters()])

    model = GPT(shape).double()
    loss = next_token_loss(model(batch[0]), batch[1])
    loss.backward()
    wanted = {n: p.grad for n, p in model.named_parameters()}
    for found, grads in worlds(8).run(step, schedule):
        assert far(found, loss.detach()) < 1e-12
        assert all(far(grad, wanted[name]) < 1e-12 for name, grad in grads.items())


def test_without_the_gradients_from_the_next_stage_it_fails(worlds):
    def numb(schedule):
        class Numb(_pipes.Pipes):
            def take(self, kind, stage, microbatch):
                found = super().take(kind, stage, microbatch)
                return torch.zeros_like(found) if kind == "B" else found

        import lib.parallel.pipeline as module

        kept, module.Pipes = module.Pipes, Numb
        try:
            return one_step(schedule)
        finally:
            module.Pipes = kept

    with pytest.raises(AssertionError):
        assert_whole(worlds(4).run(numb, schedules.one_f_one_b(4, 8)), whole_step())


def test_ten_steps_of_adamw_and_another_batch_size_in_between(worlds):
    def losses(schedule):
        model = gpt()
        pipeline = Pipeline(model, schedule)
        optimizer = torch.optim.AdamW(pipeline.parameters(), 1e-3)
        found = []
        for n in range(10):
            pipeline.zero_grad()
            found.append(pipeline.step(*Batches(16 if n == 5 else 8, 16)[n]).item())
            optimizer.step()
        return found

    model = gpt()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    wanted = [train_step(model, optimizer, Batches(16 if n == 5 else 8, 16)[n]) for n in range(10)]
    for found in worlds(2).run(losses, schedules.zb_h1(2, 4)):
        assert np.allclose(found, [w.item() for w in wanted], rtol=1e-9)


def test_data_parallel_beside_it(worlds):
    """dp=2 × pp=2: each line of pp takes half of the batch; gradients are averaged over dp."""

    def step(tied):
        from lib.ranks.mesh import mesh
        from lib.single.batches import share

        grid = mesh(dp=2, pp=2)
        half = share(BATCH, grid["dp"].rank, 2)
        schedule = schedules.interleaved(4, 4)
        return one_step(schedule, tied, half, group=grid["pp"].group, replicas=grid["dp"].group)

    for tied in (False, True):
        whole = whole_step(tied)
        answers = worlds(4).run(step, tied)
        halves = [answers[0][0], answers[2][0]]
        assert far(sum(halves) / 2, whole[0]) < 1e-12
        assert_whole([(whole[0], *answer[1:]) for answer in answers], whole)


def test_what_two_stages_of_a_rank_share_is_averaged_once(worlds):
    """ZB-V brings the tied embedding and head together on rank 0: one parameter, sent once."""

    def step():
        from lib.ranks.mesh import mesh

        grid = mesh(dp=2, pp=2)
        model = gpt(tied=True)
        pipeline = Pipeline(
            model, schedules.zb_v(4, 4), group=grid["pp"].group, replicas=grid["dp"].group
        )
        pipeline.step(*BATCH)
        return sum(p.nbytes for p in pipeline.parameters())

    ledger = worlds(4).record(step)
    for rank, weights in enumerate(ledger.results):
        assert (
            sum(r.bytes for r in ledger.where(rank=rank, lane="comm", op="all_reduce")) == weights
        )


# --- the ledger equals the schedule


@pytest.mark.parametrize(("ranks", "place"), CASES[9:], ids=lambda v: f"{v}")
def test_every_rank_does_its_row_in_order_and_no_message_more(worlds, ranks, place):
    schedule = case(ranks, place)

    def run(schedule):
        pipeline = Pipeline(gpt(), schedule)
        pipeline.step(*BATCH)  # finds the shapes
        return pipeline

    def record(schedule):
        from lib.ranks.desk import desk  # here, not above: a rank has a desk of its own

        pipeline = run(schedule)
        desk.events and desk.events.clear()
        pipeline.step(*BATCH)
        return pipeline.peak

    ledger = worlds(ranks).record(record, schedule)
    numel = len(BATCH[0]) // schedule.microbatches * 16 * SHAPE.width
    for rank in range(ranks):
        rows = ledger.where(lane="compute", op=list("FBIW"), rank=rank)
        done = [f"{r.stage}{r.op}{r.microbatch}" for r in sorted(rows, key=lambda r: r.start)]
        assert done == [str(a) for a in schedule.actions(rank)]
        sends = list(ledger.where(lane="comm", op="send", rank=rank))
        assert len(sends) == np.count_nonzero(
            schedule.grid.receiver[schedule.grid.rank == rank] >= 0
        )
        assert all(row.bytes == 8 * numel for row in sends)
    peaks = {stage: peak for found in ledger.results for stage, peak in found.items()}
    assert tuple(peaks[s] for s in range(schedule.stages)) == play(schedule).peak_microbatches
    others = set(ledger.where(lane="comm").column("op")) - {"send", "recv"}
    assert others <= {"broadcast"}  # the loss


def activations(schedule):
    """Bytes that autograd keeps for one microbatch, and at most, on this rank."""
    model = GPT(SHAPE)
    found = []
    for m in (schedules.naive(schedule.stages, schedule.microbatches), schedule):
        pipeline = Pipeline(model, m)
        pipeline.step(*BATCH)
        pipeline.zero_grad()
        with Memory(model) as memory:
            pipeline.step(*BATCH)
        rows = [row.bytes for row in memory.rows if row.op == "activations"]
        found.append(max(rows))
    return found


def test_peak_activations_are_what_the_schedule_says_to_the_byte(worlds):
    wide = {}
    for schedule in (schedules.gpipe(4, 8), schedules.one_f_one_b(4, 8)):
        answers = worlds(4).run(activations, schedule)
        for rank, (one, most) in enumerate(answers):
            paper = play(schedule, Costs(activation=one)).peak_bytes[rank]
            if 0 < rank < 3 and schedule.name == "GPipe":
                assert paper - one < most <= paper  # the last one is still being computed
            else:
                assert most == paper
        wide[schedule.name] = answers[0][1]
    assert wide["GPipe"] == 2 * wide["1F1B"]


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
        assert all(first) and not any(last)


# --- bad input


def test_cuts_are_as_equal_as_can_be():
    assert cut([1] * 10, 4) == [(0, 3), (3, 6), (6, 8), (8, 10)]
    assert cut([1] * 4, 2, [1, 3]) == [(0, 1), (1, 4)]


@pytest.mark.parametrize(
    ("blocks", "lengths", "words"),
    [
        (3, None, "3 blocks do not make 4 stages"),
        (8, [2, 2, 2, 3], "must be 4 numbers of 1 or more that add up to 8"),
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

    class Pair(nn.Module):
        def forward(self, x):
            return x, x

    f1b = schedules.one_f_one_b(2, 4)
    with pytest.raises(RankError, match="dim 0 of the inputs has 6 entries: 4 microbatches"):
        world.run(step, f1b, 6)
    with pytest.raises(RankError, match="cannot be run by 2 ranks: it has 4"):
        world.run(step, schedules.one_f_one_b(4, 4))
    with pytest.raises(RankError, match="stage 0 gives a tuple: between two stages"):
        world.run(step, f1b, 8, lambda: nn.Sequential(Pair(), nn.Linear(6, 6)))
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
    made = [
        pipelining.PipelineStage(model[slice(*cuts[s])], s, count, torch.device("cpu"))
        for s in mine
    ]
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
        assert all(far(mine[name], grads[name]) < 1e-12 for name in grads)


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


@pytest.mark.parametrize("name", ["gpipe", "one_f_one_b", "zb_h1"])
def test_in_slow_motion_it_takes_as_long_as_on_paper(worlds, name, monkeypatch):
    """Four ranks; the best of three, for a machine that does other things as well."""
    world, schedule = worlds(4), getattr(schedules, name)(4, 8)
    speeds = SlowMotion("H100", link="NVLink4", alpha=5e-8, factor=150_000)
    shape, batch = GPTShape(layers=6, width=32, heads=2, sequence=32), Batches(16, 32)[0]
    paper = play(schedule, stage_costs(GPT(shape), schedule, *batch, speeds)).makespan

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
        ratios.append((rows.column("end").max() - rows.column("start").min()) / paper)
    assert min(abs(ratio - 1) for ratio in ratios) < 0.05, ratios
