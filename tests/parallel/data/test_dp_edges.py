"""Data parallel by threads on models nobody tuned it for: hooks, checkpoints, sparse gradients."""

import copy
from collections import Counter

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from lib.parallel.data.dp import DataParallel
from tests.every import every

DEVICES = pytest.mark.parametrize("devices", [1, 2, 4])


def batch(rows=8):
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def gradients(model, run, *more):
    run(model, *more)
    return [None if p.grad is None else p.grad.to_dense() for p in model.parameters()]


def same_as_plain(make, devices, run, *more):
    """Run the plain model and a copy, spread; compare every gradient; give the copy."""
    torch.manual_seed(0)
    plain = make().double()
    model = copy.deepcopy(plain)
    expected = gradients(plain, run, plain, *more)
    found = gradients(model, run, DataParallel(model, devices), *more)
    assert [g is None for g in found] == [g is None for g in expected]
    for a, b in zip(found, expected):
        assert a is None or torch.allclose(a, b, atol=1e-12, rtol=0)
    return model


def layers():
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))


# --- hooks


def test_a_hook_on_a_weight_is_applied_once():
    """Case 5: `weight.register_hook` sees the sum of all devices' gradients, once: 40, not 220."""
    found = []
    for devices in (0, 2, 4):
        model = nn.Linear(1, 1, bias=False)
        model.weight.register_hook(lambda gradient: gradient * 10)
        spread = DataParallel(model, devices) if devices else model
        spread(torch.ones(4, 1)).sum().backward()
        found.append(model.weight.grad.item())
    assert found == [40, 40, 40]


def hooked(model, spread, calls):
    def clip(gradient):
        calls.append("on its way")
        return gradient.clamp(-0.1, 0.1)

    def twice(parameter):
        calls.append("complete")
        parameter.grad.mul_(2)

    handle = model[0].weight.register_hook(clip)
    model[2].weight.register_post_accumulate_grad_hook(twice)
    for factor in (1, 3):  # the second gradient is added to the first
        (spread(factor * batch())).square().sum().backward()
    handle.remove()
    spread(batch()).square().sum().backward()


@DEVICES
def test_hooks_that_are_not_linear(devices):
    """Case 5: clipping hooks and post-accumulate hooks run as often as on the plain model."""
    calls = []
    same_as_plain(layers, devices, hooked, calls)
    assert Counter(calls) == {"on its way": 2 * 2, "complete": 2 * 3}  # on the plain one, and here


# --- checkpoints that run backward inside of backward


class Segments(nn.Module):
    """Layers in segments that are computed again in backward; one weight in two of them."""

    def __init__(self, inside):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(4))
        self.layers[2][0].weight = self.layers[1][0].weight
        self.inside = inside

    def forward(self, x):
        for n, layer in enumerate(self.layers):
            x = checkpoint(layer, x, use_reentrant=True) if n in self.inside else layer(x)
        return x


def two_steps(model, spread, asked):
    model.inputs = []
    for _ in range(2):
        model.inputs.append(batch().requires_grad_(asked))
        spread(model.inputs[-1]).square().mean().backward()


@DEVICES
@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize("inside", [(0, 1, 2, 3), (1, 2), (3,), (0,)])
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_segments_of_a_checkpoint(devices, inside, asked):
    """Case 5: use_reentrant=True gives the plain model's gradients, and its None."""
    if len(inside) == 4 and not asked:
        for spread in (lambda model: model, lambda model: DataParallel(model, devices)):
            model = Segments(inside).double()
            with pytest.raises(RuntimeError, match="element 0 of tensors does not require grad"):
                two_steps(model, spread(model), asked)
        return
    model = same_as_plain(lambda: Segments(inside), devices, two_steps, asked)
    assert every((x.grad is not None) == asked for x in model.inputs)


# --- sparse gradients


class Words(nn.Module):
    """A table with sparse gradients, a dense layer, and a table that nobody uses."""

    def __init__(self):
        super().__init__()
        self.table, self.layer = nn.Embedding(9, 4, sparse=True), nn.Linear(4, 4)
        self.never = nn.Embedding(9, 4, sparse=True)

    def forward(self, rows):
        return self.layer(self.table(rows))


ROWS = torch.tensor([0, 3, 3, 8, 1, 3, 0, 5])


