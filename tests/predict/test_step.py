"""A step's predicted operations are PyTorch's, and every prediction takes its times from them."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lib.parallel.pipeline.runtime import stage_costs
from lib.predict import step
from lib.predict.data import ddp_step, dp_step
from lib.predict.data.bucket_overlap import fly
from lib.predict.flops import flops_of_blocks
from lib.predict.operations import Operation
from lib.predict.pipeline.schedules import gpipe
from lib.predict.roofline import Speeds, speeds
from lib.predict.shape import GPTShape, MLPShape, ModelShape
from lib.ranks.slow import roofline
from lib.ranks.slow_motion import SlowMotion
from lib.single import GPT, MLP
from tests.every import every

SHAPES = [
    MLPShape((6, 10, 12, 4)),
    MLPShape((6, 10, 12, 4), bias=False),
    GPTShape(vocabulary=50, sequence=12, width=24, heads=3, layers=2, hidden=40),
    GPTShape(vocabulary=50, sequence=12, width=24, heads=3, layers=1, hidden=40, tied=True),
    GPTShape(vocabulary=50, sequence=12, width=24, heads=6, kv_heads=2, layers=2, hidden=40),
    GPTShape(50, 12, 24, 6, 1, 40, tied=True, kv_heads=2, positions="rotary"),
    GPTShape(50, 12, 24, 3, 2, 40, dropout=0.1),
    GPTShape(50, 12, 24, 6, 1, 40, kv_heads=2, positions="rotary", dropout=0.1),
]
HARDWARE = speeds("H100", "NVLink4")
by_shape = pytest.mark.parametrize("shape", SHAPES, ids=[
    "mlp", "no bias", "gpt", "tied", "grouped", "rotary", "dropout", "all options",
])  # fmt: skip


class Performed(TorchDispatchMode):
    """Lists what PyTorch performs: (name, FLOP, bytes), and the names of gradients in between."""

    def __init__(self):
        super().__init__()
        self.events = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        cost = roofline.cost(func, args, kwargs or {}, out)
        if cost != roofline.NOTHING:
            self.events.append((func._overloadpacket.__name__.rstrip("_"), *cost))
        return out


def built(shape, batch, dtype=torch.float32):
    """Build the model of a shape, with its input."""
    if isinstance(shape, GPTShape):
        return GPT(shape).to(dtype), torch.randint(50, (batch, shape.sequence))
    return MLP(shape).to(dtype), torch.randn(batch, 6, dtype=dtype)


def predicted(operations):
    """List what `Performed` would see of predicted operations."""
    return [event for op in operations for event in ((*op[:3],), *op.ready)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batch", [1, 3])
@by_shape
def test_each_operation_is_pytorchs(shape, batch, dtype):
    (model, x), itemsize = built(shape, batch, dtype), dtype.itemsize
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with Performed() as forward:
        y = model(x)
    assert forward.events == predicted(step.forward(shape, batch, None, itemsize))
    gradient = torch.ones_like(y)
    with Performed() as backward:
        for name, parameter in model.named_parameters():
            add = lambda _, name=name: backward.events.append(name)
            parameter.register_post_accumulate_grad_hook(add)
        y.backward(gradient)
    assert backward.events == predicted(step.backward(shape, batch, None, itemsize))
    with Performed() as update:
        optimizer.step()
    assert update.events == predicted(step.update(shape, itemsize))


@by_shape
def test_in_16_bits_statistics_and_angles_have_32(shape):
    """Attention with dropout is left out: PyTorch's CPU computes it in 32 bits."""
    shape = replace(shape, dropout=0.0) if isinstance(shape, GPTShape) else shape
    model, x = built(shape, 3, torch.bfloat16)
    with Performed() as forward:
        y = model(x)
    assert forward.events == predicted(step.forward(shape, 3, None, 2))
    gradient = torch.ones_like(y)
    with Performed() as backward:
        y.backward(gradient)
    assert backward.events == [op[:3] for op in step.backward(shape, 3, None, 2)]


@pytest.mark.parametrize("heads", [1, 6])
@pytest.mark.parametrize("options", [{}, {"positions": "rotary"}, {"dropout": 0.1}], ids=str)
@pytest.mark.parametrize("samples", [(1, 1), (3, 1), (3, 5)], ids=str)
def test_a_head_alone_and_short_samples(samples, options, heads):
    """Where a dim has one entry, what must be copied otherwise lies as it is needed."""
    shape = GPTShape(50, 12, 24, heads, 1, kv_heads=1, **options)
    model, tokens = GPT(shape), torch.randint(50, samples)
    with Performed() as forward:
        y = model(tokens)
    assert forward.events == predicted(step.forward(shape, *samples))
    gradient = torch.ones_like(y)
    with Performed() as backward:
        y.backward(gradient)
    assert backward.events == [op[:3] for op in step.backward(shape, *samples)]


@by_shape
def test_the_flop_of_each_block_are_those_of_flops(shape):
    for passes, flop in zip(step.passes(shape, 3), flops_of_blocks(shape, 3), strict=True):
        assert sum(op.flop for op in passes.forward) == flop.forward
        assert sum(op.flop for op in passes.backward) == flop.backward


