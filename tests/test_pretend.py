"""The pretended GPU is one: what these tests ask of it, a real GPU does. See pretend/README.md."""

import threading

import pytest
import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint

from tests.every import every

pytestmark = pytest.mark.skipif(
    getattr(torch.accelerator.current_accelerator(), "type", "") != "pretend",
    reason="_build/pretend is not on PYTHONPATH",
)
GPU = "pretend:1"


def test_it_is_the_accelerator():
    assert torch.accelerator.device_count() == 4
    assert torch.ones(2, device="pretend").device == torch.device("pretend:0")
    assert torch.ones(2).to(GPU).device == torch.device(GPU)


def test_devices_do_not_mix():
    x = torch.ones(3, device=GPU)
    for other in ("cpu", "pretend:2"):
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            x + torch.ones(3, device=other)
    assert (x + torch.tensor(1.0)).tolist() == [2, 2, 2]  # a number may come from the CPU
    with pytest.raises((RuntimeError, TypeError)):
        x.numpy()


def test_its_random_numbers_are_its_own():
    def drawn(device):
        torch.manual_seed(0)
        return torch.randn(4, device=device)

    assert torch.equal(drawn(GPU), drawn(GPU))
    assert not torch.equal(drawn(GPU).cpu(), drawn("cpu"))
    x, layer = torch.ones(100, device=GPU, requires_grad=True), torch.nn.Dropout()
    checkpoint(layer, x, use_reentrant=False).sum().backward()
    assert set(x.grad.tolist()) == {0.0, 2.0}  # the numbers of the first time, drawn again


def test_views_share_memory():
    x = torch.zeros(6, device=GPU)
    x.view(2, 3)[1].add_(1)
    torch.view_as_complex(x.view(3, 2)).imag[0] = 5
    assert x.tolist() == [0, 5, 0, 1, 1, 1]


def test_a_step_is_the_cpus():
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 3), torch.nn.Flatten(), torch.nn.GELU(), torch.nn.Linear(18, 3)
    )
    x, y, weights = torch.randn(4, 1, 5, 5), torch.tensor([0, 1, 2, 0]), {}
    start = {name: value.clone() for name, value in model.state_dict().items()}
    for device in ("cpu", GPU):
        model.load_state_dict(start)
        model.to(device)
        optimizer = torch.optim.AdamW(model.parameters())
        torch.nn.functional.cross_entropy(model(x.to(device)), y.to(device)).backward()
        optimizer.step()
        weights[device] = [p.detach().cpu().clone() for p in model.parameters()]
        model.zero_grad()
    for cpu, gpu in zip(weights["cpu"], weights[GPU], strict=True):
        assert torch.equal(cpu, gpu)


def test_backward_runs_in_another_thread():
    threads, weight = [], torch.ones(2, device=GPU, requires_grad=True)
    weight.register_hook(lambda gradient: threads.append(threading.get_ident()))
    (2 * weight).sum().backward()
    assert threads and threading.get_ident() not in threads


def test_memory_is_counted():
    before = torch.accelerator.memory_allocated(1)
    x = torch.ones(1000, device=GPU)
    assert torch.accelerator.memory_allocated(1) == before + 4000
    del x
    assert torch.accelerator.memory_allocated(1) == before
    assert torch.accelerator.max_memory_allocated(1) >= before + 4000


# --- what behaves as NCCL


def bare(rank, size, path):
    """Join a group of the backend alone, with nothing of ours around it."""
    torch.accelerator.set_device_index(rank)
    store = dist.FileStore(path, size)
    dist.init_process_group("pretend_nccl", store=store, rank=rank, world_size=size)
    return torch.full((4,), rank + 1.0, device=f"pretend:{rank}"), dist.group.WORLD


def options(asynchronous):
    made = dist.AllreduceOptions()
    made.asyncOp = asynchronous
    return made


def numbers(rank, size, path):
    x, group = bare(rank, size, path)
    assert group.allreduce([x], options(False)) is None  # no work
    assert x.tolist() == [3.0] * 4
    work = group.allreduce([x], options(True))
    work.wait()
    assert x.tolist() == [6.0] * 4
    dist.all_reduce(x, op=dist.ReduceOp.AVG)
    assert x.tolist() == [6.0] * 4
    both = torch.empty(8, device=x.device)
    dist.all_gather_single(both, x)
    assert both.tolist() == [6.0] * 8
    dist.reduce_scatter_single(x, both)
    assert x.tolist() == [12.0] * 4
    y = torch.empty_like(x)
    batch = [dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, y, 1 - rank)]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    assert y.tolist() == [12.0] * 4
    with pytest.raises(RuntimeError, match="No backend type associated with device type cpu"):
        dist.all_reduce(torch.ones(1))
    dist.barrier()
    dist.destroy_process_group()


