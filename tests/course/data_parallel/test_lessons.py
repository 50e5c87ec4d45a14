"""Chapter 1's small experiments: what each shows on real ranks."""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from lib.course.data_parallel import lessons, wall_clock
from lib.ledger import Row
from lib.parallel.data import DistributedDataParallel
from lib.predict.data.bucket_overlap import fly
from lib.predict.data.buckets import limits_of
from lib.predict.data.ddp_step import data_parallel_step, exposed, parts_of_step
from lib.predict.roofline import speeds
from lib.predict.shape import GPTShape, MLPShape
from lib.predict.step import averaged_backward, gradient_seconds, update
from lib.predict.step import seconds as pieces_seconds
from lib.ranks import RankError
from lib.ranks.slow.roofline import Tally
from lib.single import GPT, Batches, next_token_loss, share
from tests.course.machine import Machine
from tests.every import every

fp32 = speeds("H100", "NVLink4", "fp32")
SMALL = GPTShape(width=32, layers=2, heads=2, sequence=16)


@pytest.fixture
def world(worlds):
    return worlds(4)


def launched_on_arrival(model):
    works = []

    def launch(p):
        p.grad /= dist.get_world_size()
        works.append(dist.all_reduce(p.grad, async_op=True))

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(launch)
    return lambda model: [work.wait() for work in works]


def averaged_at_the_end(model):
    def finish(model):
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()

    return finish


def test_another_order_of_launches_adds_up_gradients_of_different_layers(world):
    right = world.run(lessons.gradients_of, lessons.Branches, averaged_at_the_end)
    assert right == [[2, 3]] * 4
    wrong = world.run(lessons.gradients_of, lessons.Branches, launched_on_arrival)
    assert wrong == [[2.25, 2.75], [2.25, 2.75], [2.75, 2.25], [2.25, 2.75]]


def test_a_sampler_repeats_its_order_unless_it_is_told_the_epoch(world):
    for sets_epoch in (False, True):
        drawn = world.run(lessons.drawn_samples, 10, 2, sets_epoch)
        first, second = ([epochs[n] for epochs in drawn] for n in (0, 1))
        assert (first == second) == (not sets_epoch)
        for by_rank in (first, second):  # 12 are drawn, and all 10 are among them
            together = sum(by_rank, [])
            assert len(together) == 12 and set(together) == set(range(10))


def test_a_rank_that_leaves_out_a_layer_is_named(world):
    with pytest.raises(RankError, match=r"rank 2 raised[\s\S]*without a gradient for 1\.bias"):
        world.run(lessons.short_cut)
    found = world.run(lessons.short_cut, find_unused=True)
    assert found == [["0.weight", "1.bias"]] * 4


def test_step_seconds_are_the_parts_of_the_predicted_step():
    given = lessons.GPT2, 32, 4, speeds("H100", "PCIe4")
    assert lessons.step_seconds(lessons.GPT2, "PCIe4", 32, 4) == parts_of_step(*given)
    compute, *rest = lessons.step_seconds(lessons.GPT2, "PCIe4", 32, 1)
    assert rest == [0, 0] and round(1e3 * compute) == 54  # what the chapter says
    four, _, sent = lessons.step_seconds(lessons.GPT2, "Ethernet 100", 32, 4)
    assert round(1e3 * four, 1) == 14.4 and round(1e3 * compute / 4, 1) == 13.5
    # Updating and averaging, which are not divided, are most of what is more than a quarter.
    weights = [op for op in averaged_backward(lessons.GPT2, 8) if op.ready]
    undivided = pieces_seconds(weights + update(lessons.GPT2), fp32)
    assert 0.6 < 0.75 * undivided / (four - compute / 4) < 1
    # Ethernet's bytes take about as long as one GPU's step, with the loss and without.
    loss = loss_bytes(lessons.GPT2, 32) / fp32.memory_bandwidth
    assert round(1e3 * loss) == 14 and round(1e3 * (four + loss / 4)) == 18
    assert compute < sent < compute + loss and sent == pytest.approx(compute + loss / 2, rel=0.05)
    assert lessons.step_seconds(lessons.GPT2, "Ethernet 10", 32, 4)[2] > 8 * (compute + loss)
    # Over NVLink, overlap and PyTorch's buckets raise the speed-up from 3.37 to 3.6.
    nvlink, default = speeds("H100", "NVLink4"), lessons.gradients_per_bucket(lessons.GPT2, None)
    together = sum(lessons.step_seconds(lessons.GPT2, "NVLink4", 32, 4))
    assert round(compute / together, 2) == 3.37
    assert round((compute + loss) / (together + loss / 4), 2) == 3.48
    hidden = data_parallel_step(lessons.GPT2, [8] * 4, nvlink, buckets=default)
    assert (round(compute / hidden.makespan, 1), round(1e3 * exposed(hidden), 1)) == (3.6, 0.6)
    # With overlap and PyTorch's buckets four GPUs come near one GPU's speed, with the loss nearest.
    link, buckets = speeds("H100", "Ethernet 100"), lessons.gradients_per_bucket(lessons.GPT2, None)
    step = data_parallel_step(lessons.GPT2, [8] * 4, link, buckets=buckets).makespan
    assert compute / step == pytest.approx(0.81, abs=0.01)
    assert (compute + loss) / (step + loss / 4) == pytest.approx(0.97, abs=0.01)