@by_shape
def test_the_time_of_each_gradient(shape):
    taken = step.gradient_seconds(shape, 3, HARDWARE)
    assert len(taken) == len(shape.parameters) and every(second > 0 for second in taken)
    backward = step.backward(shape, 3)
    assert sum(taken) == pytest.approx(step.seconds(backward, HARDWARE))
    assert sorted(step.arrivals(backward)) == sorted(p.name for p in shape.parameters)


def test_the_time_of_each_gradient_by_hand():
    """With a second for each matrix product, layers 3, 2 and 1 take 2 s, 2 s and 1 s."""
    products = SimpleNamespace(compute=lambda flop, nbytes: float(flop > 0))
    assert step.gradient_seconds(SHAPES[1], 3, products) == [1.0, 2.0, 2.0]
    assert step.gradient_seconds(SHAPES[0], 3, products) == [0.5, 0.5, 1.0, 1.0, 1.0, 1.0]


def times(shape, batch):
    """Forward and backward of one device or rank, in seconds, by every prediction of them."""
    device = dp_step.data_parallel_devices_step(shape, batch, 1, HARDWARE, batch_bytes=8)
    dp = [device.where(op=op).column("seconds").sum() for op in ("forward", "backward")]
    rank = ddp_step.data_parallel_step(shape, [batch], HARDWARE).where(lane="compute")
    averaging = sum(HARDWARE.compute(0, 8 * parameter.numel) for parameter in shape.parameters)
    last = len(rank) - len(step.update(shape))
    first = last - len(step.averaged_backward(shape, batch))
    ddp = rank[:first].column("seconds").sum(), rank[first:last].column("seconds").sum() - averaging
    model, x = built(shape, batch)
    slow, schedule = SlowMotion("H100", link="NVLink4"), gpipe(2, 1)
    loss = lambda y, target: y.sum()
    costs = stage_costs(model, schedule, x, x, slow, loss=loss)
    loss_of = slow.seconds(lambda: model(x).sum() / 1) - slow.seconds(model, x)
    pieces = [step.seconds(ops(shape, batch), HARDWARE) for ops in (step.forward, step.backward)]
    return {
        "forward": [pieces[0], dp[0], ddp[0], sum(costs.forward) - loss_of],
        "backward": [pieces[1], dp[1], ddp[1], sum(step.gradient_seconds(shape, batch, HARDWARE))],
    }


@by_shape
def test_every_prediction_gives_one_time_for_one_pass(shape):
    for name, found in times(shape, 3).items():
        assert found == pytest.approx([found[0]] * len(found)), name


def test_a_prediction_with_an_operation_of_its_own_is_found(monkeypatch):
    """A bite: if DDP's prediction adds a ReLU, its forward is longer than the others'."""
    own = SimpleNamespace(**vars(step))
    own.forward = lambda *args: [*step.forward(*args), Operation("relu", 0, 800)]
    monkeypatch.setattr(ddp_step, "step", own)
    forward = times(SHAPES[0], 3)["forward"]
    assert forward[2] > 1.01 * forward[0] and forward[1] == pytest.approx(forward[0])


@by_shape
def test_the_gradients_that_fill_buckets_are_those_of_the_step(shape):
    """Overlap by gradients and by rows: the all-reduces start and end at the same times."""
    limit, parameters = shape.nbytes() // 3, {p.name: 4 * p.numel for p in shape.parameters}
    order = step.arrivals(step.backward(shape, 3))
    each = dict(zip(parameters, step.gradient_seconds(shape, 3, HARDWARE, averaged=True)))
    sizes = [parameters[name] for name in order]
    run = fly(sizes, [each[name] for name in order], (limit,), ranks=4, alpha=HARDWARE.alpha,
              bandwidth=HARDWARE.bandwidth)  # fmt: skip
    counts = ddp_step.gradients_per_bucket(shape, limit)
    whole = ddp_step.data_parallel_step(shape, [3] * 4, HARDWARE, buckets=counts)
    began = step.seconds(step.forward(shape, 3), HARDWARE)
    rows = whole.where(rank=0, lane="comm")
    assert [f.bytes for f in run.flights] == [row.bytes for row in rows]
    assert [f.full for f in run.flights] == pytest.approx([row.start - began for row in rows])
    assert [f.end for f in run.flights] == pytest.approx([row.end - began for row in rows])


@by_shape
def test_the_parts_of_a_step_add_up_to_the_step_that_hides_nothing(shape):
    parts = ddp_step.parts_of_step(shape, 12, 4, HARDWARE)
    gradients = [len(shape.parameters)]
    whole = ddp_step.data_parallel_step(shape, [3] * 4, HARDWARE, buckets=gradients, overlap=False)
    assert sum(parts) == pytest.approx(whole.makespan)
    assert parts[1] == pytest.approx(6 * HARDWARE.alpha)


def test_speeds_are_those_of_slow_motion():
    slow = SlowMotion("H100", link="PCIe5", dtype="bf16")
    figures = slow.peak, slow.memory_bandwidth, slow.alpha, slow.bandwidth
    found = speeds("H100", "PCIe5")
    assert found == Speeds(*figures, gpu="H100", link="PCIe5")
    for arguments in ((1e9, 1e3), (1e3, 1e9)):
        assert slow.compute(*arguments) == found.compute(*arguments)


def test_what_is_not_known_is_refused():
    with pytest.raises(ValueError, match="operations of a ModelShape are not known"):
        step.forward(ModelShape(), 1)
    with pytest.raises(ValueError, match="65 tokens is too long"):
        step.forward(GPTShape(), 1, 65)
