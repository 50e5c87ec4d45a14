"""Column and row layers compute what the whole layer computes, forward and backward."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from lib.parallel.tensor import ColumnLinear, RowLinear
from lib.parallel.tensor.operators import (
    copy_to_group,
    gather_from_group,
    reduce_from_group,
    split_to_group,
)
from tests.every import every

KINDS = {
    "column": lambda full: ColumnLinear(full),
    "gathered column": lambda full: ColumnLinear(full, gather_output=True),
    "row": lambda full: RowLinear(full),
    "split row": lambda full: RowLinear(full, input_is_split=False),
}


def parts(bias):
    torch.manual_seed(0)
    full = nn.Linear(8, 12, bias).double()
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    return full, x, torch.randn(3, 5, 12, dtype=torch.float64)


def run(layer, x, gradient):
    x = x.detach().clone().requires_grad_()
    y = layer(x)
    y.backward(gradient)
    return [
        y.detach(),
        x.grad,
        layer.weight.grad,
        *([layer.bias.grad] if layer.bias is not None else []),
    ]


def share(x, dim):
    return x.chunk(dist.get_world_size(), dim)[dist.get_rank()].contiguous()


def as_whole(kind, bias):
    """This rank's layer against the whole one; the largest difference in everything."""
    full, x, gradient = parts(bias)
    expected = run(full, x, gradient)
    layer = KINDS[kind](full)
    if kind == "row":
        found = run(layer, share(x, -1), gradient)
        expected[1] = share(expected[1], -1)
    elif kind == "column":
        found = run(layer, x, share(gradient, -1))
        expected[0] = share(expected[0], -1)
    else:
        found = run(layer, x, gradient)
    dim = 0 if "column" in kind else 1
    expected[2] = share(expected[2], dim)
    if bias and dim == 0:
        expected[3] = share(expected[3], 0)
    assert [t.shape for t in found] == [t.shape for t in expected]
    return max((a - b).abs().max().item() for a, b in zip(found, expected))


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_is_the_whole_one(world, kind, bias):
    assert max(world.run(as_whole, kind, bias)) < 1e-12


def biases():
    """The bias of a row layer added by each rank before the sum, and after it."""
    full, x, _ = parts(True)
    expected, layer = full(x), RowLinear(full)
    partial = nn.functional.linear(share(x, -1), layer.weight, layer.bias)
    dist.all_reduce(partial)
    wrong = partial - expected
    return (
        wrong.mean((0, 1)).detach(),
        full.bias.detach(),
        (layer(share(x, -1)) - expected).abs().max(),
    )


def test_a_bias_added_before_the_sum_counts_n_times(worlds):
    for wrong, bias, right in worlds(4).run(biases):
        torch.testing.assert_close(wrong, 3 * bias)
        assert right < 1e-12


def operators():
    """Each operator, and the gradient that comes back: [forward, backward] by name."""
    rank, n = dist.get_rank(), dist.get_world_size()
    found = {}
    for name, function, x, gradient in (
        ("copy", copy_to_group, torch.arange(4.0), torch.full((4,), rank + 1.0)),
        ("reduce", reduce_from_group, torch.full((4,), rank + 1.0), torch.arange(4.0)),
        (
            "in place",
            lambda x: reduce_from_group(x * 1, in_place=True),
            torch.full((4,), rank + 1.0),
            torch.arange(4.0),
        ),
        ("split", split_to_group, torch.arange(4.0), torch.full((4 // n,), rank + 1.0)),
        ("gather", gather_from_group, torch.full((4 // n,), rank + 1.0), torch.arange(4.0)),
    ):
        x.requires_grad_()
        y = function(x)
        y.backward(gradient)
        found[name] = y.tolist(), x.grad.tolist()
    return found


def test_operators_are_conjugate_pairs(worlds):
    for rank, found in enumerate(worlds(2).run(operators)):
        whole, sums, own, both = [0, 1, 2, 3], [3] * 4, [rank + 1] * 2, [1, 1, 2, 2]
        assert found["copy"] == (whole, sums)
        assert found["reduce"] == found["in place"] == (sums, whole)
        assert found["split"] == (whole[2 * rank :][:2], both)
        assert found["gather"] == (both, whole[2 * rank :][:2])
        assert own


def backward_only():
    """A column layer's backward; forward is done before."""
    full = nn.Linear(64, 64)
    y = ColumnLinear(full)(torch.ones(4, 64, requires_grad=True))
    with torch.profiler.profile() as profile:
        y.sum().backward()
    return [event.name for event in profile.events()]


def test_the_sum_is_launched_before_the_weights_gradient_is_computed(worlds):
    for names in worlds(2).run(backward_only):
        products = [n for n, name in enumerate(names) if name == "aten::mm"]
        sums = [n for n, name in enumerate(names) if "allreduce" in name or "all_reduce" in name]
        assert len(products) == 2 and products[0] < sums[0] < products[1], names


def refused(kind):
    try:
        KINDS[kind](nn.Linear(7, 9))
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("column", "The output of a layer has 9 entries"),
        ("row", "The input of a layer has 7 entries"),
    ],
)
def test_sizes_that_do_not_divide_are_refused(worlds, kind, words):
    text = f"{words}; 2 ranks cannot share them equally."
    assert worlds(2).run(refused, kind) == [text] * 2


def frozen(part):
    """Backward of a layer of which one part needs no gradient: which gradients there are."""
    full = nn.Linear(8, 8)
    x = torch.ones(2, 8, requires_grad=part != "x")
    if part != "x":
        getattr(full, part).requires_grad_(False)
    layer = ColumnLinear(full)
    layer(x).sum().backward()
    return [t.grad is not None for t in (x, layer.weight, layer.bias)]


def test_what_is_frozen_gets_no_gradient(worlds):
    names = ["x", "weight", "bias"]
    for part in names:
        assert every(
            found == [name != part for name in names] for found in worlds(2).run(frozen, part)
        )


def autocast():
    full = nn.Linear(8, 8)
    layer, x = ColumnLinear(full), torch.randn(2, 8, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
    y.sum().backward()
    return y.dtype, x.grad.dtype, layer.weight.grad.dtype


def test_autocast_computes_in_two_bytes(worlds):
    assert worlds(2).run(autocast)[0] == (torch.bfloat16, torch.float32, torch.float32)
