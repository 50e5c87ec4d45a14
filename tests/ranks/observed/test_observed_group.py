"""Every collective of any code is seen: the reader's, and those of PyTorch's own classes."""

from collections import Counter

import pytest
import torch
import torch.distributed as dist
from torch import nn

from lib.course.checks.sent_bytes import sent
from lib.draw import traffic
from lib.ranks import span
from tests.every import every


def counted(ledger, rank=0):
    """Give {operation: (how many, bytes)} of one rank."""
    found = {}
    for row in ledger.where(lane="comm", rank=rank):
        count, size = found.get(row.op, (0, 0))
        found[row.op] = (count + 1, size + row.bytes)
    return found


def size_of(model):
    return sum(p.numel() * p.element_size() for p in model.parameters())


def layers(count=2, width=16):
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(count)))


# The reader's own calls: each operation, with the full buffer that nccl-tests counts.


def all_operations():
    rank, n = dist.get_rank(), dist.get_world_size()
    four, whole = torch.ones(4), torch.ones(4 * n)
    dist.all_reduce(four)
    dist.broadcast(four, 1)
    dist.reduce(four, 2)
    dist.all_gather_single(whole.clone(), four)
    dist.all_gather([torch.empty(4) for _ in range(n)], four)
    dist.reduce_scatter_single(four.clone(), whole)
    dist.all_to_all_single(whole.clone(), whole)
    dist.gather(four, [torch.empty(4) for _ in range(n)] if rank == 0 else None, dst=0)
    dist.scatter(four, [torch.ones(4) for _ in range(n)] if rank == 3 else None, src=3)
    dist.barrier()
    if rank == 0:
        dist.send(four, 1)
    if rank == 1:
        dist.recv(four, 0)


@pytest.mark.parametrize("rank", range(4))
def test_each_operation_with_its_bytes(worlds, rank):
    S, whole = 16, 64
    expected = {
        "all_reduce": (1, S), "broadcast": (1, S), "reduce": (1, S), "all_gather": (2, 2 * whole),
        "reduce_scatter": (1, whole), "all_to_all": (1, whole), "gather": (1, whole),
        "scatter": (1, whole), "barrier": (1, 0),
    } | ({"send": (1, S)} if rank == 0 else {"recv": (1, S)} if rank == 1 else {})  # fmt: skip
    ledger = worlds(4).record(all_operations)
    assert counted(ledger, rank) == expected
    roots = {row.op: row.peer for row in ledger.where(lane="comm", rank=rank)}
    assert (roots["broadcast"], roots["reduce"], roots["gather"], roots["scatter"]) == (1, 2, 0, 3)


