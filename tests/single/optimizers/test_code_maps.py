"""Codes of 8 bits: the maps by hand, and the nearest value exactly, border by border."""

from fractions import Fraction

import pytest
import torch

from lib.single.optimizers.code_maps import CodeMap, code_map, dynamic_values, linear_values
from tests.every import every

MAPS = [(kind, signed) for kind in ("dynamic", "linear") for signed in (True, False)]
every_map = pytest.mark.parametrize(("kind", "signed"), MAPS)


def test_the_dynamic_map_bit_by_bit():
    """Every code of 7 bits as the paper draws it: zeros, a one, a fraction; then with its sign."""
    values = [Fraction(0), Fraction(1)]
    for code in range(1, 128):
        zeros = 7 - code.bit_length()
        steps = 2 ** (6 - zeros)
        fraction = Fraction(code - steps) + Fraction(1, 2)
        value = (Fraction(1, 10) + Fraction(9, 10) * fraction / steps) / 10**zeros
        values += [value, -value]
    expected = torch.tensor([float(value) for value in sorted(values)], dtype=torch.float64)
    assert len(set(values)) == 256
    torch.testing.assert_close(dynamic_values(True), expected, rtol=1e-15, atol=0)


def test_the_unsigned_map_has_one_more_bit_of_fraction():
    values = dynamic_values(False)
    assert values[0] == 0 and values[-1] == 1 and len(values.unique()) == 256
    assert ((values > 0.1) & (values < 1)).sum() == 128  # 64 where there is a sign
    assert ((dynamic_values(True) > 0.1) & (dynamic_values(True) < 1)).sum() == 64
    assert values[1:3].tolist() == pytest.approx([0.325e-6, 0.775e-6])


def test_the_linear_map():
    assert linear_values(False)[[0, 1, 255]].tolist() == [0, 1 / 255, 1]
    assert linear_values(True)[[0, 1, 128, 255]].tolist() == [-128 / 127, -1, 0, 1]


@every_map
def test_nearest_at_every_border_and_beside_it(kind, signed):
    """The last fp32 number of each value and the first of the next, and the bite: one bit more."""
    one = code_map(kind, signed)
    exact = [Fraction(value) for value in one.values.tolist()]
    for code, (low, high) in enumerate(zip(exact, exact[1:])):
        middle = (low + high) / 2
        last = torch.tensor(float(middle), dtype=torch.float32)
        if Fraction(last.item()) > middle:
            last = torch.nextafter(last, torch.tensor(-9.0))
        beyond = torch.nextafter(last, torch.tensor(9.0))
        assert one.nearest(torch.stack([last, beyond])).tolist() == [code, code + 1]


@every_map
def test_nearest_of_numbers_of_all_sizes(kind, signed):
    noise = torch.Generator().manual_seed(0)
    x = torch.rand(20_000, generator=noise)
    x = torch.cat([x * 10.0**-k for k in range(9)] + [torch.tensor([0.0, 1.0, 1e-40])])
    x = torch.cat([x, -x]) if signed else x
    one = code_map(kind, signed)
    values = one.values.double()
    codes = torch.searchsorted((values[1:] + values[:-1]) / 2, x.double())
    assert torch.equal(one.nearest(x).long(), codes)


