"""Pipelines on ranks: any schedule gives the plain model's loss, gradients and weights."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from lib.parallel.pipeline import pipes
from lib.parallel.pipeline.runtime import Pipeline
from lib.predict.pipeline import schedules
from lib.predict.pipeline.play import Costs, play
from lib.predict.shape import GPTShape
from lib.ranks.memory import Memory
from lib.single.batches import Batches
from lib.single.models import GPT
from lib.single.train import next_token_loss, train_step
from tests.every import every

BATCH = Batches(8, 16)[0]
SHAPE = GPTShape(layers=6, width=32, heads=2)  # with embedding and head: 8 blocks


GROUPED = replace(SHAPE, heads=4, kv_heads=2, positions="rotary")


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


def one_step(schedule, tied=False, batch=BATCH, lr=0.1, shape=SHAPE, **options):
    """Loss, gradients and weights after a step of SGD, by name; and the most microbatches alive."""
    model = gpt(tied, shape)
    pipeline = Pipeline(model, schedule, **options)
    optimizer = torch.optim.SGD(pipeline.parameters(), lr)
    loss = pipeline.step(*batch)
    grads = named(model, [(p, p.grad) for p in pipeline.parameters()])
    optimizer.step()
    weights = named(model, [(p, p.detach()) for p in pipeline.parameters()])
    return loss, grads, weights, pipeline.peak


def whole_step(tied=False, batch=BATCH, lr=0.1, shape=SHAPE):
    model = gpt(tied, shape)
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


@pytest.mark.parametrize("tied", [False, True], ids=["", "tied"])
def test_grouped_heads_and_rotary_positions(worlds, tied):
    """ZB-V runs the backward of each stage in two parts."""
    answers = worlds(2).run(one_step, schedules.zb_v(4, 8), tied, shape=GROUPED)
    assert_whole(answers, whole_step(tied, shape=GROUPED))


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
    answers = worlds(8).run(step, schedule)
    assert set().union(*(grads for _, grads in answers)) == set(wanted)
    for found, grads in answers:
        assert far(found, loss.detach()) < 1e-12
        assert every(far(grad, wanted[name]) < 1e-12 for name, grad in grads.items())


def test_without_the_gradients_from_the_next_stage_it_fails(worlds):
    def numb(schedule):
        class Numb(pipes.Pipes):
            def take(self, kind, stage, microbatch):
                tensors, flags = super().take(kind, stage, microbatch)
                return [t * 0 if kind == "B" else t for t in tensors], flags

        import lib.parallel.pipeline.runtime as module

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
        from lib.ranks.state.this_rank import this_rank

        pipeline = run(schedule)
        this_rank.recording and this_rank.recording.events.clear()
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
        assert every(row.bytes == 8 * numel for row in sends)
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
            predicted = play(schedule, Costs(activation=one)).peak_bytes[rank]
            if 0 < rank < 3 and schedule.name == "GPipe":
                assert predicted - one < most <= predicted  # the last one is still being computed
            else:
                assert most == predicted
        wide[schedule.name] = answers[0][1]
    assert wide["GPipe"] == 2 * wide["1F1B"]
