"""Layers of 8 bits: the three products by hand, what is kept, and a GPT made of them."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint

from lib.predict.shape import GPTShape
from lib.single import GPT, Batches, next_token_loss, train
from lib.single.precision import Fp8Linear, fp8, update_scales
from lib.single.precision.scaled import scaled
from tests.every import every

SMALL = GPTShape(width=32, heads=2, layers=1, sequence=16)
SCALINGS = ["tensor", "row", "block"]


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def layer(scaling="tensor", i=24, o=40, bias=True, **options):
    torch.manual_seed(0)
    return fp8(nn.Linear(i, o, bias), scaling, **{"block": 8, **options})


def backward(module, x, dy):
    """y and the gradients of x, W and b."""
    x = x.clone().requires_grad_()
    module.zero_grad()
    y = module(x)
    y.backward(dy)
    return y.detach(), x.grad, *(p.grad.clone() for p in module.parameters())


def rounded(x, format, tile):
    return scaled(x, format, tile).decode().double()


def by_hand(x, weight, bias, dy, scaling, gradients, from_input=False):
    """The three products written out, summed in float64."""
    one, square = {"tensor": ((0, 0),) * 2, "row": ((1, 0),) * 2, "block": ((1, 8), (8, 8))}[
        scaling
    ]
    kept = rounded(x, "e4m3", one)
    y = kept @ rounded(weight, "e4m3", square).T + bias
    dx = rounded(dy, gradients, one) @ rounded(weight.T.contiguous(), "e4m3", square).T
    source = x if from_input else kept
    again = kept if scaling == "tensor" else rounded(source.T.float(), "e4m3", one).T
    dw = rounded(dy.T.contiguous(), gradients, one) @ again
    return y, dx, dw, dy.double().sum(0)


@pytest.mark.parametrize("gradients", ["e5m2", "e4m3"])
@pytest.mark.parametrize("scaling", SCALINGS)
def test_the_three_products_are_those_by_hand(scaling, gradients):
    module = layer(scaling, backward=gradients)
    x, dy = random(20, 24), random(20, 40, seed=1)
    found = backward(module, x, dy)
    expected = by_hand(x, module.weight.detach(), module.bias.detach(), dy, scaling, gradients)
    with torch.no_grad():
        plain = linear(x, module.weight, module.bias)
    for name, one, other in zip(("y", "dx", "dW", "db"), found, expected):
        assert (one - other).abs().max() < 2e-6 * other.abs().max(), name
    assert (found[0] - plain).abs().max() > 1e-3
    # A bite: each of the other ways gives other gradients.
    other = "e4m3" if gradients == "e5m2" else "e5m2"
    for variant in (layer(scaling, backward=other), layer("row" if scaling != "row" else "block")):
        assert (backward(variant, x, dy)[2] - found[2]).abs().max() > 1e-3


@pytest.mark.parametrize("scaling", SCALINGS)
def test_an_input_that_is_kept_is_rounded_from_its_own_numbers(scaling):
    module, codes = layer(scaling, kept="input"), layer(scaling)
    x, dy = random(20, 24), random(20, 40, seed=1)
    found, other = backward(module, x, dy), backward(codes, x, dy)
    arguments = x, module.weight.detach(), module.bias.detach(), dy, scaling, "e5m2"
    for one, expected in zip(found, by_hand(*arguments, from_input=True)):
        assert (one - expected).abs().max() < 2e-6 * expected.abs().max()
    assert torch.equal(found[0], other[0]) and torch.equal(found[1], other[1])
    assert torch.equal(found[2], other[2]) == (scaling == "tensor")


@pytest.mark.parametrize("scaling", [*SCALINGS, "delayed"])
def test_integers_that_the_formats_have_give_the_plain_gradients(scaling):
    """Small integers times powers of two lose nothing where scales are powers of two."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-4, 5, (16, 24), generator=generator).float()
    dy = torch.randint(-2, 3, (16, 40), generator=generator).float()
    module = layer(scaling, power_of_two=True)
    with torch.no_grad():
        module.weight.copy_(torch.randint(-4, 5, (40, 24), generator=generator))
    plain = nn.Linear(24, 40)
    plain.load_state_dict(module.state_dict(), strict=False)
    assert every(torch.equal(a, b) for a, b in zip(backward(module, x, dy), backward(plain, x, dy)))


