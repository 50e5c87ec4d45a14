"""Small formats are PyTorch's casts bit for bit, and the exact reference where it has none."""

import math
import pickle

import pytest
import torch

from lib.predict import number_formats
from lib.single.formats import (
    BF16,
    E2M1,
    E2M3,
    E3M2,
    E4M3,
    E5M2,
    E8M0,
    FP16,
    FP32,
    TF32,
    FloatFormat,
)
from tests.every import every

# PyTorch's type, the whole number of its size, and what its cast does with what is too large.
# See [Note: PyTorch's own casts] in float_format.py.
CASTS = {
    FP16: (torch.float16, torch.int16, "infinity"),
    BF16: (torch.bfloat16, torch.int16, "infinity"),
    E5M2: (torch.float8_e5m2, torch.uint8, "infinity"),
    E4M3: (torch.float8_e4m3fn, torch.uint8, "saturate"),
    E8M0: (torch.float8_e8m0fnu, torch.uint8, "infinity"),
}
ALL = (FP32, TF32, BF16, FP16, E5M2, E4M3, E3M2, E2M3, E2M1, E8M0)
EIGHTS = FloatFormat(4, 2, bias=9, specials="nan"), FloatFormat(3, 3), FloatFormat(6, 9)


def name(form):
    return form.name


cast = pytest.mark.parametrize("form", CASTS, ids=name)
every_format = pytest.mark.parametrize("form", [*ALL, *EIGHTS], ids=name)
small_format = pytest.mark.parametrize("form", [*ALL[2:], *EIGHTS], ids=name)


def theirs(form, x):
    """The codes of PyTorch's cast."""
    dtype, whole, _ = CASTS[form]
    return x.to(dtype).view(whole).int() & (2**form.bits - 1)


def assert_same(form, codes, expected):
    """The same codes, where NaN has only one."""
    nan = form.decode(expected).isnan()
    assert torch.equal(form.decode(codes).isnan(), nan)
    assert torch.equal(codes.int()[~nan], expected.int()[~nan])


def hard_numbers(form):
    """All numbers and middles, their neighbours in fp32, fp32's ends and specials; both signs."""
    codes = torch.arange(min(form.largest_code, 2**16) + 1)
    numbers = form.decode(codes)
    past = torch.tensor([form.largest * (1 + form.epsilon / 4 * k) for k in range(1, 9)])
    middles = (numbers[:-1].double() + numbers[1:].double()).div_(2).float()
    numbers = torch.cat([numbers, middles, past])
    bits = numbers.view(torch.int32)
    numbers = torch.cat([numbers, (bits + 1).view(torch.float32),
                         (bits - 1).clamp_(min=0).view(torch.float32)])  # fmt: skip
    ends = [0, 1, 2, 3, 0x3FFFFF, 0x7FFFFF, 0x800000, 0x7F7FFFFF, 0x7F800000, 0x7FC00000]
    ends = torch.tensor(ends, dtype=torch.int32).view(torch.float32)
    return torch.cat([numbers, -numbers, ends, -ends])


def any_bits(numel=300_000):
    """Numbers of which every bit is drawn: all magnitudes that fp32 has, NaN too."""
    noise = torch.Generator().manual_seed(1)
    bits = torch.randint(-(2**31), 2**31, (numel,), generator=noise)
    return bits.int().view(torch.float32)


# --- PyTorch's casts


@cast
def test_every_code_is_decoded_as_pytorch_does(form):
    codes = torch.arange(2**form.bits)
    dtype, whole, _ = CASTS[form]
    expected = codes.to(whole).view(dtype).float()
    assert torch.equal(form.decode(codes).isnan(), expected.isnan())
    finite = ~expected.isnan()
    ours = form.decode(codes)[finite].view(torch.int32)
    assert torch.equal(ours, expected[finite].view(torch.int32))


