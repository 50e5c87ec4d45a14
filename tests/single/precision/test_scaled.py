"""Tiles, their scales, every number of both formats, and products summed run by run."""

import math

import pytest
import torch

from lib.predict.number_formats import E4M3, E5M2
from lib.single.precision.scaled import FORMATS, Scaled, product, scaled, scales_of
from tests.every import every

LARGEST = {"e4m3": 448.0, "e5m2": 57344.0}
TILES = [(0, 0), (1, 0), (0, 1), (1, 4), (4, 4), (3, 5)]


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def by_hand(x, format, tile):
    """The same in loops over tiles: (codes as float32, scales, decoded)."""
    rows, columns = tile[0] or x.shape[0], tile[1] or x.shape[1]
    codes, decoded, scales = torch.zeros_like(x), torch.zeros_like(x), []
    for top in range(0, x.shape[0], rows):
        scales.append([])
        for left in range(0, x.shape[1], columns):
            place = slice(top, top + rows), slice(left, left + columns)
            scale = x[place].abs().max() / LARGEST[format]
            codes[place] = (x[place] / scale).to(FORMATS[format]).float()
            decoded[place] = codes[place] * scale
            scales[-1].append(scale.item())
    return codes, torch.tensor(scales), decoded


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("tile", TILES)
def test_a_tile_has_the_scale_of_its_largest_entry(format, tile):
    x = random(8, 12) * random(8, 1).exp()
    result = scaled(x, format, tile)
    codes, scales, decoded = by_hand(x, format, tile)
    assert torch.equal(result.codes.float(), codes) and torch.equal(result.scales, scales)
    assert torch.equal(result.decode(), decoded)
    assert result.codes.dtype == FORMATS[format]
    assert result.nbytes == 8 * 12 + 4 * scales.numel()


@pytest.mark.parametrize("format", FORMATS)
def test_the_largest_entry_meets_the_largest_number(format):
    x = random(16, 16) * 1e-9
    codes = scaled(x, format).codes.float()
    assert codes.abs().max() == LARGEST[format]
    assert x.to(FORMATS[format]).float().abs().max() == 0  # a bite: without a scale nothing is left


@pytest.mark.parametrize(("name", "format"), [("e4m3", E4M3), ("e5m2", E5M2)])
def test_every_number_of_the_format_comes_back(name, format):
    """Where the scale is 1, by the definition of the format and not by PyTorch's cast."""
    numbers = [format.value(code) for code in range(256)]
    x = torch.tensor([n for n in numbers if math.isfinite(n)])[None]
    result = scaled(x, name)
    assert result.scales.item() == 1 and x.numel() == {"e4m3": 254, "e5m2": 248}[name]
    assert torch.equal(result.decode(), x) and torch.equal(result.codes.float(), x)
    between = (x.sort().values[0, :-1] + x.sort().values[0, 1:]) / 2
    expected = [format.value(format.code_of(n)) for n in between.tolist()]
    found = scaled(between[None], name, scale=torch.ones(())).decode()[0]
    assert found.tolist() == expected


@pytest.mark.parametrize("format", FORMATS)
def test_scales_that_are_powers_of_two_are_rounded_up(format):
    x = random(64, 8).exp() * random(64, 1, seed=1).exp()
    exact, rounded = scales_of(x, format, (1, 0)), scales_of(x, format, (1, 0), power_of_two=True)
    assert every(math.frexp(scale)[0] == 0.5 for scale in rounded.flatten().tolist())
    assert torch.all(rounded >= exact) and torch.all(rounded < 2 * exact)
    fixed = torch.tensor([[LARGEST[format] * 0.25]])
    assert scales_of(fixed, format, power_of_two=True).item() == 0.25  # one already: it stays
    powers = torch.tensor([2.0**n for n in range(-126, 112)])  # and so does every other one
    found = scales_of(powers[:, None] * LARGEST[format], format, (1, 0), power_of_two=True)
    assert torch.equal(found[:, 0], powers)
    # Numbers that the format has keep every bit, which another scale would change.
    x = torch.tensor([[1.0, 1.25, 1.5, -0.875]])
    assert torch.equal(scaled(x, format, power_of_two=True).decode()[0, :3], x[0, :3])
    assert not torch.equal(scaled(x, "e4m3", scale=torch.tensor(1 / 3)).decode(), x)


