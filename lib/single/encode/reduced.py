"""Numbers of 16, 10 or 8 bits in the place of float32, rounded to nearest, for backward alone.

    fp16   1 sign, 5 exponent, 10 mantissa bits   2 bytes        largest number 65504
    fp10   1 sign, 5 exponent,  4 mantissa bits   4/3 of a byte  largest number 63488
    fp8    1 sign, 4 exponent,  3 mantissa bits   1 byte         largest number 448

[Note: delayed]
Forward uses the float32 and only then forgets them, so the loss of a step does not change: the
rounding enters the gradients, once for each layer, and is not handed from layer to layer. That is
delayed precision reduction.

[Note: rounding]
A number becomes the nearest one of the format, of two equally near ones that with an even last bit.
Numbers too large become the largest, also infinity; a NaN stays one. fp16 and fp8 are PyTorch's
float16 and float8_e4m3fn. fp10 are the upper ten bits of a float16, and three of them make four
bytes, of which two bits stay empty.

Source: Jain et al. 2018, Gist.
"""

from functools import partial

import torch
from torch import Tensor

from lib.predict.recompute.encodings import reduced_bytes

DTYPES = {"fp16": torch.float16, "fp8": torch.float8_e4m3fn}
LARGEST_FP10, SMALLEST_NORMAL_FP10, STEPS_FP10 = 63488.0, 2.0**-14, 16  # steps: 2^mantissa bits
EXPONENT_BITS = 0x7F800000  # of a float32


def reduced(flat: Tensor, delayed: str | None):
    """Encode float32 numbers [N] in a format of FORMATS: (parts, what decodes the parts).

    The parts are bytes. Other numbers stay as they are, and so do those that would not get fewer.
    """
    fewer = reduced_bytes(flat.numel(), delayed) < flat.nbytes
    if flat.dtype != torch.float32 or not fewer:
        return (flat,), _as_it_is
    if delayed == "fp10":
        return (_pack_three(_fp10(flat)),), partial(_from_fp10, numel=flat.numel())
    dtype = DTYPES[delayed]
    largest = torch.finfo(dtype).max
    return (flat.clamp(-largest, largest).to(dtype).view(torch.uint8),), partial(_from, dtype)


def _as_it_is(flat: Tensor) -> Tensor:
    return flat


def _from(dtype: torch.dtype, codes: Tensor) -> Tensor:
    return codes.view(dtype).float()


def _fp10(flat: Tensor) -> Tensor:
    """Return the codes of the nearest fp10 numbers, [N] of int32 below 2^10."""
    flat = flat.clamp(-LARGEST_FP10, LARGEST_FP10)
    # The power of two below each number; between two powers there are STEPS_FP10 numbers.
    power = (flat.view(torch.int32) & EXPONENT_BITS).view(torch.float32)
    step = power.clamp(min=SMALLEST_NORMAL_FP10) / STEPS_FP10
    nearest = (flat / step).round() * step  # of float16, too, and with a NaN where there was one
    return (nearest.half().view(torch.int16).int() >> 6) & 0x3FF


def _from_fp10(words: Tensor, numel: int) -> Tensor:
    codes = torch.stack([words, words >> 10, words >> 20], 1).flatten()[:numel] & 0x3FF
    return (codes << 6).to(torch.int16).view(torch.float16).float()


def _pack_three(codes: Tensor) -> Tensor:
    """Pack numbers of 10 bits, [N] -> int32 [ceil(N/3)]; the first gets the lowest bits."""
    groups = codes.new_zeros(-(-codes.numel() // 3), 3)
    groups.view(-1)[: codes.numel()] = codes
    return groups[:, 0] | groups[:, 1] << 10 | groups[:, 2] << 20
