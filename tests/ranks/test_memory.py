"""Bytes alive by kind: against formulas, PyTorch's MemTracker, and the allocator's own events."""

import gc
import itertools
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker
from torch.nn.functional import scaled_dot_product_attention
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from lib.ranks import span
from lib.ranks.memory import KINDS, Memory

ROWS, WIDTHS = 64, (16, 32, 48, 8)


def alive(**kinds):
    return dict.fromkeys(KINDS, 0) | kinds


def bytes_of(*tensors):
    return sum(t.numel() * t.element_size() for t in tensors)


class MLP(nn.Sequential):
    def __init__(self):
        torch.manual_seed(0)
        layers = [nn.Linear(i, o) for i, o in zip(WIDTHS, WIDTHS[1:])]
        super().__init__(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])


class Block(nn.Module):
    def __init__(self, width=24, heads=3):
        torch.manual_seed(0)
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.register_buffer("scale", torch.ones(5))

    def forward(self, x):
        b, s, d = x.shape
        qkv = self.qkv(self.norm1(x)).view(b, s, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = scaled_dot_product_attention(*qkv.unbind(), is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, s, d))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


def train(model, optimizer, x, gradient):
    out = model(x)
    out.backward(gradient)
    optimizer.step()
    del out
    optimizer.zero_grad()


MODELS = {
    "mlp": (MLP, (ROWS, WIDTHS[0]), (ROWS, WIDTHS[-1])),
    "block": (Block, (2, 10, 24), (2, 10, 24)),
}
OPTIMIZERS = {
    "adam": lambda p: torch.optim.Adam(p),
    "foreach": lambda p: torch.optim.AdamW(p, foreach=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
}


def made(name, optimizer="adam"):
    kind, inside, outside = MODELS[name]
    model = kind()
    return model, OPTIMIZERS[optimizer](model.parameters()), torch.ones(inside), torch.ones(outside)


def test_mlp_by_hand():
    model, optimizer, x, gradient = made("mlp")
    weights = 4 * sum(i * o + o for i, o in zip(WIDTHS, WIDTHS[1:]))
    hidden = 4 * ROWS * sum(WIDTHS[1:-1])  # each ReLU keeps its result; a Linear keeps its input
    inputs, result = 4 * ROWS * WIDTHS[0], 4 * ROWS * WIDTHS[-1]
    states = 2 * weights + 4 * 6  # two moments, and a step counter for each of six tensors
    with Memory(model, optimizer) as memory:
        assert memory.now == alive(parameters=weights)
        out = model(x)
        expected = {"parameters": weights, "activations": hidden, "other": inputs + result}
        assert memory.now == alive(**expected)
        out.backward(gradient)
        known = {"parameters": weights, "gradients": weights, "other": inputs + 2 * result}
        assert memory.now == alive(**known)
        optimizer.step()
        assert memory.now == alive(**known, optimizer=states)
        optimizer.zero_grad()
        del out
        left = {"parameters": weights, "optimizer": states, "other": inputs + result}
        assert memory.now == alive(**left)
    assert memory.now == alive(**left)


def test_block_by_hand():
    model, optimizer, x, gradient = made("block")
    (b, s, d), heads = x.shape, model.heads
    tokens = b * s
    # kept by: norm 2·(mean, 1/std) and, as inputs of what follows, norm1 D, qkv 3D, attention D and
    # its logsumexp (one for each head), the sum D, norm2 D, up 4D, GELU 4D
    numbers = tokens * (d * (1 + 3 + 1 + 1 + 1 + 4 + 4) + 4 + heads)
    with Memory(model, optimizer) as memory:
        model(x).backward(gradient)
        out = model(x)
        assert memory.now["activations"] == 4 * numbers
        assert memory.now["other"] == bytes_of(x, out, gradient)
        assert memory.now["buffers"] == 20


@pytest.mark.parametrize("steps", [1, 2])  # the second meets optimizer states
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", MODELS)
def test_peak_equals_pytorchs_tracker(name, optimizer, steps):
    model, adam, x, gradient = made(name, optimizer)
    with Memory(model, adam) as memory:
        for _ in range(steps):
            train(model, adam, x, gradient)
    model, adam, x, gradient = made(name, optimizer)  # the same anew
    oracle = MemTracker()
    oracle.track_external(model, adam, x)
    with oracle:
        for _ in range(steps):
            train(model, adam, x, gradient)
            oracle.reset_mod_stats()
    theirs = oracle.get_tracker_snapshot("peak")[torch.device("cpu")]
    theirs = {kind if kind == "Total" else kind.value: n for kind, n in theirs.items()}
    assert memory.peak == sum(memory.at_peak.values()) == theirs["Total"]
    assert memory.at_peak["parameters"] == theirs["Parameter"]
    assert memory.at_peak["buffers"] == theirs["Buffer"]
    # what they call activation is all that forward makes, what we do is what backward keeps
    assert memory.at_peak["activations"] <= theirs["Activation"]


@pytest.mark.parametrize("name", MODELS)
def test_peak_equals_the_allocators_own_events(name):
    model, optimizer, x, gradient = made(name, "sgd")
    with Memory(model, optimizer) as memory:
        train(model, optimizer, x, gradient)
    model, optimizer, x, gradient = made(name, "sgd")
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        train(model, optimizer, x, gradient)
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda e: e.start_ns())
    peak = max(itertools.accumulate(e.nbytes() for e in events))
    assert memory.peak == peak + bytes_of(x, gradient, *model.parameters(), *model.buffers())