def test_an_outlier_costs_the_entries_of_its_tile_alone():
    """Beside 2^20 the others fall below the smallest number of e4m3, in their own tile only."""
    x = random(4, 8)
    x[1, 2] = 2.0**20
    whole, rows, blocks = (scaled(x, "e4m3", tile).decode() for tile in [(0, 0), (1, 0), (1, 4)])
    lost = [int((other == 0).sum()) for other in (whole, rows, blocks)]
    assert lost == [31, 7, 3]


def test_zeros_have_the_scale_one_and_tiny_numbers_a_normal_one():
    assert scaled(torch.zeros(2, 3), "e4m3").scales.item() == 1
    assert not scaled(torch.zeros(2, 3), "e4m3").decode().any()
    tiny = scaled(torch.full((1, 2), 1e-40), "e4m3")
    assert tiny.scales.item() == torch.finfo(torch.float32).tiny and tiny.decode().isfinite().all()


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("format", FORMATS)
def test_what_is_not_finite_stays_so(format, bad):
    """A loss scaler must find it; PyTorch's cast to e4m3 on the CPU makes 448 of infinity."""
    x = random(2, 4)
    x[1, 1] = bad
    measured = scaled(x, format, (1, 0)).decode()
    assert measured[1].isnan().all() and measured[0].isfinite().all()
    delayed = scaled(x, format, scale=torch.tensor(0.5)).decode()
    assert delayed.isnan().nonzero().tolist() == [[1, 1]]
    y = product(scaled(x, format, (1, 0)), scaled(random(3, 4), "e4m3"))
    assert y[1].isnan().all() and y[0].isfinite().all()


def test_with_a_given_scale_what_is_too_large_becomes_the_largest():
    x = torch.tensor([[1.0, 500.0, -1e30, 3e38]])
    assert scaled(x, "e4m3", scale=torch.ones(())).decode().tolist() == [[1, 448, -448, 448]]


@pytest.mark.parametrize(
    ("left", "right"),
    [((0, 0), (0, 0)), ((1, 0), (1, 0)), ((1, 4), (4, 4)), ((1, 4), (1, 4)), ((1, 5), (5, 5)),
     ((1, 4), (0, 0)), ((0, 0), (1, 4))],
)  # fmt: skip
def test_a_product_is_that_of_the_decoded_matrices(left, right):
    a, b = scaled(random(6, 12), "e5m2", left), scaled(random(8, 12, seed=1), "e4m3", right)
    exact = a.decode().double() @ b.decode().double().T
    found = product(a, b)
    assert found.dtype == torch.float32
    assert (found - exact).abs().max() <= 4e-7 * exact.abs().max()
    assert (found - random(6, 12) @ random(8, 12, seed=1).T).abs().max() > 1e-3  # it did round


def test_each_run_of_the_inner_dim_has_its_own_sum():
    """Bit for bit: codes summed in float32 over a run, scaled, and added to the runs before."""
    a, b = scaled(random(6, 24), "e4m3", (1, 8)), scaled(random(16, 24, seed=1), "e4m3", (8, 8))
    total = torch.zeros(6, 16)
    for run in range(3):
        part = slice(8 * run, 8 * run + 8)
        sums = a.codes.float()[:, part] @ b.codes.float()[:, part].T
        total = total + sums * a.scales[:, run, None] * b.scales[:, run].repeat_interleave(8)
    assert torch.equal(product(a, b), total)


def test_nothing_is_copied_to_transpose():
    a = scaled(random(6, 12), "e4m3", (3, 4))
    assert a.T.codes.data_ptr() == a.codes.data_ptr() and a.T.scales.shape == (3, 2)
    assert torch.equal(a.T.decode(), a.decode().T) and isinstance(a.T, Scaled)


def test_autocast_does_not_round_the_sums():
    a, b = scaled(random(6, 64), "e4m3"), scaled(random(6, 64, seed=1), "e4m3")
    with torch.autocast("cpu", torch.bfloat16):
        inside = product(a, b)
    assert torch.equal(inside, product(a, b)) and inside.dtype == torch.float32
