"""A checkpoint forgets, computes again, and changes no bit of a gradient."""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint as pytorchs

from lib.single.recompute import checkpoint, only
from tests.every import every

aten = torch.ops.aten
EMPTY = {aten.empty_like.default}  # dropout fills it in place


class Body(nn.Module):
    """Linear maps, a norm and dropout: several kinds of saved tensors, and random numbers."""

    def __init__(self, dropout=0.2):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down, self.norm = nn.Linear(6, 12), nn.Linear(12, 6), nn.LayerNorm(6)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, scale=1.0):
        return x + scale * self.dropout(self.down(self.up(self.norm(x)).relu()))


def drawn(requires_grad=True):
    return torch.randn(5, 6, generator=torch.Generator().manual_seed(1)).requires_grad_(
        requires_grad
    )


def gradients(run, x=None):
    """The loss, the gradients of a body and of its input, and the next random number."""
    body, x = Body(), drawn() if x is None else x
    torch.manual_seed(7)
    loss = run(body, x).square().sum()
    loss.backward()
    return [loss.detach(), x.grad, *(p.grad for p in body.parameters()), torch.rand(3)]


RUNS = {
    "one": lambda body, x: checkpoint(body, x),
    "keywords": lambda body, x: checkpoint(body, x, scale=1.0),
    "matrix products kept": lambda body, x: checkpoint(body, x, keep=only(aten.addmm)),
    "all but empty ones kept": lambda body, x: checkpoint(
        body, x, keep=lambda operation: operation not in EMPTY
    ),
}


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_no_bit_of_a_gradient_changes(run):
    expected, found = gradients(lambda body, x: body(x)), gradients(run)
    assert every(torch.equal(a, b) for a, b in zip(expected, found)) and len(found) == 9


@pytest.mark.parametrize("keep", [None, only(aten.addmm)], ids=["none kept", "products kept"])
def test_a_checkpoint_in_a_checkpoint(keep):
    def within(body, x):
        twice = lambda y: checkpoint(body, checkpoint(body, y, keep=keep), keep=keep)
        return checkpoint(twice, x)

    expected, found = gradients(lambda body, x: body(body(x))), gradients(within)
    assert every(torch.equal(a, b) for a, b in zip(expected, found)) and len(found) == 9


def test_it_equals_pytorchs():
    theirs = gradients(lambda body, x: pytorchs(body, x, use_reentrant=False))
    found = gradients(lambda body, x: checkpoint(body, x))
    assert every(torch.equal(a, b) for a, b in zip(theirs, found))


def test_without_the_random_state_another_mask_is_drawn():
    """The shipped bug: the second run drops other numbers, and gradients are wrong."""
    expected = gradients(lambda body, x: body(x))
    found = gradients(lambda body, x: checkpoint(body, x, random=False))
    assert torch.equal(found[0], expected[0]) and not torch.equal(found[1], expected[1])


def test_an_input_without_gradient_and_several_results():
    body, x = Body(), drawn(requires_grad=False)

    def two(x, more):
        return body(x), {"twice": 2 * more["it"]}

    other = torch.ones(3, requires_grad=True)
    y, rest = checkpoint(two, x, {"it": other})
    (y.sum() + rest["twice"].sum()).backward()
    assert x.grad is None and other.grad.tolist() == [2.0] * 3
    assert every(p.grad is not None for p in body.parameters())


def test_autocast_is_as_it_was():
    def run(wrap):
        body, x = Body(0.0), drawn()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = wrap(body, x)
        y.float().square().sum().backward()
        return [x.grad, *(p.grad for p in body.parameters())]

    expected, found = run(lambda body, x: body(x)), run(checkpoint)
    assert every(torch.equal(a, b) for a, b in zip(expected, found)) and len(found) == 7


def kept_bytes(run):
    """Bytes that autograd keeps after run(x), but for parameters: what hooks around it see."""
    seen = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: seen.append(t) or t, lambda t: t):
        y = run(drawn())
    own = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in seen}
    return sum(own.values()), y