def loss_bytes(shape, batch):
    """The memory traffic of the loss, forward and backward: passes over the logits, counted."""
    logits = torch.randn(2, 4, shape.vocabulary, requires_grad=True)
    with Tally() as tally:
        next_token_loss(logits, torch.zeros(2, 4, dtype=torch.long)).backward()
    passes = sum(cost.bytes for cost in tally.costs) / logits.nbytes
    assert not any(cost.flop for cost in tally.costs) and passes == pytest.approx(7, abs=0.01)
    return passes * batch * shape.sequence * shape.vocabulary * 4


def test_gpt2s_default_buckets_leave_little_more_exposed_than_the_smallest():
    waits = [float(line.split("buckets: ")[1].split()[0])
             for line in lessons.gpt2_exposed().splitlines()[1:]]  # fmt: skip
    assert len(waits) == 3 and waits[1] < 1.2 * waits[0] and waits[2] > 2 * waits[1]
    assert 0 < waits[1] - waits[0] < 0.1  # ms, as the answers below the bucket picture say
    embedding = 1.5 * 50_257 * 768 * 4 / 450e9  # most of what remains, in one tensor
    assert round(1e3 * embedding, 2) == 0.51 and 0.8 < 1e3 * embedding / waits[1] < 1


def test_the_answers_below_the_bucket_picture_are_what_it_predicts():
    """At 2 µs two layers are best, at NVLink's 3.4 µs four; the default has buckets of 1 and 7."""
    times = gradient_seconds(MLPShape((512,) * 9, bias=False), 512, fp32, averaged=True)[::-1]
    link = {"ranks": 4, "bandwidth": fp32.bandwidth}

    def run(limits, alpha):
        return fly([2**20] * 8, times, limits, alpha=alpha, **link)

    for alpha, best in ((2e-6, 2), (fp32.alpha, 4)):
        waits = {n: run((n * 2**20,), alpha).exposed for n in range(1, 9)}
        assert min(waits, key=waits.get) == best
        others = [wait for n, wait in waits.items() if n != best]
        assert min(others) > 1.1 * waits[best]  # a clear winner
    default = run(limits_of(None), fp32.alpha)
    assert [len(flight.inside) for flight in default.flights] == [1, 7]
    of_default, of_four = (1e6 * one.exposed for one in (default, run((2**22,), fp32.alpha)))
    assert (round(of_default, 1), round(of_four, 1)) == (44.9, 34.5)


