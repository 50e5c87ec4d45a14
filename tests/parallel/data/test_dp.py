"""Data parallel by threads: the plain model's numbers, five exchanges, and a crowded device 0."""

import copy

import pytest
import torch
from torch import nn

from lib.parallel.data import dp
from lib.parallel.data.dp import DataParallel
from lib.predict.shape import GPTShape, MLPShape
from lib.single import GPT, MLP, Batches, mean_squares, next_token_loss, share, train_step
from tests.every import every

SHAPE = MLPShape((6, 10, 7, 4))
DEVICES = pytest.mark.parametrize("devices", [1, 2, 4])


def batch_of(kind):
    if kind == "gpt":
        return Batches(8)[0]
    draw = torch.Generator().manual_seed(0)
    return tuple(torch.randn(8, n, generator=draw, dtype=torch.float64) for n in (6, 4))


def steps(model, batch, loss, count=3):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x = batch[0].clone().requires_grad_(batch[0].is_floating_point())
    losses = [train_step(model, optimizer, (x, batch[1]), loss).item() for _ in range(count)]
    gradients = [p.grad for p in model.parameters()]
    return losses, model(x).detach(), [x.grad, *gradients, *model.state_dict().values()]


@DEVICES
@pytest.mark.parametrize("kind", ["gpt", "mlp"])
def test_spread_equals_whole(devices, kind):
    model = (GPT(GPTShape(width=32, layers=2)) if kind == "gpt" else MLP(SHAPE)).double()
    loss = next_token_loss if kind == "gpt" else mean_squares
    plain, batch = copy.deepcopy(model), batch_of(kind)
    mine, truth = steps(DataParallel(model, devices), batch, loss), steps(plain, batch, loss)
    assert mine[0] == pytest.approx(truth[0], rel=1e-13)
    assert torch.allclose(mine[1], truth[1], rtol=1e-12)
    for a, b in zip(mine[2], truth[2], strict=True):
        assert a is b is None or (a - b).norm() <= 1e-13 * b.norm()


def test_without_the_reduce_it_is_not_the_whole(monkeypatch):
    monkeypatch.setattr(DataParallel, "_reduce", lambda self, parts: parts[0])
    model = MLP(SHAPE).double()
    plain, batch = copy.deepcopy(model), batch_of("mlp")
    mine = steps(DataParallel(model, 2), batch, mean_squares, 1)
    truth = steps(plain, batch, mean_squares, 1)
    assert any((a - b).norm() > 0.1 * b.norm() for a, b in zip(mine[2], truth[2]))