@pytest.mark.filterwarnings("ignore::FutureWarning")  # from looking at every object there is
def test_now_equals_what_python_finds():
    model, optimizer, x, gradient = made("mlp")
    gc.collect()
    before = {id(item) for item in gc.get_objects() if isinstance(item, torch.Tensor)}
    with Memory(model, optimizer) as memory:
        train(model, optimizer, x, gradient)
        new = [item for item in gc.get_objects() if isinstance(item, torch.Tensor)]
        found = {t.untyped_storage()._cdata: t for t in new if id(t) not in before}
        total = sum(t.untyped_storage().nbytes() for t in found.values())
        assert memory.now["optimizer"] == total
        del new, found


def test_tied_weights_views_and_resizes_count_once():
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
    model[1].weight = model[0].weight
    with Memory(model) as memory:
        big = torch.zeros(1000)
        views = [big[10:20], big.view(10, 100)]
        assert memory.now == alive(parameters=256, other=4000)
        del big
        assert memory.now["other"] == 4000  # a small view keeps all of it
        views.clear()
        assert memory.now["other"] == 0
        empty = torch.zeros(100)
        empty.untyped_storage().resize_(0)
        assert memory.now["other"] == 0
    assert memory.peak == 256 + 4000


def test_checkpointing_keeps_less_and_computes_anew():
    model, _, x, gradient = made("mlp")
    with Memory(model) as plain:
        out = model(x)
        kept = plain.now["activations"]
        out.backward(gradient)
    model.forward = lambda x: checkpoint(nn.Sequential(*model), x, use_reentrant=False)
    with Memory(model) as memory:
        out = model(x)
        assert memory.now["activations"] == 0 < kept
        out.backward(gradient)
    assert max(row.bytes for row in memory.rows if row.op == "activations") >= kept


def test_a_graph_that_was_retained_is_let_go_with_its_output():
    """Case 32: results that autograd saves do not keep their own graph alive."""
    model, _, x, gradient = made("mlp")
    x.requires_grad_()
    with Memory(model) as memory:
        out = model(x)
        kept = memory.now["activations"]
        torch.autograd.grad(out, x, gradient, retain_graph=True)
        assert memory.now["activations"] == kept == 4 * ROWS * sum(WIDTHS[1:-1])
        del out
        assert memory.now == alive(
            parameters=bytes_of(*model.parameters()), other=bytes_of(x, gradient)
        )


def test_gradients_of_gradients_are_those_without_counting():
    """What autograd saves is part of its graph again when it comes back."""

    def second():
        x = torch.linspace(-1, 1, 5, requires_grad=True)
        (first,) = torch.autograd.grad(x.tanh().exp().sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0]

    with Memory(nn.Linear(1, 1)):
        counted = second()
    assert torch.equal(counted, second()) and counted.abs().min() > 0


