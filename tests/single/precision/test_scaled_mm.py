"""The machine's own products beside the simulated ones, and why a machine refuses."""

import pytest
import torch
from torch import nn

from lib.single.precision import fp8
from lib.single.precision import scaled_mm as module
from lib.single.precision.scaled import product, scaled
from lib.single.precision.scaled_mm import machine_product, reason_against


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def pair(tile=(0, 0), formats=("e4m3", "e4m3"), m=24, n=32, k=64):
    return scaled(random(m, k), formats[0], tile), scaled(random(n, k, seed=1), formats[1], tile)


@pytest.mark.parametrize("formats", [("e4m3", "e4m3"), ("e5m2", "e4m3"), ("e4m3", "e5m2")])
@pytest.mark.parametrize("tile", [(0, 0), (1, 0)])
def test_the_machine_multiplies_as_the_simulation_does(tile, formats):
    a, b = pair(tile, formats)
    found, simulated = machine_product(a, b), product(a, b)
    exact = a.decode().double() @ b.decode().double().T
    for one in (found, simulated):
        assert one.dtype == torch.float32
        assert (one - exact).abs().max() < 1e-6 * exact.abs().max()
    wrong = a.codes.float() @ b.codes.float().T  # a bite: without the scales
    assert (wrong - exact).abs().max() > exact.abs().max()


def test_one_scale_beside_one_for_each_row():
    (a, _), (_, b) = pair((1, 0)), pair()
    torch.testing.assert_close(machine_product(a, b), product(a, b), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(machine_product(b, a), product(b, a), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("tile", [(0, 0), (1, 0)])
def test_matrices_and_scales_lie_as_the_gpu_wants_them(tile, monkeypatch):
    """Left row by row, right column by column, float32 scales [] or [M, 1] and [1, N]."""
    calls = []

    def watched(left, right, **options):
        calls.append((left, right, options))
        return torch.zeros(len(left), right.shape[1])

    monkeypatch.setattr(torch, "_scaled_mm", watched)
    a, b = pair(tile)
    machine_product(a.T.T, b)
    a = scaled(random(64, 24), "e4m3", tile[::-1]).T  # lies by columns before
    machine_product(a, b)
    for left, right, options in calls:
        assert left.shape == (24, 64) and left.stride() == (64, 1)
        assert right.shape == (64, 32) and right.stride() == (1, 64)
        sizes = [options[name].shape for name in ("scale_a", "scale_b")]
        assert sizes == ([(24, 1), (1, 32)] if tile[0] else [(1, 1), (1, 1)])
        assert options["scale_a"].is_contiguous() and options["scale_b"].is_contiguous()
        assert options["scale_a"].dtype == options["scale_b"].dtype == torch.float32
        assert options["out_dtype"] == torch.float32
    assert len(calls) == 2


H100, L4, A100 = (9, 0), (8, 9), (8, 0)


@pytest.mark.parametrize(
    ("matrices", "capability", "reason"),
    [
        (pair(), H100, ""),
        (pair((1, 0)), H100, ""),
        (pair(formats=("e5m2", "e4m3")), H100, ""),
        (pair(), L4, ""),
        (pair((1, 0)), L4, "the GPU has compute capability 8.9, and 9.0 is needed"),
        (pair(), A100, "the GPU has compute capability 8.0, and 8.9 is needed"),
        (pair(formats=("e5m2", "e5m2")), H100, "both are e5m2"),
        (pair(k=40), H100, "the inner dim is 40, which is no multiple of 16"),
        (pair(n=40), H100, "the number of columns of the result is 40, which is no multiple of 16"),
        (pair(m=7), H100, ""),
        (pair((1, 16)), H100, "their scales change along the inner dim"),
        (pair((8, 0)), H100, "several of their rows share a scale"),
        (pair(k=40, n=7), None, ""),
    ],
)
def test_a_reason_against_it(matrices, capability, reason):
    assert reason_against(*matrices, capability).startswith(reason)
    assert bool(reason_against(*matrices, capability)) == bool(reason)


def test_other_devices_are_refused():
    a, b = (one._replace(codes=one.codes.to("meta")) for one in pair())
    assert reason_against(a, b) == "it is not known to run on meta"
    with pytest.raises(ValueError, match="cannot multiply these matrices: it is not known"):
        machine_product(a, b)


@pytest.mark.parametrize("scaling", ["tensor", "row", "delayed"])
def test_a_layer_trains_on_the_machines_products(scaling, monkeypatch):
    """Outputs and gradients as with simulated sums, and every product is the machine's."""
    count = []
    monkeypatch.setattr(module, "reason_against", lambda *_: count.append(1) or "")
    results = []
    for products in ("scaled_mm", "simulated"):
        torch.manual_seed(0)
        layer = fp8(nn.Linear(24, 40), scaling, products=products)
        x = random(20, 24).requires_grad_()
        y = layer(x)
        y.backward(random(20, 40, seed=1))
        results.append((y.detach(), x.grad, layer.weight.grad, layer.bias.grad))
    for one, other in zip(*results):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    assert len(count) == 3
