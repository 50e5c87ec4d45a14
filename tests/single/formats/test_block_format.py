"""Blocks that share a scale: by hand, against exact arithmetic, and the bytes that are counted."""

import math
from fractions import Fraction

import pytest
import torch

from lib.single.bits import pack
from lib.single.formats import (
    E2M1,
    E4M3,
    E5M2,
    E8M0,
    MXFP4,
    MXFP6,
    MXFP6_E3M2,
    MXFP8,
    MXFP8_E5M2,
    NVFP4,
    BlockFormat,
)

MX = (MXFP8, MXFP8_E5M2, MXFP6, MXFP6_E3M2, MXFP4)
ALL = pytest.mark.parametrize("form", [*MX, NVFP4], ids=lambda form: form.name)


def wide(rows=40, width=64, seed=0):
    """Numbers whose rows differ in size by many powers of two."""
    noise = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, width, generator=noise)
    return x * 2.0 ** torch.randint(-12, 12, (rows, 1), generator=noise)


def of_four(*numbers, rule="floor"):
    """A block of four numbers in MXFP4's way: its scale, and the numbers that come back."""
    form = BlockFormat("MXFP4 of 4", E2M1, E8M0, 4, rule)
    codes = form.encode(torch.tensor(numbers))
    return 2.0 ** (codes.scales.item() - 127), form.decode(codes).tolist()


def test_a_block_by_hand():
    """The largest is 10, so floor(log2 10) = 3, less emax = 2: the scale is 2."""
    assert of_four(10.0, -3.0, 0.9, 0.2) == (2.0, [8.0, -3.0, 1.0, 0.0])  # 10 / 2 = 5: a tie
    assert of_four(15.9, 0.0, 0.0, 1.0) == (2.0, [12.0, 0.0, 0.0, 1.0])  # 7.95 saturates at 6


def test_the_other_rules():
    assert of_four(15.9, 0.0, 0.0, 2.0, rule="ceil") == (4.0, [16.0, 0.0, 0.0, 2.0])
    assert of_four(12.0, 0.0, 0.0, 2.0, rule="ceil") == (2.0, [12.0, 0.0, 0.0, 2.0])
    assert of_four(12.1, 0.0, 0.0, 2.0, rule="ceil") == (4.0, [12.0, 0.0, 0.0, 2.0])
    assert of_four(13.9, 0.0, 0.0, 2.0, rule="even") == (2.0, [12.0, 0.0, 0.0, 2.0])
    assert of_four(14.0, 0.0, 0.0, 2.0, rule="even") == (4.0, [16.0, 0.0, 0.0, 2.0])


def exactly(form, block):
    """The numbers of one block of MX by exact arithmetic, from the specification."""
    largest = max(abs(Fraction(x)) for x in block)
    power = -127
    if largest:
        shared = math.floor(math.log2(largest)) - math.floor(math.log2(form.element.largest))
        power = min(max(shared, -127), 127)
    scale = Fraction(2) ** power
    codes = [form.element.code_of(float(Fraction(x) / scale)) for x in block]
    return power + 127, [float(Fraction(form.element.value(code)) * scale) for code in codes]


@pytest.mark.parametrize("form", MX, ids=lambda form: form.name)
def test_mx_is_the_specification(form):
    x = wide()
    x[3, :32] = 0
    codes = form.encode(x)
    numbers = form.decode(codes).unflatten(-1, (-1, 32))
    for row, block in torch.cartesian_prod(torch.arange(len(x)), torch.arange(2)).tolist():
        scale, expected = exactly(form, x[row, 32 * block : 32 * block + 32].tolist())
        assert codes.scales[row, block].item() == scale
        assert numbers[row, block].tolist() == expected
    per_row = BlockFormat("one", form.element, E8M0, 64).round(x)
    assert not torch.equal(per_row, form.round(x))  # a bite: blocks that are too long


@pytest.mark.parametrize("element", [E4M3, E5M2, E2M1], ids=lambda form: form.name)
def test_with_the_rule_ceil_nothing_saturates_and_half_the_scale_would(element):
    x = wide(seed=1)
    blocks = x.unflatten(-1, (-1, 32)).abs().amax(-1)
    form = BlockFormat("ceil", element, E8M0, 32, "ceil")
    scales = E8M0.decode(form.encode(x).scales)
    assert (blocks / scales <= element.largest).all() and (
        blocks > element.largest * scales / 2
    ).all()
    floor = E8M0.decode(BlockFormat("floor", element, E8M0, 32).encode(x).scales)
    assert (blocks / floor > element.largest).any()  # a bite: the specification's rule saturates


def test_nvfp4_by_hand():
    """The tensor's largest is 2688 = 448 · 6, so its scale is 1, and a block's scale is m / 6."""
    x = torch.zeros(2, 16)
    x[0, 0], x[0, 1] = 2688.0, -1000.0
    x[1, :3] = torch.tensor([3.3, 1.0, 0.1])
    codes = NVFP4.encode(x)
    assert codes.tensor_scale.item() == 1 and codes.scales.shape == (2, 1)
    assert E4M3.decode(codes.scales).flatten().tolist() == [448.0, 0.5625]  # 3.3 / 6 = 0.55
    # -1000 / 448 = -2.23; 3.3 / 0.5625 = 5.87; 1 / 0.5625 = 1.78; 0.1 / 0.5625 = 0.18
    assert NVFP4.decode(codes)[:, :3].tolist() == [[2688.0, -896.0, 0.0], [3.375, 1.125, 0.0]]