@cast
@pytest.mark.parametrize("numbers", ["hard", "any"])
def test_encoding_is_pytorchs_cast(form, numbers):
    x = hard_numbers(form) if numbers == "hard" else any_bits()
    if form is E8M0:
        # PyTorch rounds fp32's numbers between 2^-127 and 1.5 · 2^-127 up, where ours are nearest.
        x = x[(x.abs() <= 2.0**-127) | (x.abs() >= 1.5 * 2.0**-127) | x.isnan()]
    assert_same(form, form.encode(x, overflow=CASTS[form][2]), theirs(form, x))
    wrong = form.encode(x.view(torch.int32).bitwise_and(-(2**20)).view(torch.float32))
    assert not torch.equal(wrong.int(), theirs(form, x))  # a bite: cut off and not rounded


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("numel", [1, 7, 8, 16, 33])
def test_pytorchs_cast_to_e4m3_saturates(dtype, numel):
    """For every number in a vector register and for those that are left over."""
    for number in (465.0, 1e4, math.inf):
        x = torch.full((numel,), number, dtype=dtype)
        assert x.to(torch.float8_e4m3fn).float().eq(448).all()


def test_filling_with_a_number_too_large_is_refused_by_pytorch():
    with pytest.raises(RuntimeError, match="without overflow"):
        torch.empty(3, dtype=torch.float8_e4m3fn).fill_(465.0)


def test_pytorchs_cast_to_e8m0_is_not_to_the_nearest_below_its_second_number():
    x = torch.tensor([1.25 * 2.0**-127])
    assert theirs(E8M0, x).item() == 1 and E8M0.encode(x).item() == 0
    assert E8M0.code_of(x.item()) == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_numbers_of_two_bytes_are_encoded_too(dtype):
    x = torch.arange(2**16).to(torch.int16).view(dtype)
    for form, (_, _, overflow) in CASTS.items():
        assert_same(
            form, form.encode(x, overflow=overflow), form.encode(x.float(), "nearest", overflow)
        )


# --- the exact reference


OVERFLOWS = [(form, "saturate") for form in [*ALL, *EIGHTS]]
OVERFLOWS += [(form, "infinity") for form in [*ALL, *EIGHTS] if form.specials != "none"]


@pytest.mark.parametrize(("form", "overflow"), OVERFLOWS, ids=lambda x: getattr(x, "name", x))
def test_encoding_is_the_exact_reference(form, overflow):
    plain = number_formats.NumberFormat(
        form.name, form.exponent, form.mantissa, form.bias, form.specials, form.signed
    )
    x = torch.cat([hard_numbers(form)[::41], any_bits(3000)])
    expected = torch.tensor([plain.code_of(number, overflow) for number in x.tolist()])
    assert_same(form, form.encode(x, overflow=overflow), expected)


@every_format
def test_fp64_is_rounded_once(form):
    """Beside every middle, nearer than fp32 can tell."""
    numbers = form.decode(torch.arange(min(form.largest_code, 500) + 1)).double()
    middles = (numbers[1:] + numbers[:-1]) / 2
    x = torch.cat([middles * (1 + 2.0**-40), middles, middles * (1 - 2.0**-40), -middles])
    expected = torch.tensor([form.code_of(number) for number in x.tolist()])
    assert torch.equal(form.encode(x).long(), expected)
    if form.bits <= 16:
        once_more = form.encode(x.float()).long()  # a bite: rounded to fp32 first
        assert not torch.equal(once_more, expected)


@small_format
def test_every_code_comes_back(form):
    codes = torch.arange(2**form.bits)
    numbers = form.decode(codes)
    finite = numbers.isfinite()
    assert torch.equal(form.encode(numbers)[finite].long(), codes[finite])
    expected = torch.tensor([form.value(code) for code in codes.tolist()])
    assert torch.equal(numbers[finite], expected[finite])


