"""A backward in two parts adds what a whole one adds, and calls each hook as often."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from lib.predict.shape import GPTShape
from lib.single.models import GPT
from lib.single.split import SplitBackward
from tests.every import every


class Part(nn.Module):
    """Two layers, and a rule that says how they are used."""

    def __init__(self, rule):
        super().__init__()
        self.one, self.two, self.rule = nn.Linear(4, 4), nn.Linear(4, 4), rule

    def forward(self, x):
        return self.rule(self, x)


def gradients(part, x, back):
    """The gradient of x, and those of the weights, as `back` finds them."""
    part.zero_grad()
    x = x.clone().requires_grad_()
    y = part(x)
    return back(y, x, torch.full_like(y, 0.3)), [p.grad for p in part.parameters()]


def whole(y, x, gradient):
    y.backward(gradient)
    return x.grad


def apart(y, x, gradient):
    split = SplitBackward(y, x)
    for_x = split.inputs(gradient)
    split.weights()
    return for_x


def assert_same(part, x):
    expected, found = gradients(part, x, whole), gradients(part, x, apart)
    for one, other in zip([expected[0], *expected[1]], [found[0], *found[1]]):
        assert (one is None) == (other is None)
        assert one is None or torch.allclose(one, other, rtol=1e-12, atol=1e-15)


RULES = {
    "detached": lambda p, x: p.two(p.one(x).detach()),
    "half detached": lambda p, x: torch.cat([p.one(x), p.two(x.detach())]),
    "twice": lambda p, x: p.one(torch.tanh(p.one(x))) + p.two(x) @ p.one.weight,
    "derived weight": lambda p, x: (lambda w: torch.tanh(x @ w) @ w)(p.one.weight.tanh()),
    "broadcast": lambda p, x: x * p.one.bias + p.two.bias[0],
    "in place": lambda p, x: p.one(x)[:, :2].mul_(3) * p.two.bias[:2],
    "recomputed": lambda p, x: checkpoint(lambda z: p.two(p.one(z)), x, use_reentrant=False),
    "reentrant": lambda p, x: checkpoint(lambda z: p.two(p.one(z)), p.two(x), use_reentrant=True),
}


@pytest.mark.parametrize("name", RULES)
def test_both_parts_together_are_the_whole(name):
    """Case 2: also where the output, or a part of it, does not depend on the input."""
    torch.manual_seed(0)
    assert_same(Part(RULES[name]).double(), torch.randn(3, 4).double())


@pytest.mark.parametrize("options", [{}, {"kv_heads": 2, "positions": "rotary"}], ids=str)
def test_a_whole_gpt(options):
    model = GPT(GPTShape(layers=2, width=32, heads=4, sequence=16, **options)).double()
    assert_same(model[1:3], torch.randn(2, 16, 32).double())


def test_each_hook_is_called_once():
    """Case 4: hooks on activations, nodes, modules and weights, and retain_grad."""
    calls = []

    def hook(name, factor=None):
        def called(*arguments):
            calls.append(name)
            return None if factor is None else arguments[0] * factor

        return called

    def rule(part, x):
        y = part.one(x)
        y.register_hook(hook("output", 10))
        y.grad_fn.register_prehook(hook("before the node"))
        y.grad_fn.register_hook(hook("after the node"))
        y.retain_grad()
        part.kept = y
        z = part.two(y)
        z.register_hook(hook("last", 2))
        return z

    torch.manual_seed(0)
    part, x = Part(rule).double(), torch.randn(3, 4).double()
    part.two.register_full_backward_hook(hook("module"))
    part.one.weight.register_hook(hook("weight", 3))
    part.two.weight.register_post_accumulate_grad_hook(hook("accumulated"))
    gradients(part, x, whole)
    expected, kept = sorted(calls), part.kept.grad
    calls.clear()
    assert_same(part, x)
    assert sorted(calls) == sorted(2 * expected) and len(set(expected)) == 7
    assert torch.equal(part.kept.grad, kept)


def test_the_first_part_leaves_the_weights_alone():
    part, x = Part(RULES["twice"]), torch.randn(3, 4, requires_grad=True)
    split = SplitBackward(part(x), x)
    assert split.inputs(torch.ones(3, 4)).shape == x.shape
    assert x.grad is None and all(p.grad is None for p in part.parameters())
    split.weights()
    assert every(p.grad is not None for p in part.parameters())


def test_several_outputs_and_inputs():
    """Case 9: an output without a gradient, a whole number, and an input that is not used."""
    part = Part(None).double()
    a, b = (torch.randn(3, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    outputs = [part.one(a), part.two(a), (a > 0).long()]
    (part.one(a).sum() + part.two(a).sum() * 0).backward()
    expected, weights = a.grad, [p.grad for p in part.one.parameters()]
    a.grad = None
    part.zero_grad()
    split = SplitBackward(outputs, [a, b])
    found = split.inputs([torch.ones(3, 4).double(), None, None])
    split.weights()
    assert torch.equal(found[0], expected) and found[1] is None
    assert every(torch.equal(p.grad, w) for p, w in zip(part.one.parameters(), weights))
    assert every(p.grad is None for p in part.two.parameters())
