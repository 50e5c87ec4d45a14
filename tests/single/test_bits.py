"""Bits are really packed: every number comes back, and no byte is wasted."""

import math

import pytest
import torch

from lib.single.bits import pack, unpack


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("numel", [0, 1, 7, 8, 9, 63, 64, 1001])
def test_what_is_packed_comes_back(bits, numel):
    noise = torch.Generator("cpu").manual_seed(bits * 10_000 + numel)
    codes = torch.randint(0, 2**bits, (numel,), generator=noise)
    if numel:
        codes[-1] = 2**bits - 1
    packed = pack(codes.to(torch.uint8), bits)
    assert packed.dtype == torch.uint8 and packed.numel() == math.ceil(numel * bits / 8)
    assert torch.equal(unpack(packed, bits, numel), codes.to(torch.uint8))


def test_by_hand():
    """1 2 3 in 3 bits each, the first one lowest: 0b011_010_001 = 0b0_11010001."""
    assert pack(torch.tensor([1, 2, 3]), 3).tolist() == [0b11010001, 0b0]
    assert pack(torch.tensor([1, 0, 1, 1, 0, 0, 0, 0, 1]), 1).tolist() == [0b1101, 1]
    assert pack(torch.tensor([0xA, 0x5]), 4).tolist() == [0x5A]


@pytest.mark.parametrize("bits", [0, 9])
def test_other_widths_are_refused(bits):
    with pytest.raises(ValueError, match=f"A number is packed into 1 to 8 bits, not {bits}"):
        pack(torch.tensor([1]), bits)
    with pytest.raises(ValueError, match=f"not {bits}"):
        unpack(torch.tensor([1], dtype=torch.uint8), bits, 1)