class Hard(nn.Module):
    """Tied, frozen, unused, a parameter used twice, batch norm, and outputs of several kinds."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.unused = nn.Linear(6, 6), nn.Linear(3, 3)
        self.tied, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6)
        self.tied.weight = self.first.weight
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.lstm = nn.LSTM(6, 6, batch_first=True)

    def forward(self, x, *, scale):
        y = self.frozen(self.tied(self.first(self.norm(x)).tanh()).tanh())
        z = self.lstm(y[:, None])[0][:, 0]
        return {"y": y * scale, "parts": [z, (z.argmax(1), "text")], "number": y.square().mean()}


def hard_step(model, x):
    out = model(x, scale=2.0)
    (out["y"].square().mean() + out["parts"][0].mean() + out["number"].mean()).backward()
    return out, [p.grad for p in model.parameters()]


def test_hard_models_and_nested_outputs():
    model, draw = Hard().eval(), torch.Generator().manual_seed(1)
    plain, x = copy.deepcopy(model), torch.randn(8, 6, generator=draw)
    (mine, gradients), (truth, wanted) = hard_step(DataParallel(model, 4), x), hard_step(plain, x)
    assert torch.allclose(mine["y"], truth["y"], atol=1e-6)
    assert torch.equal(mine["parts"][1][0], truth["parts"][1][0])
    assert mine["parts"][1][1] == "text"
    assert mine["number"].shape == (4,) and torch.allclose(mine["number"].mean(), truth["number"])
    for a, b in zip(gradients, wanted, strict=True):
        assert a is b is None or torch.allclose(a, b, atol=1e-6)
    assert sum(gradient is None for gradient in gradients) == 4


def test_device_0_keeps_what_its_buffers_learn():
    model, x = Hard(), torch.randn(8, 6, generator=torch.Generator().manual_seed(1))
    hard_step(DataParallel(model, 4), x)
    alone = nn.BatchNorm1d(6)
    alone(share(x, 0, 4))
    assert torch.allclose(model.norm.running_mean, alone.running_mean)


class Fails(MLP):
    def forward(self, x):
        if (x > 100).any():
            raise KeyError("a sample that nobody expected")
        return super().forward(x)


def test_what_goes_wrong_says_where():
    model, x = DataParallel(Fails(SHAPE), 4), torch.ones(8, 6)
    with pytest.raises(
        ValueError, match="Dim 0 has 7 entries; 4 ranks or devices cannot share them equally"
    ):
        model(x[:7])
    x[5] = 1000
    with pytest.raises(KeyError) as caught:
        model(x)
    assert caught.value.__notes__ == ["This happened in forward on device 2 of 4."]
    out = model(torch.ones(8, 6)).sum()
    out.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="been through backward already"):
        out.backward()
    with pytest.raises(
        ValueError, match="The model is on cpu, which must be the first of the devices"
    ):
        DataParallel(MLP(SHAPE), ["meta", "cpu"])


def test_without_gradients_nothing_is_kept():
    model = MLP(SHAPE)
    with torch.no_grad():
        out = DataParallel(model, 2)(torch.ones(8, 6))
    assert not out.requires_grad and torch.equal(out, model(torch.ones(8, 6)))
    assert list(DataParallel(model, 2).state_dict()) == list(model.state_dict())


def test_autocast_reaches_the_devices():
    model, x = MLP(SHAPE), torch.randn(8, 6)
    with torch.autocast("cpu", torch.bfloat16):
        mine, plain = DataParallel(model, 4)(x), model(x)
    assert mine.dtype == plain.dtype == torch.bfloat16
    assert torch.allclose(mine, plain, rtol=0.02, atol=1e-3)


def recorded(devices):
    model = MLP(SHAPE)
    wrapped, batch = DataParallel(model, devices), [t.float() for t in batch_of("mlp")]
    optimizer = torch.optim.AdamW(model.parameters())
    train_step(wrapped, optimizer, batch, mean_squares)
    return wrapped, (train_step, wrapped, optimizer, batch, mean_squares)


@DEVICES
def test_five_exchanges_a_batch(devices):
    wrapped, call = recorded(devices)
    ledger = wrapped.record(*call)
    model, outputs = SHAPE.nbytes(), 8 * 4 * 4
    predicted = [
        ("scatter", 8 * 6 * 4), ("broadcast", model), ("gather", outputs), ("scatter", outputs),
        ("reduce", model),
    ]  # fmt: skip
    for device in range(devices):
        rows = ledger.where(rank=device, lane="comm")
        assert [(row.op, row.bytes) for row in rows] == predicted
        assert {row.members for row in rows} == {tuple(range(devices))}
        work = [row.op for row in ledger.where(rank=device, lane="compute", op=BOTH)]
        assert work == BOTH
    (forward,) = {row.end for row in ledger.where(rank=devices - 1, op="forward")}
    assert forward <= min(row.start for row in ledger.where(op="gather"))
    assert isinstance(ledger.results[0], torch.Tensor) and ledger.ranks == tuple(range(devices))


BOTH = ["forward", "backward"]


def in_a_world():
    device = torch.get_default_device()
    gpus = device.type != "cpu" and torch.accelerator.device_count()
    _, call = recorded([device] * 4 if gpus and gpus < 4 else 4)
    call[0](*call[1:])


def test_a_world_records_them_too(worlds):
    rows = worlds(1).record(in_a_world).where(lane="comm")
    five = ["scatter", "broadcast", "gather", "scatter", "reduce"]
    assert [row.op for row in rows] == 2 * five
    assert {row.note for row in rows} == {"4 devices"} and {row.group for row in rows} == {
        "devices"
    }


def peaks(ledger, device):
    """Most bytes of each kind alive on a device, and at the end."""
    rows = ledger.where(rank=device, lane="memory")
    kinds = {row.op for row in rows}
    most = {kind: max(row.bytes for row in rows.where(op=kind)) for kind in kinds}
    return most, {kind: rows.where(op=kind)[-1].bytes for kind in kinds}


def test_device_0_is_crowded():
    wrapped, call = recorded(4)
    ledger = wrapped.record(*call)
    model, hidden = SHAPE.nbytes(), 2 * (10 + 7) * 4  # two samples' outputs of the two ReLUs
    zero, end = peaks(ledger, 0)
    assert zero["parameters"] == end["parameters"] == model
    # AdamW: two states for each number, and a counter for each parameter
    assert end["optimizer"] == 2 * model + 4 * len(SHAPE.parameters)
    assert end["gradients"] == model and end["activations"] == 0
    # Sums in the making, a copy and the outputs, but not the other devices' own gradients
    assert zero["other"] < 3 * model
    for device in (1, 2, 3):
        most, end = peaks(ledger, device)
        assert most["parameters"] == model and most["gradients"] == model
        assert most["activations"] == hidden
        assert set(end.values()) == {0}  # all gone after the step
        assert "optimizer" not in most
        assert sum(zero.values()) > sum(most.values()) + 3 * model


def test_a_recording_leaves_nothing_behind():
    wrapped, call = recorded(2)
    one, two = wrapped.record(*call), wrapped.record(*call)
    assert [(r.op, r.bytes) for r in one.where(rank=1)] == [
        (r.op, r.bytes) for r in two.where(rank=1)
    ]
    assert every(not p._post_accumulate_grad_hooks for p in wrapped.module.parameters())
    assert wrapped.devices[0].events is None


def test_more_gpus_than_there_are_is_told(monkeypatch):
    monkeypatch.setattr(dp, "is_gpu", lambda device: True)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    with pytest.raises(ValueError, match="this process sees 1 of the 4 GPUs.*Give a list"):
        DataParallel(MLP(SHAPE), 4)