def test_with_matrix_products_twice_as_long_buckets_of_two_layers_are_best():
    half, shape = replace(fp32, peak=fp32.peak / 2), MLPShape((512,) * 9, bias=False)
    waits = {}
    for k in (1, 2, 4, 8):
        step = data_parallel_step(shape, [512] * 4, half, buckets=[k] * (8 // k))
        waits[k] = round(1e6 * exposed(step), 1)
    assert min(waits, key=waits.get) == 2 and waits[2] == 27.6


def test_a_predicted_step_is_joined_to_phases_and_its_all_reduces_are_hidden_or_exposed():
    shape = MLPShape((512,) * 9, bias=False)
    step = data_parallel_step(shape, [512] * 4, fp32, buckets=[4, 4])
    late, hidden = lessons.exposed_and_hidden(step, fp32)
    moving = 2 * fp32.moving("all_reduce", 4, 4 * 2**20)
    assert late > 0 and late + hidden == pytest.approx(1e6 * moving)
    together = data_parallel_step(shape, [512] * 4, fp32, buckets=[4, 4], overlap=False)
    assert lessons.exposed_and_hidden(together, fp32)[1] == pytest.approx(0, abs=1e-6)
    for updated, phases in ((True, 3), (False, 2)):
        joined = lessons.in_phases(step, shape, update=updated).where(rank=3, lane="compute")
        names = [row.op for row in joined]
        assert names == ["forward", "backward", "step"][:phases]
    forward, backward = joined
    waits = step.where(rank=3, lane="wait")
    assert forward.end == backward.start and backward.end == waits.column("start").min()


def test_a_step_is_timed_with_and_without_its_all_reduces(worlds):
    shape = MLPShape((8,) * 3, bias=False)
    without, whole = wall_clock.compared(worlds(2), Machine(), shape, 4)
    operations = 2 + 1 + 3 + 1 + 2 + 2  # forward, ReLU; backward, ReLU; averaging; update
    assert without[:2] == ("without all-reduces", operations)
    assert whole[0] == "whole step" and operations < whole[1] <= operations + 10
    assert every(0 < row[2] < 5 for row in (without, whole))
    text = wall_clock.table([("without", 10.0, 8.0), ("whole", 12.0, 12.0)], 0.25)
    rows = [line.split() for line in text.splitlines()[1:-1]]
    assert rows[0] == ["without", "10000.0", "8000.0", "+25%"]
    assert rows[2] == ["exposed", "2000.0", "4000.0", "-50%"]  # two errors that cancel
    assert rows[1][-1] == "0%" and text.endswith("as calibrated: 25%")
    for error, written in ((-0.004, "0%"), (0.004, "0%"), (-0.006, "-1%"), (0.3, "+30%")):
        assert wall_clock.percent(error) == written


def test_microbatches_are_timed_and_their_activations_counted():
    shape = GPTShape(width=16, layers=1, heads=2, sequence=8)
    one, two = wall_clock.accumulation(shape, 4, (1, 2))
    assert one[0] == 1 and one[2] == 1 and two[2] > 0
    assert two[1] == pytest.approx(one[1] / 2, rel=0.01)
    lines = wall_clock.microbatches(shape, 4, (1, 2)).splitlines()
    assert len(lines) == 3 and lines[1].split()[-1] == "1.0"


def test_recordings_on_one_axis_are_equally_long():
    shape = MLPShape((8,) * 3, bias=False)
    one, two = (data_parallel_step(shape, [4] * 2, fp32, overlap=o) for o in (True, False))
    short, long = lessons.on_one_axis(one, two)
    assert short.makespan == pytest.approx(long.makespan) and long == two
    assert len(short) == len(one) + 1 and short[-1].lane == "wait" and short[-1].seconds == 0


def weights_after(loss_factor, eps):
    ddp, batches = DistributedDataParallel(GPT(SMALL).double()), Batches(16, 16)
    optimizer = torch.optim.AdamW(ddp.parameters(), 0.003, eps=eps)
    for batch in (batches[number] for number in range(5)):
        optimizer.zero_grad()
        x, y = share(batch, dist.get_rank(), 4)
        (loss_factor * next_token_loss(ddp(x), y)).backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in ddp.parameters()])


def test_adamw_sees_a_forgotten_division_only_in_epsilon(world):
    """With an epsilon four times as large, the sum of four gradients gives the mean's weights."""
    mean = world.run(weights_after, 1, 1e-8)[0]
    assert not torch.equal(world.run(weights_after, 4, 1e-8)[0], mean)
    assert torch.equal(world.run(weights_after, 4, 4e-8)[0], mean)