def test_nvfp4_scales_a_tensor_to_the_end_of_e4m3():
    for size in (1e-20, 1.0, 1e20):
        x = size * wide()
        codes = NVFP4.encode(x)
        assert E4M3.decode(codes.scales).max() == 448
        assert (NVFP4.decode(codes).abs().max() / x.abs().max() - 1).abs() < 1e-6


def test_zeros():
    for form in (*MX, NVFP4):
        assert torch.equal(form.round(torch.zeros(3, 64)), torch.zeros(3, 64))
    x = torch.zeros(2, 16)
    x[0], x[1] = 1.0, 1e-9  # the second block's scale rounds to zero in E4M3
    assert torch.equal(NVFP4.round(x)[1], torch.zeros(16)) and NVFP4.round(x)[0].eq(1).all()


def test_infinity_and_nan_make_a_block_nan():
    x = torch.ones(3, 32)
    x[0, 5], x[1, 7] = math.inf, math.nan
    codes = MXFP8.encode(x)
    assert codes.scales.flatten().tolist() == [255, 255, 127 - 8]
    assert MXFP8.decode(codes)[:2].isnan().all() and MXFP8.decode(codes)[2].eq(1).all()


@ALL
def test_bytes_are_those_that_lie_packed(form):
    x = wide()
    codes = form.encode(x)
    packed = pack(codes.elements.flatten(), form.element.bits)
    kept = packed.numel() + codes.scales.numel() * codes.scales.itemsize
    kept += 0 if codes.tensor_scale is None else codes.tensor_scale.nbytes
    assert form.nbytes(x.numel()) == kept
    assert kept == int(form.bits * x.numel() / 8) + 4 * form.has_tensor_scale


def test_bits_of_a_number():
    assert [form.bits for form in (MXFP8, MXFP6, MXFP4, NVFP4)] == [8.25, 6.25, 4.25, 4.5]


@ALL
def test_shapes_and_pieces(form):
    """Blocks lie along the last dim of any shape, and more of them than a piece holds."""
    x = torch.randn(3, 5, 64).transpose(0, 1)
    codes = form.encode(x)
    assert codes.elements.shape == (5, 3, 64)
    assert codes.scales.shape == (5, 3, 64 // form.block)
    assert torch.equal(form.decode(codes), form.round(x.flatten()).view(5, 3, 64))
    long = torch.randn(2**16 + 64)
    assert torch.equal(form.round(long.neg()), -form.round(long))
    if form is not NVFP4:
        assert torch.equal(form.round(long)[-64:], form.round(long[-64:]))
    assert form.round(torch.empty(0, 64)).shape == (0, 64)


@ALL
def test_what_comes_back_stays(form):
    """Once more changes nothing where the largest element keeps its place, as in MX."""
    x = form.round(wide())
    if form is not NVFP4:
        assert torch.equal(form.round(x), x)
    assert form.round(wide().double()).dtype == torch.float64


def test_the_finer_scale_errs_less():
    """NVFP4 against MXFP4, three seeds of normal numbers: the root of the mean square."""
    for seed in range(3):
        x = torch.randn(512, 64, generator=torch.Generator().manual_seed(seed))
        errors = {
            form.name: (form.round(x) - x).norm() / x.norm() for form in (NVFP4, MXFP4, MXFP8)
        }
        assert errors["MXFP8"] < 0.04 < errors["NVFP4"] < 0.85 * errors["MXFP4"]


def test_stochastic_rounding_has_the_number_as_its_mean():
    noise = torch.Generator().manual_seed(0)
    x = torch.linspace(-1, 1, 32).expand(20_000, 32)
    ceil = BlockFormat("MXFP4 ceil", E2M1, E8M0, 32, "ceil")
    mean = ceil.round(x, "stochastic", generator=noise).mean(0)
    assert torch.allclose(mean, x[0], atol=0.01)
    assert not torch.allclose(ceil.round(x).mean(0), x[0], atol=0.01)


@ALL
def test_on_an_accelerator(form):
    if not torch.accelerator.is_available():
        pytest.skip("there is no accelerator")
    codes = form.encode(wide().to(torch.accelerator.current_accelerator()))
    assert torch.equal(codes.elements.cpu(), form.encode(wide()).elements)
    assert torch.equal(form.decode(codes).cpu(), form.round(wide()))


def test_what_is_refused():
    with pytest.raises(ValueError, match="40 entries, and MXFP8 needs whole blocks of 32"):
        MXFP8.encode(torch.ones(2, 40))
    with pytest.raises(ValueError, match="E2M1 has neither infinity nor NaN"):
        NVFP4.encode(torch.ones(16), overflow="infinity")
    with pytest.raises(ValueError, match="`rule`.*not 'up'"):
        BlockFormat("x", E2M1, E8M0, 32, "up")
    with pytest.raises(ValueError, match="at least 1 element, not 0"):
        BlockFormat("x", E2M1, E8M0, 0)