def test_a_gradient_goes_through_the_rounding_as_if_it_were_not_there():
    """dx comes from the rounded weight; the derivative of a rounding would be zero."""
    module = layer()
    x, dy = random(4, 24), random(4, 40, seed=1)
    _, dx, dw, _ = backward(module, x, dy)
    decoded = scaled(module.weight, "e4m3").decode()
    torch.testing.assert_close(dx, scaled(dy, "e5m2").decode() @ decoded, rtol=1e-5, atol=1e-5)
    assert dw.count_nonzero() == dw.numel()


def test_dims_before_the_last_are_rows():
    module, x, dy = layer("row"), random(2, 3, 5, 24), random(2, 3, 5, 40, seed=1)
    found = backward(module, x, dy)
    flat = backward(module, x.flatten(0, 2), dy.flatten(0, 2))
    assert found[0].shape == (2, 3, 5, 40)
    assert torch.equal(found[0].flatten(0, 2), flat[0])
    assert torch.equal(found[1].flatten(0, 2), flat[1]) and torch.equal(found[2], flat[2])


def test_gradients_of_two_uses_and_two_backwards_add_up():
    """A layer that is used twice, and a graph that goes backward twice."""
    module, x, dy = layer("block"), random(8, 24), random(8, 40, seed=1)
    one, two = backward(module, x, dy), backward(module, 2 * x, dy)
    module.zero_grad()
    y = module(x) + module(2 * x)
    y.backward(dy, retain_graph=True)
    torch.testing.assert_close(module.weight.grad, one[2] + two[2])
    first = module.weight.grad.clone()
    y.backward(dy)
    torch.testing.assert_close(module.weight.grad, 2 * first)


@pytest.mark.parametrize("scaling", [*SCALINGS, "delayed"])
def test_a_second_forward_gives_the_same_gradients(scaling):
    """As recomputation needs it: histories, too, are what they are without."""
    results = []
    for again in (False, True):
        module = layer(scaling, history=2)
        for _ in range(2):
            x, dy = random(8, 24).requires_grad_(), random(8, 40, seed=1)
            y = checkpoint(module, x, use_reentrant=False) if again else module(x)
            y.backward(dy)
            update_scales(module)
        results.append((y.detach(), x.grad, module.weight.grad, *module.buffers()))
    assert every(torch.equal(a, b) for a, b in zip(*results))