def one_comes_late(rank, size, path):
    x, group = bare(rank, size, path)
    dist.barrier()
    if rank == 1:
        dist.recv(torch.empty(1, device=x.device), 0)  # rank 0 has gone on meanwhile
    work = group.allreduce([x], options(True))
    if rank == 0:
        work.wait()  # returns at once: the stream waits, not the thread
        event = torch.Event("pretend", enable_timing=True)
        event.record()
        assert not work.is_completed() and not event.query()
        side = torch.Stream("pretend")
        with torch.pretend.stream(side):  # another stream goes on
            dist.send(torch.ones(1, device=x.device), 1)
            torch.accelerator.current_stream().synchronize()
        event.synchronize()
        assert work.is_completed()
    else:
        work.wait()
    assert x.tolist() == [3.0] * 4
    dist.destroy_process_group()


def memory_is_given_back(rank, size, path):
    """What a stream still waits for reads memory that is free: nothing else gets it before."""
    x, group = bare(rank, size, path)
    group.allreduce([x], options(False))
    x.fill_(rank + 1.0)
    if rank == 1:
        dist.recv(torch.empty(1, device=x.device), 0)  # rank 0 has given it back meanwhile
    halves = torch.empty(2, device=x.device)
    group._reduce_scatter_base(halves, x, dist.ReduceScatterOptions()).wait()
    x.untyped_storage().resize_(0)
    if rank == 0:
        others = [
            torch.full((4,), 9.0) for _ in range(50)
        ]  # the processor's: they wait for nothing
        side = torch.Stream("pretend")
        with torch.pretend.stream(side):
            dist.send(torch.ones(1, device=x.device), 1)
        del others
    assert halves.tolist() == [3.0] * 2
    dist.destroy_process_group()


def both_send_first(rank, size, path):
    x, group = bare(rank, size, path)
    y = torch.empty_like(x)
    works = [dist.isend(x, 1 - rank), dist.irecv(y, 1 - rank)]
    threading.Event().wait(0.5)
    assert not any(work.is_completed() for work in works)
    group._get_backend(x.device).abort()
    assert every(work.is_completed() for work in works)  # whoever waited goes on
    with pytest.raises(dist.DistBackendError, match="was aborted"):
        dist.all_reduce(x)


def crossing(rank, x, group) -> list:
    """Rank 0 begins a collective and sends; rank 1 receives before it comes to the collective."""
    if rank == 0:
        return [group.allreduce([x], options(True)), dist.isend(torch.ones_like(x), 1)]
    return [dist.irecv(torch.empty_like(x), 0), group.allreduce([x], options(True))]


def a_message_has_a_lane_of_its_pair(rank, size, path):
    x, group = bare(rank, size, path)
    dist.barrier()
    for work in crossing(rank, x, group):
        work.wait()
    assert x.tolist() == [3.0] * 4
    dist.destroy_process_group()


def not_in_a_group_that_was_connected_eagerly(rank, size, path):
    """PyTorch warns of it: such messages are serialized with all that the group does."""
    x, group = bare(rank, size, path)
    backend = group._get_backend(x.device)
    backend.eager_connect_single_device(x.device)
    works = crossing(rank, x, group)
    threading.Event().wait(0.5)
    assert not any(work.is_completed() for work in works)
    backend.abort()


CHECKS = [numbers, one_comes_late, memory_is_given_back, both_send_first]
CHECKS += [a_message_has_a_lane_of_its_pair, not_in_a_group_that_was_connected_eagerly]


@pytest.mark.parametrize("check", CHECKS)
def test_its_collectives_behave_as_nccls(check, tmp_path):
    from torch.multiprocessing import start_processes

    context = start_processes(
        check, (2, str(tmp_path / "store")), 2, join=False, start_method="spawn"
    )
    try:
        assert context.join(timeout=60) or context.join(timeout=60)
    finally:
        for process in context.processes:
            process.kill()