@pytest.mark.parametrize("norm, times", [(2.0, 1), (0.5, 2), (0.3, 1 / 0.3), (0.2, 4), (0.1, 4)])
def test_a_sum_that_is_clipped_is_up_to_n_times_too_large(norm, times):
    """Four ranks, clipped at 1: as the mean above 1, of norm 1 down to 1/4, below four times it."""
    clipped = []
    for factor in (1, 4):
        p = torch.zeros(2)
        p.grad = factor * norm * torch.tensor([0.6, 0.8])
        logged = torch.nn.utils.clip_grad_norm_([p], 1.0)
        assert float(logged) == pytest.approx(factor * norm)
        clipped.append(float(p.grad.norm()))
    assert clipped[1] / clipped[0] == pytest.approx(times, rel=1e-4)


def normalised(rows):
    """The outputs of a batch normalisation under DDP for this rank's two rows."""
    ddp = DistributedDataParallel(torch.nn.BatchNorm1d(1))
    return ddp(rows[2 * dist.get_rank() :][:2]).detach()


def test_batch_normalisation_uses_each_ranks_own_rows(world):
    rows = torch.arange(8.0)[:, None]
    together = torch.nn.BatchNorm1d(1)(rows)
    for n, out in enumerate(world.run(normalised, rows)):
        mine = slice(2 * n, 2 * n + 2)
        assert torch.allclose(out, torch.nn.BatchNorm1d(1)(rows[mine]))
        assert not torch.allclose(out, together[mine])


def buffer_in_forward(wrap):
    """Change a model buffer on every rank, and return what the forward pass finds."""
    seen, norm = [], torch.nn.BatchNorm1d(1)
    ddp = wrap(norm)
    norm.running_mean.fill_(1 + dist.get_rank())
    norm.register_forward_pre_hook(lambda *_: seen.append(norm.running_mean.item()))
    ddp(torch.ones(2, 1))
    return seen


@pytest.mark.parametrize("wrap", [TorchDDP, DistributedDataParallel])
def test_model_buffers_are_broadcast_again_before_a_forward_pass(world, wrap):
    assert world.run(buffer_in_forward, wrap) == [[1.0]] * 4


def buffer_after(context):
    """Change a model buffer after a forward pass inside a context; return what the next finds."""
    seen, norm = [], torch.nn.BatchNorm1d(1)
    ddp = TorchDDP(norm)
    with ddp.no_sync() if context == "no_sync" else getattr(torch, context)():
        ddp(torch.ones(2, 1))
    norm.running_mean.fill_(1 + dist.get_rank())
    norm.register_forward_pre_hook(lambda *_: seen.append(norm.running_mean.item()))
    ddp(torch.ones(2, 1))
    return seen


def test_pytorch_skips_the_broadcast_of_buffers_after_no_sync_and_no_grad(world):
    for context, own in (("no_sync", True), ("no_grad", True), ("enable_grad", False)):
        found = world.run(buffer_after, context)
        assert found == [[1.0 + rank * own] for rank in range(4)]


def first_step_of_three_layers(find_unused):
    """Run the first step of PyTorch's class with a bucket for each of three layers."""
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4, bias=False) for _ in range(3)))
    ddp = TorchDDP(model, bucket_cap_mb=64 / 2**20, find_unused_parameters=find_unused)
    ddp(torch.ones(1, 4)).sum().backward()


def test_pytorch_sends_one_bucket_in_the_first_step_unless_it_searches_unused(world):
    for find_unused, count in ((False, 1), (True, 3)):
        ledger = world.record(first_step_of_three_layers, find_unused)
        sums = [r for r in ledger.where(rank=0, op="all_reduce", lane="comm") if r.bytes >= 64]
        assert len(sums) == count


def test_an_operation_is_printed_on_one_line_with_its_first_number():
    sizes = (("all_gather", 64), ("broadcast", 338_944))
    rows = [Row(0, "comm", op, 0, 1, bytes=nbytes) for op, nbytes in sizes]
    lines = lessons.folded(f"  at construction: {lessons._listed(rows)}", "    ").splitlines()
    assert lines == ["  at construction: all_gather 64,", "    broadcast 338,944"]


def test_messages_fit_a_narrow_screen():
    assert max(map(len, lessons.folded("word " * 40, "    ").splitlines())) <= 48
