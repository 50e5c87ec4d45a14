"""Slow motion against paper: steps recorded on eight ranks equal what shapes alone predict."""

import pickle
import sys
import time

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from lib.predict.data.ddp_step import data_parallel_step
from lib.predict.shape import MLPShape
from lib.ranks import span
from lib.ranks.slow_motion import SlowMotion
from lib.single import MLP
from tests.every import every
from tests.slow_steps import slowly

pytestmark = pytest.mark.quiet

WIDTHS, BATCH = [256] * 7, 256
# So slow that eight ranks on two cores do the real work in a fraction of the stretched time.
SPEEDS = SlowMotion("H100", link="NVLink4", factor=1e5, alpha=1e-8)


def kept():
    """What a rank keeps between two calls of a test."""
    return sys.modules["__main__"].__dict__


def build(kind, batches):
    """Make the model of the prediction and its step, averaged in one of three ways."""
    torch.manual_seed(0)
    model = MLP(MLPShape(tuple(WIDTHS), bias=False))
    batch = batches[dist.get_rank()]
    kept()["inputs"] = torch.randn(batch, WIDTHS[0]), torch.randn(batch, WIDTHS[-1])
    kept()["model"], kept()["launched"] = model, []
    kept()["optimizer"] = torch.optim.SGD(model.parameters(), lr=1e-6)
    if kind == "torch":  # a bucket for each layer, its gradients are views into it
        kept()["model"] = DistributedDataParallel(
            model, bucket_cap_mb=0.001, gradient_as_bucket_view=True
        )
    else:
        for weight in model.parameters():
            weight.register_post_accumulate_grad_hook(average)


def average(weight):
    weight.grad.mul_(1 / dist.get_world_size())
    kept()["launched"].append(weight.grad)


def average_and_go(weight):
    weight.grad.mul_(1 / dist.get_world_size())
    kept()["launched"].append(dist.all_reduce(weight.grad, async_op=True))


def step(kind):
    model, optimizer, (x, gradient) = kept()["model"], kept()["optimizer"], kept()["inputs"]
    optimizer.zero_grad()
    model(x).backward(gradient)
    if kind == "after":
        kept()["launched"] = [dist.all_reduce(g, async_op=True) for g in kept()["launched"]]
    for work in kept()["launched"]:
        work.wait()
    kept()["launched"] = []
    optimizer.step()
    return next(model.parameters()).detach().norm().item()


def recorded(world, kind, batches=None):
    """Build, warm up, and record a step in slow motion."""
    batches = batches or [BATCH] * world.size
    world.run(build, kind, batches)
    if kind == "hooks":
        world.run(go_at_once)
    for _ in range(2):  # DDP puts its buckets in order after the first
        world.run(step, kind)
    with slowly(world, SPEEDS):
        return steady(world, step, kind)


def steady(world, step, *args):
    """Record up to a dozen times, as the machine may be busy; give the one that slipped least."""
    ledgers = [world.record(step, *args)]
    while len(ledgers) < 12 and worst(ledgers[-1]) * SPEEDS.factor > 0.1:
        ledgers.append(world.record(step, *args))
    return min(ledgers, key=worst)


def worst(ledger):
    return max(ledger.meta["slipped"])


def go_at_once():
    for parameter in kept()["model"].parameters():
        parameter._post_accumulate_grad_hooks.clear()
        parameter.register_post_accumulate_grad_hook(average_and_go)


def waiting(ledger, rank):
    return sum(row.seconds for row in ledger.where(lane="wait", rank=rank))


def close(measured, predicted, share=0.05):
    return abs(measured - predicted) <= share * predicted


def agree(ledger, paper):
    """Check a recorded step against the predicted: its end, each rank's waiting, each bucket."""
    assert close(ledger.makespan, paper.makespan)
    pairs = [(waiting(ledger, rank), waiting(paper, rank)) for rank in ledger.ranks]
    assert close(sum(mine for mine, _ in pairs), sum(theirs for _, theirs in pairs))
    for mine, theirs in pairs:  # one rank alone may have been late, as it says
        assert abs(mine - theirs) <= max(0.05 * theirs, 0.01 * paper.makespan) + worst(ledger)
    for row in paper.where(lane="comm"):
        (twin,) = ledger.where(lane="comm", rank=row.rank, number=first(ledger) + row.number)
        assert twin.bytes == row.bytes
        for mine, theirs in ((twin.start, row.start), (twin.end, row.end)):
            assert abs(mine - theirs) < 0.03 * paper.makespan
    compute = {"lane": "compute", "rank": 0}
    for op in ("mm", "relu", "threshold_backward", "mul", "add"):
        rows = ledger.where(**compute, op=op), paper.where(**compute, op=op)
        assert sum(r.bytes for r in rows[0]) == sum(r.bytes for r in rows[1]) > 0
    assert len(ledger.where(lane="compute", rank=0)) < 100


def first(ledger):
    return min(row.number for row in ledger.where(lane="comm"))


@pytest.mark.parametrize("kind", ["torch", "hooks"])
def test_overlapped_data_parallelism(worlds, kind):
    ledger = recorded(worlds(8), kind)
    paper = data_parallel_step(WIDTHS, [BATCH] * 8, SPEEDS)
    agree(ledger, paper)
    assert waiting(paper, 0) > 0.2 * paper.makespan  # something is exposed, most is not
    assert len(set(ledger.results)) == 1
    assert ledger.source == "slow motion" and ledger.meta["gpu"] == "H100"
    assert max(ledger.meta["slipped"]) < 0.05 * ledger.makespan