def test_only_the_input_is_kept():
    body = Body()
    plain, _ = kept_bytes(body)
    found, _ = kept_bytes(lambda x: checkpoint(body, x))
    assert found == 5 * 6 * 4 < plain


def test_the_second_run_stops_when_it_has_all():
    """exp saves its result, so that the operations after it need not run again."""
    counted = []

    def run(x):
        y = x.exp()
        counted.append("exp")
        y = y + 1
        counted.append("add")
        return y

    checkpoint(run, drawn()).sum().backward()
    assert counted == ["exp", "add"]


def test_backward_twice_computes_twice():
    body, x = Body(0.0), drawn()
    loss = checkpoint(body, x).square().sum()
    (first,) = torch.autograd.grad(loss, x, retain_graph=True)
    (second,) = torch.autograd.grad(loss, x)
    assert torch.equal(first, second)


def test_second_derivatives():
    f = lambda x: checkpoint(lambda y: y.sin() * y, x)
    x = torch.rand(3, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
    (found,) = torch.autograd.grad(gradient.sum(), x)
    torch.testing.assert_close(found, 2 * x.cos() - x * x.sin())


def test_without_gradients_it_is_the_function():
    with torch.no_grad():
        assert torch.equal(checkpoint(Body(0.0), drawn()), Body(0.0)(drawn()))


class Moody:
    """Does something else when it runs again."""

    def __init__(self, first, second):
        self.ways = [first, second]

    def __call__(self, x):
        way = self.ways.pop(0) if len(self.ways) > 1 else self.ways[0]
        return way(x.sin())


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (lambda y: (y.double() * y.double()).exp(), r"Tensor 1 .* was float32 \[5, 6\] on cpu and"),
        (lambda y: y[:2].exp(), r"was float32 \[5, 6\] on cpu and is float32 \[2, 6\] on cpu. The"),
        (lambda y: y, "It saved 4 tensors, and now 1. The last operation before .* aten.sin"),
    ],
    ids=["dtype", "shape", "number"],
)
def test_a_run_that_differs_is_told(second, words):
    y = checkpoint(Moody(lambda y: (y * y).exp(), second), drawn())
    with pytest.raises(RuntimeError, match=words):
        y.sum().backward()


def test_kept_operations_that_differ_are_told():
    keep = only(aten.exp.default, aten.tanh.default)
    y = checkpoint(
        Moody(lambda y: y.exp().square(), lambda y: y.tanh().square()), drawn(), keep=keep
    )
    with pytest.raises(RuntimeError, match="runs aten.tanh.default again as kept operation 0"):
        y.sum().backward()


def test_a_kept_result_that_was_changed_is_told():
    def changed(x):
        y = x.exp()
        z = y.detach()
        z += 1
        return (y.clone().sin()).square()

    y = checkpoint(changed, drawn(), keep=only(aten.exp))
    with pytest.raises(RuntimeError, match="aten.exp.default, .* was changed in place"):
        y.sum().backward()


def test_kept_operations_do_not_run_again():
    counted = []

    class Count(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            counted.append(func)
            return func(*args, **(kwargs or {}))

    for keep, times in ((None, 2), (only(aten.addmm), 0)):
        counted.clear()
        y = checkpoint(Body(), drawn(), keep=keep)
        with Count():
            y.sum().backward()
        assert counted.count(aten.addmm.default) == times


def test_a_rule_is_asked_once_for_each_operation():
    asked = []

    def rule(operation):
        asked.append(operation)
        return operation is aten.addmm.default

    checkpoint(Body(), drawn(), keep=rule).sum().backward()
    assert aten.addmm.default in asked and len(asked) == len(set(asked)) > 3


def test_what_a_second_run_made_is_free_when_it_ends():
    """A ring of frames would keep it until the collector of garbage comes; Python 3.12 made one."""
    x = torch.ones(4, requires_grad=True)
    gc.collect()
    gc.disable()
    try:
        made = []

        def noting(x):
            y = x.sin()
            made.append(weakref.ref(y))
            return y.exp()

        checkpoint(noting, x).sum().backward()
        assert len(made) == 2 and made[1]() is None
    finally:
        gc.enable()
