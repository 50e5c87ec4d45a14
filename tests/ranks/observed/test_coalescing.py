"""What NCCL does otherwise than gloo: batches are one launch, some operations give no work.

A small double stands for it: gloo, which notes the order, puts a batch off to its end, and gives no
work for a synchronous operation.
"""

import contextlib
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from lib import RankError
from lib.course.checks.sent_bytes import rounds
from lib.parallel.data.ddp import DistributedDataParallel
from lib.predict.collectives import plans
from lib.ranks import algorithms
from lib.ranks.observed.observed_work import Finished
from tests.every import every


class Coalescing:
    """Gloo that behaves as NCCL does, on tensors of the CPU."""

    def __init__(self, inner):
        self.inner, self.order, self.noted = inner, [], None

    def __getattr__(self, name):
        method = getattr(self.inner, name)
        if not name.startswith(("all", "reduce", "broadcast", "gather", "scatter", "barrier")):
            return method

        def operation(*args, **kwargs):
            work, options = method(*args, **kwargs), args[-1] if args else kwargs.get("opts")
            if getattr(options, "asyncOp", True):
                return work
            work.wait()
            return None

        return operation

    def _get_backend(self, device):
        return SimpleNamespace(supports_coalescing=True)

    def _start_coalescing(self, device):
        self.noted = []
        self.order.append("start")

    def _note(self, name, *args):
        self.order.append(name)
        if args[0][0].dtype is torch.bool:
            raise RuntimeError("NCCL has no such dtype")
        if self.noted is None:
            return getattr(self.inner, name)(*args)
        self.noted.append((name, args))
        return None

    def send(self, *args):
        return self._note("send", *args)

    def recv(self, *args):
        return self._note("recv", *args)

    def _end_coalescing(self, device):
        self.order.append("end")
        noted, self.noted = self.noted, None
        self.works = [getattr(self.inner, name)(*args) for name, args in noted]
        return self

    def wait(self):
        for work in self.works:
            work.wait()
        return True


@contextlib.contextmanager
def like_nccl():
    """Let the world's group behave as NCCL's for a while; give the double."""
    group = dist.group.WORLD
    plain, group.inner = group.inner, Coalescing(group.inner)
    try:
        yield group.inner
    finally:
        group.inner = plain


def ring(dtype=torch.float32):
    """Give the operations that pass a tensor round a ring, and where it arrives."""
    rank, n = dist.get_rank(), dist.get_world_size()
    arrived = torch.empty(4, dtype=dtype)
    mine = torch.full((4,), rank).to(dtype)
    return [
        dist.P2POp(dist.isend, mine, (rank + 1) % n),
        dist.P2POp(dist.irecv, arrived, (rank - 1) % n),
    ], arrived


def together():
    with like_nccl() as inner:
        operations, arrived = ring()
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        return arrived[0].item(), inner.order


def test_a_batch_is_one_launch(worlds):
    ledger = worlds(2).record(together)
    assert [value for value, _ in ledger.results] == [1.0, 0.0]
    assert [order for _, order in ledger.results] == [["start", "send", "recv", "end"]] * 2
    rows = ledger.where(lane="comm")
    assert sorted(row.op for row in rows) == ["recv", "recv", "send", "send"]
    assert every(row.end > row.start and row.bytes == 16 for row in rows)


def test_each_message_of_a_batch_is_waited_for(worlds):
    ledger = worlds(2).record(together)
    waits = ledger.where(lane="wait", rank=0)
    assert sorted(row.op for row in waits) == ["recv", "send"]
    assert sum(row.end - row.start for row in waits) > 0


def test_without_batches_they_leave_one_after_the_other(worlds):
    def on_gloo():
        operations, arrived = ring()
        works = dist.batch_isend_irecv(operations)
        for work in works:
            work.wait()
        return arrived[0].item(), len(works)

    assert worlds(2).run(on_gloo) == [(1.0, 2), (0.0, 2)]


@pytest.mark.parametrize("name", algorithms.ALGORITHMS)
def test_rounds_of_batches_are_the_predicted_ones(worlds, name):
    """What is counted from the waits is the same whether messages leave one by one or together."""

    def summed(batched):
        with like_nccl() if batched else contextlib.nullcontext():
            return algorithms.all_reduce(torch.ones(64), name).sum().item()

    predicted = len(getattr(plans, name)(4).rounds)
    for batched in (False, True):
        ledger = worlds(4).record(summed, batched)
        assert ledger.results == [256.0] * 4
        assert rounds(ledger) == predicted


# Nothing of a batch that broke off stays behind.


def total():
    x = torch.ones(1)
    dist.all_reduce(x)
    return x.item()