@every_map
@pytest.mark.parametrize("numel", [1, 255, 256, 700, 768])
def test_decoding_is_the_value_of_each_code_times_its_maximum(kind, signed, numel):
    """To the bit, for codes in any order, in blocks of 256 of which the last may be shorter."""
    draws = torch.Generator().manual_seed(0)
    codes = torch.randint(256, (numel,), dtype=torch.uint8, generator=draws)
    maxima = torch.rand(-(-numel // 256), generator=draws)
    one = code_map(kind, signed)
    pairs = zip(codes.tolist(), maxima.repeat_interleave(256)[:numel])
    expected = torch.stack([one.values[code] * top for code, top in pairs])
    assert torch.equal(one.decode(codes, maxima, 256), expected)


@pytest.mark.parametrize("numel", [1, 7, 64, 100])  # by vectors of the processor, and one by one
@pytest.mark.parametrize("kind", ["dynamic", "linear"])
def test_zero_has_one_code_whatever_its_sign(kind, numel):
    """The smallest negative numbers are beside it: the bits of -0 are those of no other integer."""
    one = code_map(kind, True)
    for zero in (0.0, -0.0, 1e-45, -1e-45):
        assert (one.values[one.nearest(torch.full((numel,), zero)).int()] == 0).all()
    x = torch.tensor([-0.0, 1.0, -1e-30, 1e30])
    assert one.decode(*one.encode(x, 4), 4).tolist() == [0, 0, 0, pytest.approx(1e30)]


def test_encoding_leaves_its_numbers_alone_and_in_place_it_writes_the_same():
    x = torch.randn(100, generator=torch.Generator().manual_seed(0))
    before, one = x.clone(), code_map("dynamic", True)
    codes, maxima = one.encode(x, 8)
    one.nearest(x / 10)
    assert torch.equal(x, before)
    out = torch.zeros_like(codes), torch.zeros_like(maxima)
    one.encode_in_place(x, 8, out, torch.empty(2, 100, dtype=torch.int32))
    assert torch.equal(out[0], codes) and torch.equal(out[1], maxima)
    assert not torch.equal(x, before)
    room = torch.empty(100), torch.empty(100, dtype=torch.int32)
    assert one.decode(codes, maxima, 8, *room) is room[0]
    assert torch.equal(room[0], one.decode(codes, maxima, 8))


@every_map
def test_what_is_decoded_is_encoded_as_the_same_codes(kind, signed):
    one = code_map(kind, signed)
    codes = torch.arange(256, dtype=torch.uint8)
    inside = one.values.abs() <= 1
    assert torch.equal(one.nearest(one.values)[inside], codes[inside])
    x = one.decode(codes.repeat(2)[:500], torch.tensor([3.0, 0.5, 7.0]), 200)
    assert torch.equal(x[200:400], 0.5 * one.values[(torch.arange(200) + 200) % 256])
    assert torch.equal(x[400:], 7 * one.values[(torch.arange(100) + 400) % 256])


@pytest.mark.parametrize("numel", [1, 5, 8, 20, 64])
def test_blocks_have_their_own_maxima_and_the_last_may_be_shorter(numel):
    noise = torch.Generator().manual_seed(numel)
    x = torch.randn(numel, generator=noise) * 10 ** torch.randn(numel, generator=noise)
    one = code_map("dynamic", True)
    codes, maxima = one.encode(x, 8)
    parts = x.split(8)
    assert maxima.tolist() == [part.abs().max().item() for part in parts]
    expected = torch.cat([one.nearest(part / part.abs().max()) for part in parts])
    assert torch.equal(codes, expected)
    back = one.decode(codes, maxima, 8)
    assert every(
        torch.equal(mine, one.values[code.long()] * top)
        for mine, code, top in zip(back.split(8), codes.split(8), maxima)
    )


def test_a_block_of_zeros_stays_zero_and_what_is_not_finite_is_seen():
    one = code_map("dynamic", True)
    assert one.decode(*one.encode(torch.zeros(6), 4), 4).tolist() == [0] * 6
    for bad in (torch.nan, torch.inf, -torch.inf):
        x = torch.ones(6)
        x[1] = bad
        for signed in {True, bad == -torch.inf}:  # second moments are never negative
            one = code_map("dynamic", signed)
            back = one.decode(*one.encode(x, 4), 4)
            assert not back[:4].isfinite().any() and back[4:].tolist() == [1, 1]


def relative_error(kind, x, block):
    one = code_map(kind, True)
    back = one.decode(*one.encode(x, block), block)
    return ((back - x).abs() / x.abs()).median().item()


def test_an_outlier_spoils_its_block_alone():
    """With one maximum for the whole tensor, an outlier costs all numbers precision."""
    noise = torch.Generator().manual_seed(0)
    x = torch.randn(4096, generator=noise)
    usual = relative_error("dynamic", x, 256)
    x[7] = 10_000
    assert relative_error("dynamic", x, 256) < 1.1 * usual < 0.02
    assert relative_error("dynamic", x, 4096) > 8 * usual
    assert relative_error("linear", x, 4096) == 1  # the median number is decoded as 0


def test_the_dynamic_map_keeps_what_the_linear_one_rounds_to_zero():
    """Numbers over five orders of magnitude, as second moments are."""
    noise = torch.Generator().manual_seed(0)
    x = 10 ** (-5 * torch.rand(10_000, generator=noise))
    assert relative_error("dynamic", x, 256) < 0.05
    lost = code_map("linear", False)
    back = lost.decode(*lost.encode(x, 256), 256)
    assert (back == 0).float().mean() > 0.4
    kept = code_map("dynamic", False)
    assert (kept.decode(*kept.encode(x, 256), 256) > 0).all()


def test_maps_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="256 values in rising order"):
        CodeMap(torch.zeros(256))
    close = torch.linspace(0, 1, 256).double()
    close[2] = close[1] * (1 + 1e-4)
    close[3] = close[1] * (1 + 2e-4)
    with pytest.raises(ValueError, match="so close together"):
        CodeMap(close)
    with pytest.raises(ValueError, match="No map of 8 bits is called 'log'"):
        code_map("log", True)