def test_without_overlap_the_prediction_for_overlap_is_far_off(worlds):
    ledger = recorded(worlds(8), "after")
    assert ledger.makespan > 1.25 * data_parallel_step(WIDTHS, [BATCH] * 8, SPEEDS).makespan
    paper = data_parallel_step(WIDTHS, [BATCH] * 8, SPEEDS, overlap=False)
    assert close(ledger.makespan, paper.makespan)
    assert close(waiting(ledger, 3), waiting(paper, 3))


def test_all_wait_for_a_straggler(worlds):
    batches = [BATCH // 2] * 4
    batches[2] = 2 * BATCH
    ledger = recorded(worlds(4), "hooks", batches)
    agree(ledger, data_parallel_step(WIDTHS, batches, SPEEDS))
    assert waiting(ledger, 2) < 0.5 * waiting(ledger, 0)
    assert not close(
        ledger.makespan, data_parallel_step(WIDTHS, [BATCH // 2] * 4, SPEEDS).makespan, 0.5
    )


def stages(microbatches):
    """Two stages: the first sends each microbatch on, the second works while the first goes on."""
    rank, weight = dist.get_rank(), torch.ones(256, 256)
    begin, sent = torch.ones(256, 256), []
    for microbatch in range(microbatches):
        x = torch.empty(256, 256) if rank else begin
        if rank:
            dist.recv(x, 0)
        with span("F", stage=rank, microbatch=microbatch):
            for _ in range(2 + 2 * rank):
                x = x @ weight
        if not rank:
            sent.append(dist.isend(x, 1))
    for work in sent:
        work.wait()


def test_two_stages_of_a_pipeline(worlds):
    worlds(2).run(stages, 1)
    with slowly(worlds(2), SPEEDS) as world:
        ledger = steady(world, stages, 4)
    product = SPEEDS.compute(2 * 256**3, 3 * 4 * 256**2)
    message = SPEEDS.moving("send", 2, 4 * 256**2)
    fill = SPEEDS.compute(0, 2 * 4 * 256**2)
    # a blocking recv is launched when the stage is through with what it had: the message waits too
    assert close(ledger.makespan, fill + 2 * product + 4 * (message + 4 * product), 0.03)
    spans = ledger.where(op="F")
    assert [row.microbatch for row in spans.where(rank=1)] == [0, 1, 2, 3]
    for row in spans:
        paper = (2 + 2 * row.rank) * product
        assert abs(row.seconds - paper) <= 0.03 * paper + worst(ledger)
        assert row.bytes == (2 + 2 * row.rank) * 3 * 4 * 256**2
        assert f"{(2 + 2 * row.rank) * 2 * 256**3 / 1e6:.3g} MFLOP" in row.note
    assert close(waiting(ledger, 1), 2 * product + 4 * message)


def late(seconds):
    """Two seconds of stretched work in forty pieces, with a pause of the host in the middle."""
    x = torch.ones(128, 128)
    for number in range(40):
        x = x @ x
        if number == 20:
            time.sleep(seconds)


def least_late(world, seconds):
    """Record up to ten times, until little but the pause made a rank late."""
    ledgers = []
    while len(ledgers) < 10 and not any(worst(x) < 1.1e-3 * seconds for x in ledgers):
        ledgers.append(world.record(late, seconds))
    return min(ledgers, key=worst)


def test_being_late_is_caught_up_and_told(worlds):
    speeds = SlowMotion("H100", factor=1e3, memory_bandwidth=2 * 4 * 128**2 * 1e5)  # 10 ms each
    with slowly(worlds(2), speeds) as world:
        world.run(late, 0)
        ledger = least_late(world, 0.03)
        assert close(ledger.makespan, 40e-5, 0.03)
        assert every(0.02e-3 < slipped < 0.05e-3 for slipped in ledger.meta["slipped"])
        ledger = least_late(world, 0.3)  # too late to catch up: it stays late, and says so
        assert close(ledger.makespan, 69e-5, 0.05)
        assert every(0.28e-3 < slipped < 0.35e-3 for slipped in ledger.meta["slipped"])
        assert any("slipped" in row.note for row in ledger)


def test_real_work_that_is_too_slow_is_told(worlds):
    with slowly(worlds(2), SlowMotion("H100", factor=1)) as world:
        ledger = world.record(late, 0)
    for rank, slipped in enumerate(ledger.meta["slipped"]):
        rows = ledger.where(rank=rank)
        assert slipped > 0.8 * (max(r.end for r in rows) - min(r.start for r in rows))


def test_the_object_prints_travels_and_refuses():
    speeds = SlowMotion("H100", link="NVLink4", factor=1000)
    assert repr(speeds) == "SlowMotion('H100', link='NVLink4', factor=1000, dtype='bf16')"
    assert eval(repr(speeds)) == pickle.loads(pickle.dumps(speeds)) == speeds
    assert SlowMotion("A100").link == "NVLink3"
    assert speeds.describe() == (
        "Durations are those of the H100 and of NVLink4 (latency 3.4 µs, 450 GB/s one way), played "
        "1,000 times slower."
    )
    assert "an invented link in place of NVLink4" in SlowMotion("H100", alpha=1e-8).describe()
    nodes = SlowMotion("H100", node=4, between="NDR")
    assert eval(repr(nodes)) == nodes and nodes != SlowMotion("H100")
    assert "; between nodes of 4 ranks InfiniBand NDR: latency 14 µs, 50 GB/s)" in nodes.describe()
    for wrong in (
        {"gpu": "H10"}, {"link": "string"}, {"factor": 0}, {"dtype": "int3"}, {"node": 4},
        {"between": "NDR"}, {"node": 4, "between": "string"},
    ):  # fmt: skip
        with pytest.raises(ValueError):
            SlowMotion(**wrong)