def broken_off(where):
    """Break a batch off, in one of many ways; give what was raised, and whether sums work."""
    group, told, x = dist.group.WORLD, [], torch.ones(2)

    def attempt(block):
        try:
            block()
        except Exception as error:
            told.append(f"{type(error).__name__}: {error}")

    def in_torchs_table():
        with dist._coalescing_manager(group):
            dist.all_reduce(x)
            raise KeyError("mine")

    def of_two_kinds():
        with dist._coalescing_manager(group):
            dist.all_reduce(x)
            dist.all_gather_single(torch.empty(2 * dist.get_world_size()), x)

    def on_gloo():
        with dist._coalescing_manager(group, torch.device("cpu")):
            raise AssertionError("it must not come to that")

    def after_a_send():
        with dist._coalescing_manager(group, torch.device("cpu")):
            dist.isend(x, (dist.get_rank() + 1) % dist.get_world_size())
            raise KeyError("mine")

    def to_nobody():
        operations, _ = ring()
        operations[1].group_peer = 17
        dist.batch_isend_irecv(operations)

    def elsewhere():
        with dist._coalescing_manager(group, torch.device("meta")):
            dist.isend(x, (dist.get_rank() + 1) % dist.get_world_size())

    with contextlib.nullcontext() if where == "on_gloo" else like_nccl() as inner:
        attempt(locals()[where])
        order = list(inner.order) if inner else []
        state = len(dist.distributed_c10d._world.pg_coalesce_state), group.asked
        for work in dist.batch_isend_irecv(ring()[0]):
            work.wait()
        return told, order, state, total()


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("in_torchs_table", "KeyError: 'mine'"),
        ("of_two_kinds", "RuntimeError: Coalescing manager requires all collectives to be"),
        ("on_gloo", "RuntimeError: Group world cannot launch operations on cpu tensors as one"),
        ("after_a_send", "KeyError: 'mine'"),
        ("to_nobody", "ValueError: There is no rank 17 to receive from"),
        ("elsewhere", "ValueError: A batch of group world is for tensors on meta, and one of"),
    ],
)
def test_a_batch_that_breaks_off_leaves_no_trace(worlds, where, words):
    """Later operations are launched, and count as before: nothing waits to be put into a batch."""
    for told, order, state, summed in worlds(2).run(broken_off, where):
        assert len(told) == 1 and told[0].startswith(words)
        assert (order, state, summed) == ([], (0, None), 2.0)


def test_a_launch_that_fails_ends_the_batch_of_nccl(worlds):
    """NCCL itself is left outside of a batch, though one of its launches was refused."""

    def refused():
        with like_nccl() as inner:
            with contextlib.suppress(RuntimeError):
                dist.batch_isend_irecv(ring(torch.bool)[0])
            return inner.order, inner.noted, dist.group.WORLD.asked

    assert worlds(2).run(refused) == [(["start", "send", "end"], None, None)] * 2


def test_a_mismatch_in_a_batch_is_told_before_anything_is_launched(worlds):
    def differing():
        with like_nccl():
            operations, _ = ring(torch.float32 if dist.get_rank() else torch.float64)
            for work in dist.batch_isend_irecv(operations):
                work.wait()

    with pytest.raises(RankError, match=r"message \d+ from rank . to rank . differs"):
        worlds(2).run(differing)
    assert worlds(2).run(total) == [2.0, 2.0]


# Synchronous operations give no work.


def every_synchronous_operation():
    rank, n = dist.get_rank(), dist.get_world_size()
    four, whole = torch.ones(4), torch.ones(4 * n)
    dist.all_reduce(four)
    dist.broadcast(four, 1)
    dist.reduce(four, 0)
    dist.all_gather_single(whole.clone(), four)
    dist.all_gather([torch.empty(4) for _ in range(n)], four)
    dist.reduce_scatter_single(four.clone(), whole)
    dist.all_to_all_single(whole.clone(), whole)
    dist.gather(four, [torch.empty(4) for _ in range(n)] if rank == 0 else None, dst=0)
    dist.scatter(four, [torch.ones(4) for _ in range(n)] if rank == 1 else None, src=1)
    dist.barrier()
    with dist._coalescing_manager():
        dist.all_reduce(four)
        dist.all_reduce(whole)


def pretended_step(step):
    with like_nccl():
        return step()


def test_synchronous_operations_without_a_work(worlds):
    """Each is recorded with an end and as a wait: the stream that launched it did nothing else."""
    plain = worlds(2).record(every_synchronous_operation)
    ledger = worlds(2).record(pretended_step, every_synchronous_operation)
    for lane in ("comm", "wait"):
        mine, theirs = (
            [(r.op, r.bytes) for r in one.where(lane=lane, rank=0)] for one in (ledger, plain)
        )
        assert len(mine) == 11 and mine == theirs
    comm, waits = ledger.where(lane="comm", rank=0), ledger.where(lane="wait", rank=0)
    assert every(row.end > row.start for row in comm)
    assert [(r.start, r.end) for r in comm] == [(r.start, r.end) for r in waits]


def test_a_finished_work_is_one():
    """Whatever may be asked of a work is answered: it is over, and no error is known."""
    work = Finished()
    assert work.wait() and work.is_completed() and work.is_success()
    assert work.exception() is None and work.get_future().wait() == work.result() == []


def fsdp_step():
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = torch.nn.Linear(8, 4, bias=False)
    fully_shard(model)
    model(torch.ones(2, 8)).sum().backward()
    return model.weight.grad.full_tensor()


def ddp_step():
    torch.manual_seed(0)
    kinds = torch.nn.parallel.DistributedDataParallel, DistributedDataParallel
    found = []
    for kind in kinds:
        model = kind(torch.nn.Linear(8, 4))
        model(torch.ones(2, 8)).sum().backward()
        found.append([p.grad for p in model.parameters()])
    return found


@pytest.mark.parametrize("step", [fsdp_step, ddp_step])
def test_pytorchs_own_classes_without_works(worlds, step):
    """They ask for synchronous operations too; their gradients are those that gloo gives."""
    torch.testing.assert_close(worlds(2).run(pretended_step, step), worlds(2).run(step))