def test_members_agree_on_the_number_and_the_arrival_of_each_collective(worlds):
    ledger = worlds(4).record(all_operations)
    rows = [r for r in ledger.where(lane="comm") if r.op not in ("send", "recv")]
    seen = Counter((row.number, row.op, row.arrived) for row in rows)
    assert set(seen.values()) == {4} and len(seen) == 10
    # Where everyone hears from everyone nobody is done before the last has come; a root may be.
    rows = [r for r in rows if r.op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")]
    assert rows and all(row.start <= row.arrived <= row.end for row in rows)


def late_by(seconds):
    import time

    if dist.get_rank() == 2:
        time.sleep(seconds)
    dist.all_reduce(torch.ones(4))


def test_waiting_and_moving_are_told_apart(worlds):
    ledger = worlds(4).record(late_by, 0.2)
    waiting = [row.waiting for row in ledger.where(lane="comm", op="all_reduce")]
    moving = [row.moving for row in ledger.where(lane="comm", op="all_reduce")]
    ranks = ledger.where(lane="comm", op="all_reduce").column("rank")
    assert every((w > 0.15) == (r != 2) for w, r in zip(waiting, ranks, strict=True))
    assert max(moving) < 0.1


def spans():
    with span("forward", microbatch=3, stage=1):
        torch.ones(300, 300) @ torch.ones(300, 300)
        dist.all_reduce(torch.ones(4))
    with span("optimizer"):
        torch.ones(10)


def test_spans_are_compute_rows_and_a_wait_inside_one_is_a_wait(worlds):
    ledger = worlds(2).record(spans)
    rows = sorted(ledger.where(rank=0, lane={"compute", "wait"}), key=lambda row: row.start)
    ops = [row.op for row in rows]
    assert ops == ["compute", "forward", "all_reduce", "forward", "compute", "optimizer", "compute"]
    assert every(
        a.end == b.start for a, b in zip(rows, rows[1:], strict=False)
    )  # no gap, no overlap
    assert {(r.microbatch, r.stage) for r in rows if r.op == "forward"} == {(3, 1)}


def nothing_recorded_twice():
    from lib.ranks.state.this_rank import this_rank

    return this_rank.recording is None


def test_recording_ends_with_the_call(worlds):
    worlds(2).record(spans)
    assert worlds(2).run(nothing_recorded_twice) == [True, True]


def from_any_source():
    rank, received = dist.get_rank(), torch.empty(1)
    if rank:
        dist.send(torch.tensor([float(rank)]), 0)
        dist.barrier()
        dist.send(torch.tensor([10.0 * rank]), 0)
        return None
    sources = [dist.recv(received) for _ in range(3)]
    dist.barrier()
    for source in (1, 2, 3):
        dist.recv(received, source)
        assert received.item() == 10.0 * source
    return sorted(sources)


def test_messages_from_any_source_are_counted_when_they_have_come(worlds):
    ledger = worlds(4).record(from_any_source)
    assert ledger.results[0] == [1, 2, 3]
    assert counted(ledger)["recv"] == (6, 24) and counted(ledger, 2)["send"] == (2, 8)


# PyTorch's own.


def ddp_step(model, bucket_mb):
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(model, bucket_cap_mb=bucket_mb)
    for _ in range(2):
        model(torch.ones(2, 16)).sum().backward()


def test_ddp_is_one_all_reduce_a_bucket(worlds):
    model = layers(2)
    seen = counted(worlds(4).record(ddp_step, model, 25))
    assert seen["all_reduce"] == (2, 2 * size_of(model))  # two steps, one bucket
    # Shapes compared and weights sent at construction; buckets agreed on anew after the first step.
    assert (seen["all_gather"][0], seen["broadcast"][0]) == (1, 2 + 2)


def test_ddp_with_small_buckets_sends_the_same_bytes_in_more_pieces(worlds):
    model = layers(4)
    seen = counted(worlds(2).record(ddp_step, model, 0.001))
    assert seen["all_reduce"][1] == 2 * size_of(model)
    assert seen["all_reduce"][0] > 4


def fsdp_step(model):
    from torch.distributed.fsdp import fully_shard

    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    model(torch.ones(2, 16)).sum().backward()
    return [type(parameter).__name__ for parameter in model.parameters()]


def test_fsdp2_gathers_twice_and_scatters_once_a_layer(worlds):
    model = layers(2)
    ledger = worlds(4).record(fsdp_step, model)
    seen = counted(ledger)
    # The root holds no parameters of its own: two layers, forward and backward.
    assert seen["all_gather"] == (4, 2 * size_of(model))
    assert seen["reduce_scatter"] == (2, size_of(model))
    assert set(ledger.results[0]) == {"DTensor"}


def tensor_parallel_step(model):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    model = parallelize_module(model, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
    with span("step"):
        model(torch.ones(2, 16)).sum()


def test_dtensor_tensor_parallel_is_one_all_reduce_forward(worlds):
    ledger = worlds(4).record(tensor_parallel_step, layers(2))
    sums = ledger.where(lane="comm", op="all_reduce", rank=0)
    assert [(row.bytes, row.members) for row in sums] == [(2 * 16 * 4, (0, 1, 2, 3))]


def pipeline_step(stages, microbatches):
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    rank, n = dist.get_rank(), dist.get_world_size()
    stage = PipelineStage(stages[rank], rank, n, stages[rank].weight.device)
    schedule = ScheduleGPipe(stage, microbatches, loss_fn=lambda out, target: (out - target).sum())
    inputs, target = torch.ones(8, 16), torch.ones(8, 16)
    if rank == 0:
        schedule.step(inputs)
    else:
        schedule.step(target=target) if rank == n - 1 else schedule.step()


def test_gpipe_of_torch_sends_each_microbatch_once_each_way(worlds):
    microbatches, n = 4, 4
    ledger = worlds(n).record(pipeline_step, list(layers(n)), microbatches)
    piece = 8 // microbatches * 16 * 4
    for rank in range(n):
        rows = ledger.where(lane="comm", rank=rank)
        forward = [r for r in rows if r.op == "send" and r.peer == rank + 1 and r.bytes == piece]
        backward = [r for r in rows if r.op == "send" and r.peer == rank - 1 and r.bytes == piece]
        assert len(forward) == (microbatches if rank < n - 1 else 0)
        assert len(backward) == (microbatches if rank > 0 else 0)


def test_functional_collectives_are_seen(worlds):
    ledger = worlds(2).record(functional)
    assert counted(ledger) == {"all_reduce": (1, 16), "all_gather": (1, 32)}
    assert ledger.results == [[3.0, 8], [3.0, 8]]


def functional():
    import torch.distributed._functional_collectives as fc

    summed = fc.all_reduce(torch.full((4,), 1.0 + dist.get_rank()), "sum", dist.group.WORLD)
    return [summed[0].item(), fc.all_gather_tensor(torch.ones(4), 0, dist.group.WORLD).numel()]


def test_a_recording_without_observation_would_see_nothing(worlds):
    """The bite: the same step through plain gloo, round the observed group, leaves no row."""
    assert counted(worlds(2).record(around)) == {}


def around():
    dist.group.WORLD.inner.allreduce([torch.ones(4)]).wait()


# What an uneven all_to_all sends to each member.


def uneven(counts):
    rank = dist.get_rank()
    sent, received = counts[rank], [row[rank] for row in counts]
    dist.all_to_all_single(torch.empty(sum(received), 3), torch.ones(sum(sent), 3), received, sent)


def test_an_uneven_all_to_all_says_what_goes_to_each_member(worlds):
    counts = [[1, 0, 4], [2, 2, 2], [0, 0, 0]]
    ledger = worlds(3).record(uneven, counts)
    rows = [ledger.where(lane="comm", rank=rank)[0] for rank in range(3)]
    assert [row.bytes for row in rows] == [12 * sum(row) for row in counts]
    # Equal parts need no list, and nothing is equal parts of nothing.
    assert [row.parts for row in rows] == [(12, 0, 48), (), ()]
    assert sent(ledger) == [48, 48, 0]
    routes = traffic(ledger).live[1]["routes"]
    assert {(a, b): size for _, _, a, b, size, *_ in routes if size} == {
        (a, b): 12 * counts[a][b] for a in range(3) for b in range(3) if a != b and counts[a][b]
    }