@pytest.mark.parametrize("form", [TF32, FP32], ids=name)
def test_codes_of_wide_formats_come_back(form):
    numbers = any_bits()
    numbers = form.round(numbers[~numbers.isnan()])
    assert torch.equal(
        form.decode(form.encode(numbers)).view(torch.int32), numbers.view(torch.int32)
    )
    codes = form.encode(numbers[:1000]).tolist()
    assert [form.value(code) for code in codes] == numbers[:1000].tolist()


# --- shapes, types, what is refused


def test_shapes_and_types():
    x = torch.randn(3, 5, 7, dtype=torch.bfloat16).transpose(0, 2)
    for form, dtype in ((E4M3, torch.uint8), (FP16, torch.int32), (FP32, torch.int64)):
        codes = form.encode(x)
        assert codes.shape == (7, 5, 3) and codes.dtype == dtype
        assert form.decode(codes).dtype == torch.float32
    assert E4M3.round(x).dtype == torch.bfloat16 and E4M3.round(x).shape == x.shape
    assert torch.equal(E4M3.round(x), x.to(torch.float8_e4m3fn).bfloat16())
    assert E4M3.encode(torch.tensor(1.0)).shape == () and E4M3.round(torch.empty(0)).numel() == 0


def test_x_stays_as_it_is_and_passes_no_gradient():
    x = torch.randn(1000, requires_grad=True)
    before = x.detach().clone()
    assert not E2M1.round(x).requires_grad and torch.equal(x.detach(), before)


def test_more_numbers_than_a_chunk():
    x = torch.randn(2**16 + 3)
    assert torch.equal(FP16.round(x), x.half().float())


def test_a_format_travels_to_another_process():
    again = pickle.loads(pickle.dumps(E4M3))
    assert again == E4M3 and torch.equal(again.round(torch.ones(2)), torch.ones(2))
    assert E4M3 != E5M2


def test_default_names_and_bias():
    assert (FloatFormat(5, 10).name, FloatFormat(5, 10).bias) == ("E5M10", 15)


def test_what_is_refused():
    x = torch.ones(2)
    with pytest.raises(ValueError, match="E2M1 has neither infinity nor NaN"):
        E2M1.encode(x, overflow="infinity")
    with pytest.raises(ValueError, match="`rounding`.*not 'up'"):
        FP16.encode(x, "up")
    with pytest.raises((IndexError, RuntimeError), match="out of range"):
        E2M1.decode(torch.tensor([16], dtype=torch.uint8))
    with pytest.raises(TypeError, match="not of torch.int64"):
        FP16.encode(torch.ones(2, dtype=torch.int64))
    with pytest.raises(ValueError, match="torch.bfloat16 does not hold every number of FP16"):
        FP16.round(x.bfloat16())
    with pytest.raises(ValueError, match="torch.float16 does not hold every number of BF16"):
        BF16.round(x.half())
    with pytest.raises(ValueError, match="E9M2 holds numbers that fp32 does not"):
        FloatFormat(9, 2)
    with pytest.raises(ValueError, match="E5M12 has 18 bits"):
        FloatFormat(5, 12)


def test_on_an_accelerator():
    if not torch.accelerator.is_available():
        pytest.skip("there is no accelerator")
    device = torch.accelerator.current_accelerator()
    x = any_bits()
    for form in ALL:
        codes = form.encode(x.to(device))
        assert torch.equal(codes.cpu(), form.encode(x))
        assert torch.equal(
            form.decode(codes).cpu().nan_to_num(), form.decode(codes.cpu()).nan_to_num()
        )


def test_saturation_takes_infinity_in_and_nan_stays():
    x = torch.tensor([math.inf, -math.inf, math.nan, 1e30])
    assert E5M2.round(x)[:2].tolist() == [57344, -57344] and E5M2.round(x)[2].isnan()
    assert E2M1.round(x).tolist() == [6, -6, 6, 6]
    assert every(E4M3.round(x, overflow="infinity").isnan().tolist())
