"""Backward in another thread, as CUDA's autograd runs it: the recorder and Memory see it all."""

import threading

import pytest
import torch
import torch.distributed as dist
from torch import nn

from lib.ranks import span
from lib.ranks.memory import Memory
from lib.ranks.process.carried_call import CarriedCall, carry_out
from lib.ranks.state.default_device import make_default
from tests.every import every

PRETENDED = getattr(torch.accelerator.current_accelerator(), "type", "") == "pretend"


def in_a_thread():
    """Sum gradients in hooks, while a thread of its own runs backward."""
    x, threads = torch.ones(4, requires_grad=True), set()

    def hook(x):
        threads.add(threading.current_thread().name)
        with span("hook"):
            dist.all_reduce(x.grad)

    x.register_post_accumulate_grad_hook(hook)
    with span("backward"):
        beside = threading.Thread(target=(x * 3).sum().backward, name="autograd")
        beside.start()
        beside.join()
    return x.grad.tolist(), threads


def test_hooks_of_another_thread_are_recorded(worlds):
    ledger = worlds(2).record(in_a_thread)
    assert ledger.results == [([6.0] * 4, {"autograd"})] * 2
    rows = sorted(ledger.where(rank=0, lane={"compute", "wait"}), key=lambda row: row.start)
    assert [row.op for row in rows] == [
        "compute", "backward", "hook", "all_reduce", "hook", "backward", "compute",
    ]  # fmt: skip
    assert len(ledger.where(rank=0, lane="comm", op="all_reduce")) == 1


def step():
    """Take a step with a hook for each parameter; give the threads of the hooks, and the bytes."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    threads = set()

    def hook(p):
        threads.add(threading.get_ident())
        with span("hook"):
            p.grad.mul_(0.5)

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(hook)
    x = torch.ones(8, 64)
    with Memory(model, optimizer) as memory:
        with span("forward"):
            y = model(x).square().mean()
        with span("backward"):
            y.backward()
        optimizer.step()
    return threads, (memory.peak, memory.at_peak, memory.peak_at, memory.now)


@pytest.mark.skipif(not PRETENDED, reason="_build/pretend is not on PYTHONPATH")
def test_a_gpus_backward_is_seen_like_the_processors():
    """Autograd has a thread for each GPU: bytes, spans and rows are those of one device."""
    (here, plain), columns = carry_out(CarriedCall(step, record=True))
    make_default("pretend:2")
    try:
        (there, bytes_alive), on_gpu = carry_out(CarriedCall(step, record=True))
    finally:
        torch.set_default_device(None)
    assert here == {threading.get_ident()} and threading.get_ident() not in there
    assert bytes_alive == plain

    def seen(columns, lane):
        return [
            op for op, where in zip(columns["op"], columns["lane"], strict=True) if where == lane
        ]

    assert sorted(seen(on_gpu, "memory")) == sorted(seen(columns, "memory"))
    assert seen(on_gpu, "compute") == seen(columns, "compute")
    assert every(isinstance(moment, int) for moment in on_gpu["start"] + on_gpu["end"])