class Operations(TorchDispatchMode):
    """Lists the operations of a block."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


def test_holding_what_autograd_saves_is_no_operation():
    """Slow motion, which looks at every operation beside `Memory`, finds none more for it."""
    model, _, x, _ = made("mlp")
    with Operations() as plain:
        out = model(x)
    with Operations() as beside, Memory(model):
        counted = model(x)
    assert torch.equal(out, counted)  # without hooks, autograd itself detaches what it saves
    assert beside.names == [name for name in plain.names if name != "aten::detach"]


def test_what_the_reader_still_holds_is_other():
    model, optimizer, x, gradient = made("mlp")
    model.append(nn.ReLU())  # keeps its result, which is the model's
    with Memory(model, optimizer) as memory:
        out = model(x)
        kept = memory.now["activations"]
        out.backward(gradient)
        held = model[0].weight.grad
        optimizer.zero_grad()
        assert kept == 4 * ROWS * sum(WIDTHS[1:])
        assert memory.now["activations"] == memory.now["gradients"] == 0
        assert memory.now["other"] == bytes_of(x, gradient, out, held)


def test_the_peak_names_operation_and_span():
    model = nn.Linear(4, 4)
    with Memory(model) as memory:
        with span("loading"):
            torch.ones(10_000)
    assert memory.peak_at == "ones in loading"
    assert memory.peak == 40_000 + 80
    assert "the peak came with ones in loading" in str(memory)


def test_a_peak_holds_what_was_alive_in_its_moment():
    """As many bytes of another kind later on are another moment."""
    model = nn.Linear(100, 1, bias=False)
    with Memory(model) as memory:
        model.weight.grad = torch.zeros_like(model.weight)
        assert memory.now["gradients"] == 400  # it is found where it is asked for
        model.weight.grad = None
        held = torch.zeros(100)
        at_peak = memory.at_peak
    assert memory.peak == 800 and held.sum() == 0
    assert at_peak == alive(parameters=400, gradients=400)


def test_nothing_stays_after_the_block():
    model, optimizer, x, gradient = made("mlp")
    resize = torch.UntypedStorage.resize_
    with pytest.raises(ZeroDivisionError), Memory(model, optimizer) as memory:
        model(x)
        1 / 0  # noqa: B018
    count = len(memory.rows)
    train(model, optimizer, x, gradient)
    assert len(memory.rows) == count
    assert torch.UntypedStorage.resize_ is resize
    assert not model._forward_hooks and not optimizer._optimizer_step_post_hooks


def remembered():
    model, optimizer, x, gradient = made("mlp")
    with Memory(model, optimizer) as memory:
        dist.all_reduce(x)
        train(model, optimizer, x, gradient)
    return memory.peak, [(row.op, row.bytes) for row in memory.rows]


def test_a_recording_gets_the_rows(worlds):
    ledger = worlds(2).record(remembered)
    for rank, (peak, rows) in enumerate(ledger.results):
        recorded = ledger.where(rank=rank, lane="memory")
        assert [(row.op, row.bytes) for row in recorded] == rows
        assert max(row.bytes for row in recorded) <= peak


def test_figures_of_a_gpu_stand_beside_ours(monkeypatch):
    """Without a GPU there are none; with one they are torch's own (pretended here)."""
    model = torch.nn.Linear(2, 2)
    assert Memory(model).gpu is None
    counts, was_reset = torch.accelerator, []
    monkeypatch.setattr("lib.ranks.memory.is_gpu", lambda device: True)
    monkeypatch.setattr(counts, "reset_peak_memory_stats", was_reset.append)
    monkeypatch.setattr(counts, "memory_allocated", lambda device: 512)
    monkeypatch.setattr(counts, "max_memory_allocated", lambda device: 1024)
    with Memory(model) as memory:
        assert memory.gpu == {"now": 512, "peak": 1024}
        assert was_reset == [model.weight.device]


def test_garbage_may_be_collected_while_kinds_are_sorted():
    """Tensors in cycles live until the collector runs, which new objects make it do at any time."""
    model, before = nn.Linear(2, 2), gc.get_threshold()
    gc.set_threshold(1_000_000)
    try:
        with Memory(model) as counted:
            for _ in range(4000):
                cycle = [torch.ones(4).add(1)]
                cycle.append(cycle)
            del cycle
            gc.set_threshold(gc.get_count()[0] + 2000)  # in the middle of what sorting makes
            model(torch.ones(2))
    finally:
        gc.set_threshold(*before)
    assert counted.peak >= 4000 * 16


def after_each_scatter(times):
    """Count what is alive after each of many collectives for which gloo makes a buffer.

    Returns the bytes while a work is held and after it is dropped, and the shortest time of one.
    """
    x, out = torch.ones(4096), torch.empty(4096 // dist.get_world_size())
    held, left, seconds = set(), set(), []
    with Memory(nn.Module()) as memory:
        dist.reduce_scatter_single(out, x)
        for _ in range(times):
            began = time.perf_counter()
            work = dist.reduce_scatter_single(out, x, async_op=True)
            work.wait()
            held.add(sum(memory.now.values()))
            del work
            left.add(sum(memory.now.values()))
            seconds.append(time.perf_counter() - began)
    return held, left, min(seconds)


def test_the_buffers_of_a_collective_live_as_long_as_its_work(worlds):
    for held, left, seconds in worlds(4, device="cpu").run(after_each_scatter, 300):
        assert held == {4 * (2 * 4096 + 1024)} and left == {4 * (4096 + 1024)}
        assert seconds < 0.02, "nothing is waited for that does not come"