def test_a_second_derivative_and_a_changed_weight_are_refused():
    module, x = layer(), random(8, 24).requires_grad_()
    (dx,) = torch.autograd.grad(module(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        dx.sum().backward()
    y = module(x)
    with torch.no_grad():
        module.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("frozen", ["weight", "bias", "x"])
def test_what_is_frozen_gets_no_gradient_and_changes_no_other(frozen):
    module, x, dy = layer("row"), random(8, 24), random(8, 40, seed=1)
    _, dx, dw, db = backward(module, x, dy)
    module.zero_grad()
    inputs = {"x": x.clone().requires_grad_(), "weight": module.weight, "bias": module.bias}
    inputs[frozen].requires_grad_(False)
    module(inputs["x"]).backward(dy)
    expected = {"x": dx, "weight": dw, "bias": db}
    for name, tensor in inputs.items():
        assert tensor.grad is None if name == frozen else torch.equal(tensor.grad, expected[name])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_results_have_the_dtype_of_what_comes_in(dtype):
    module = layer()
    x, dy = random(8, 24).to(dtype), random(8, 40, seed=1).to(dtype)
    y, dx, dw, db = backward(module, x, dy)
    assert y.dtype == dx.dtype == dtype and dw.dtype == db.dtype == torch.float32
    exact = backward(
        module, random(8, 24).to(dtype).float(), random(8, 40, seed=1).to(dtype).float()
    )
    assert torch.equal(dw, exact[2]) and torch.equal(db, exact[3])
    assert torch.equal(y, exact[0].to(dtype))


def test_under_autocast_the_result_is_bfloat16_as_that_of_other_products():
    module, x = layer(), random(8, 24)
    with torch.autocast("cpu", torch.bfloat16):
        y = module(x)
    assert y.dtype == torch.bfloat16 and torch.equal(y, module(x).bfloat16())


def test_a_model_keeps_its_names_and_its_parameters():
    model = GPT(GPTShape(width=32, heads=2, layers=2, sequence=16, tied=True))
    before = dict(model.named_parameters())
    names = list(model.state_dict())
    assert fp8(model, "row", keep=["blocks.3", "blocks.1.attention"]) is model
    after = dict(model.named_parameters())
    assert list(after) == list(before) and every(after[n] is before[n] for n in after)
    assert list(model.state_dict()) == names
    layers = [name for name, module in model.named_modules() if isinstance(module, Fp8Linear)]
    expected = ["1.mlp.up", "1.mlp.down", "2.attention.qkv", "2.attention.proj"]
    assert layers == [f"blocks.{name}" for name in [*expected, "2.mlp.up", "2.mlp.down"]]
    assert type(model.blocks["2"].norm1) is nn.LayerNorm


def test_a_layer_in_two_places_stays_one():
    shared = nn.Linear(8, 8)
    model = fp8(nn.Sequential(shared, nn.ReLU(), shared))
    assert isinstance(model[0], Fp8Linear) and model[0] is model[2]
    assert model[0].weight is shared.weight


def test_a_copy_trains_alone():
    model = fp8(GPT(SMALL), "delayed")
    other = copy.deepcopy(model)
    batch = Batches(2, 16)[0]
    next_token_loss(other(batch[0]), batch[1]).backward()
    assert every(p.grad is None for p in model.parameters())
    assert not any(s.maxima.any() for s in model.modules() if hasattr(s, "maxima"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scaling": "channel"}, "scaling must be 'tensor', 'row', 'block' or 'delayed', not "),
        ({"backward": "fp8"}, "backward must be 'e4m3' or 'e5m2', not 'fp8'."),
        ({"products": "fast"}, "products must be 'simulated' or 'scaled_mm', not 'fast'."),
        ({"choice": "mean"}, "choice must be 'max' or 'most_recent', not 'mean'."),
        ({"kept": "x"}, "kept must be 'codes' or 'input', not 'x'."),
        ({"block": 0}, "block must be a whole number of at least 1, not 0."),
        ({"history": 0}, "history must be a whole number of at least 1, not 0."),
        ({"margin": -1}, "margin must be a whole number of at least 0, not -1."),
        ({"scaling": "block", "products": "scaled_mm"}, "torch._scaled_mm takes no blocks here."),
        ({"keep": ["head"]}, "The model has no module 'head' that could be kept."),
    ],
)
def test_what_cannot_be_is_refused_and_the_model_stays(options, message):
    model = GPT(SMALL)
    with pytest.raises(ValueError) as refusal:
        fp8(model, **options)
    assert message in str(refusal.value)
    assert not any(isinstance(module, Fp8Linear) for module in model.modules())


class Kept:
    """What autograd keeps inside this context: bytes by dtype, each storage once."""

    def __enter__(self):
        self.seen = {}
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self.keep, lambda tensor: tensor)
        self.hooks.__enter__()
        return self

    def keep(self, tensor):
        self.seen[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    def __exit__(self, *error):
        self.hooks.__exit__(*error)


@pytest.mark.parametrize("scaling", SCALINGS)
def test_the_input_is_kept_in_8_bits_and_nothing_else(scaling):
    module, x = layer(scaling), random(64, 24).requires_grad_()
    with Kept() as kept:
        y = module(x)
    others = [t for t in kept.seen.values() if t is not module.weight and t.dtype != torch.float32]
    scales = [t for t in kept.seen.values() if t.dtype == torch.float32 and t.shape != (40, 24)]
    assert [t.dtype for t in others] == [torch.float8_e4m3fn] and others[0].nbytes == 64 * 24
    assert sum(t.nbytes for t in scales) == 4 * {"tensor": 1, "row": 64, "block": 64 * 3}[scaling]
    assert len(kept.seen) == 3 and y.grad_fn is not None
    with Kept() as kept:
        layer(scaling, kept="input")(x)
    assert len(kept.seen) == 2 and x.untyped_storage().data_ptr() in kept.seen
    module.weight.requires_grad_(False)
    with Kept() as kept:
        module(x)
    assert every(t.shape == (40, 24) for t in kept.seen.values())


@pytest.mark.parametrize("scaling", [*SCALINGS, "delayed"])
def test_a_small_gpt_learns_about_as_in_float32(scaling):
    def losses(model, delayed=False):
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        if delayed:
            optimizer.register_step_post_hook(lambda *_: update_scales(model))
        return train(model, optimizer, Batches(8, 16), 25)

    plain = losses(GPT(SMALL))
    found = losses(fp8(GPT(SMALL), scaling, block=16, history=8), scaling == "delayed")
    assert plain[-1] < plain[0] - 1.5
    assert abs(found[-1] - plain[-1]) < 0.05 and found != plain