def sparse_step(model, spread):
    spread(ROWS).square().mean().backward()
    assert model.table.weight.grad.is_sparse
    torch.optim.SparseAdam([model.table.weight]).step()


@DEVICES
def test_sparse_gradients_stay_sparse(devices):
    """Case 13: the devices' sparse gradients are added up as they are."""
    same_as_plain(Words, devices, sparse_step)


def test_sparse_gradients_are_recorded():
    """Case 13: a recording counts the rows of a sparse gradient and their numbers."""
    model = Words()
    spread = DataParallel(model, 2)
    ledger = spread.record(lambda: spread(ROWS).square().mean().backward())
    (row,) = ledger.where(rank=0, op="reduce")
    assert row.bytes == 4 * (8 + 4 * 4) + 4 * (4 * 4 + 4)  # device 0's four rows, and the layer
    memory = ledger.where(rank=0, lane="memory", op="gradients")
    assert max(memory.column("bytes")) >= 8 * (8 + 4 * 4) + 4 * (4 * 4 + 4)


# --- what the loss uses, and how forward treats its inputs and itself


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x, unused=None):
        x = self.body(x)
        return self.one(x), self.other(x), x.detach(), x.to(torch.complex128)


def one_head(model, spread):
    first, *_ = spread(batch())
    first.square().mean().backward()


def complex_head(model, spread):
    spread(batch())[3].abs().mean().backward()


def unused_input(model, spread):
    x, unused = batch().requires_grad_(), batch().requires_grad_()
    spread(x, unused)[0].square().mean().backward()
    assert unused.grad is None and x.grad is not None


@DEVICES
@pytest.mark.parametrize("run", [one_head, complex_head, unused_input])
def test_what_the_loss_does_not_use_has_no_gradient(devices, run):
    """Case 5: a head that the loss leaves out keeps None, as on the plain model."""
    same_as_plain(Heads, devices, run)


class InPlace(nn.Module):
    """Starts with a function that overwrites its input."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(nn.functional.relu_(x))


class Remembers(nn.Module):
    """Keeps what it has computed from one forward to the next, with its graph."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.utils.weight_norm(nn.Linear(4, 4))
        self.last = self.steps = None

    def forward(self, x):
        self.last, self.steps = self.layer(x), (self.steps or 0) + 1
        return self.last * self.steps


def after_a_layer(model, spread):
    x = batch().requires_grad_()
    for _ in range(3):
        spread(2 * x).square().mean().backward()


@DEVICES
@pytest.mark.parametrize("kind", [InPlace, nn.Linear])
def test_inputs_may_be_overwritten(devices, kind):
    """Case 5: forward may write into an input that has a gradient."""
    same_as_plain(kind if kind is InPlace else lambda: nn.Linear(4, 4), devices, after_a_layer)


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
def test_what_forward_keeps_may_have_a_graph():
    """Case 5: a model that remembers its last output, or an old weight norm, can be copied."""
    torch.manual_seed(0)
    plain, model = Remembers().double(), Remembers().double()
    model.load_state_dict(plain.state_dict())
    expected = gradients(plain, after_a_layer, plain)
    found = gradients(model, after_a_layer, DataParallel(model, 2))
    assert every(map(torch.allclose, found, expected)) and model.steps == 3


def second_derivatives(spread):
    x = batch().requires_grad_()
    torch.autograd.grad(spread(x).square().sum(), x, create_graph=True)


def test_what_cannot_be_is_refused_in_a_sentence():
    """Case 5: second derivatives would silently lack a part; a lazy model has nothing to copy."""
    with pytest.raises(RuntimeError, match="has no second derivatives, and its backward ran with"):
        second_derivatives(DataParallel(layers().double(), 2))
    with pytest.raises(ValueError, match="0.weight has no shape yet, because the model is lazy"):
        DataParallel(nn.Sequential(nn.LazyLinear(3)), 2)


def test_models_with_nothing_to_train():
    """Case 5: frozen models and models without parameters pass gradients on to their inputs."""
    for model in (layers().double().requires_grad_(False), nn.Tanh()):
        x, y = batch().requires_grad_(), batch().requires_grad_()
        DataParallel(model, 2)(x).sum().backward()
        model(y).sum().backward()
        assert torch.allclose(x.grad, y.grad)
