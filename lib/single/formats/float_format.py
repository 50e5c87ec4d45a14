"""Tensors in and out of small floating-point formats, by whole-number arithmetic on fp32's bits.

[Note: rounding by adding]
An fp32 number's bits, read as a whole number, have the order of the numbers. The lowest
23 - mantissa bits are those that the small format drops. So rounding is: add something below them,
then shift them out; a carry runs from the mantissa into the exponent as it should. Adding half of
the last kept bit rounds to nearest (less one where that bit is even, for ties), adding a random
number rounds stochastically. The difference of the two biases is subtracted at the end.

[Note: subnormal numbers]
Below the smallest normal number the small format has fixed steps. Adding a power of two whose last
bit is one step lets the processor round to a multiple of it, ties to even.

[Note: PyTorch's own casts]
They give the same codes. To float16, bfloat16 and float8_e5m2 they overflow to infinity
(overflow="infinity"). To float8_e4m3fn they saturate in PyTorch 2.13 on the CPU, infinity too;
versions before pull request 178817 of April 2026 gave NaN, and `fill_` refuses such a number. To
float8_e8m0fnu they overflow to NaN, and round up whatever is above 2^-127, the smallest number,
even where that one is nearer. PyTorch has no casts to TF32 and to formats of 4 and 6 bits.
"""

import functools
import struct
from collections.abc import Iterator

import torch
from torch import Tensor

from lib.predict import number_formats
from lib.predict.number_formats import NumberFormat
from lib.single.formats.odd import to_float32

INFINITY, BIAS, MANTISSA = 0x7F800000, 127, 23  # of fp32
CHUNK = 2**16  # numbers of which all steps stay in the processor's cache
NOISE = 24  # random bits for one number


class FloatFormat(NumberFormat):
    """Turns tensors into codes of a small floating-point format, and codes into numbers.

    `exponent` and `mantissa` are numbers of bits; `bias`, `specials`, `signed` and `name` are those
    of `NumberFormat`, by default IEEE's. Raises ValueError for a format that holds what fp32 does
    not, and for more than 16 bits with other exponents than fp32's.
    """

    def __init__(
        self, exponent: int, mantissa: int, bias: int | None = None, specials: str = "ieee",
        signed: bool = True, name: str = "",
    ):  # fmt: skip
        bias = 2 ** (exponent - 1) - 1 if bias is None else bias
        name = name or f"E{exponent}M{mantissa}"
        super().__init__(name, exponent, mantissa, bias, specials, signed)
        if self.mantissa > MANTISSA or self.smallest < 2.0**-149 or self.largest >= 2.0**128:
            raise ValueError(f"{name} holds numbers that fp32 does not, in which it is computed.")
        self._like_fp32 = (exponent, bias, specials, signed) == (8, BIAS, "ieee", True)
        if self.bits > 16 and not (self._like_fp32 and self.mantissa != MANTISSA - 1):
            raise ValueError(
                f"{name} has {self.bits} bits. A format with more than 16 bits needs fp32's 8 bits "
                "of exponent, a sign, and at most 21 or all 23 bits of mantissa."
            )

    @property
    def code_dtype(self) -> torch.dtype:
        """The type of codes: one byte where they fit, else int32 (int64 for FP32), all positive."""
        return torch.uint8 if self.bits <= 8 else torch.int32 if self.bits < 32 else torch.int64

    def encode(
        self, x: Tensor, rounding: str = "nearest", overflow: str = "saturate",
        generator: torch.Generator | None = None,
    ) -> Tensor:  # fmt: skip
        """Return the codes of the numbers, in x's shape.

        rounding="nearest" takes the nearest number, and of two the one with an even code.
        "stochastic" takes one of the two neighbours by chance, the nearer the likelier, so that the
        mean is the number itself (to 2^-24 of a step among subnormal numbers); `generator` is on
        x's device. With overflow="saturate" what is too large, infinity too, becomes the largest
        number; with "infinity" it becomes infinity, or NaN in a format without infinity. A format
        without a sign keeps magnitudes alone. NaN becomes the largest in a format without NaN.

        Raises TypeError for numbers that are not floating-point, and ValueError for another
        `rounding` or `overflow`, and for "infinity" in a format that has neither.
        """
        self.check_overflow(overflow)
        if rounding not in ("nearest", "stochastic"):
            raise ValueError(f'`rounding` is "nearest" or "stochastic", not {rounding!r}.')
        if not x.is_floating_point():
            raise TypeError(f"Codes are made of floating-point numbers, not of {x.dtype}.")
        limit = self.largest_code + (overflow == "infinity")

        def codes_of(numbers: Tensor) -> Tensor:
            bits = self._float32(numbers).view(torch.int32)
            noise = None
            if rounding == "stochastic":
                noise = torch.empty_like(bits).random_(0, 2**NOISE, generator=generator)
            return self._codes(bits, limit, noise)

        if x.numel() <= CHUNK:
            return codes_of(x.detach().contiguous()).to(self.code_dtype)
        codes = torch.empty(x.shape, dtype=self.code_dtype, device=x.device)
        for numbers, part in _chunks(x.detach(), codes):
            part.copy_(codes_of(numbers))
        return codes

    def decode(self, codes: Tensor) -> Tensor:
        """Return the numbers of the codes, exactly, in fp32.

        Raises IndexError or RuntimeError, on the CPU, for a code that has more bits than the
        format.
        """
        table = None if self._like_fp32 else _table(self, codes.device)
        if table is not None and codes.numel() <= CHUNK:
            return table.index_select(0, codes.reshape(-1).to(torch.int32)).view(codes.shape)
        numbers = torch.empty(codes.shape, dtype=torch.float32, device=codes.device)
        for part, out in _chunks(codes, numbers):
            if table is None:
                out.view(torch.int32).copy_(part.to(torch.int32) << (MANTISSA - self.mantissa))
            else:
                torch.index_select(table, 0, part.to(torch.int32), out=out)
        return numbers

    def round(
        self, x: Tensor, rounding: str = "nearest", overflow: str = "saturate",
        generator: torch.Generator | None = None,
    ) -> Tensor:  # fmt: skip
        """Return the numbers of this format that `encode` chooses, in x's dtype, without gradient.

        Raises what `encode` raises, and ValueError where x's dtype does not hold the format.
        """
        if x.is_floating_point():
            dtype = torch.finfo(x.dtype)
            if dtype.eps > self.epsilon or dtype.max < self.largest:
                raise ValueError(
                    f"{x.dtype} does not hold every number of {self.name}: give x in float32."
                )
        return self.decode(self.encode(x, rounding, overflow, generator)).to(x.dtype)

    def _float32(self, numbers: Tensor) -> Tensor:
        """Return numbers in fp32 from which rounding gives the same as from themselves."""
        if numbers.dtype == torch.float64 and self.mantissa < MANTISSA:
            return to_float32(numbers)
        return numbers.float()

    def _codes(self, bits: Tensor, limit: int, noise: Tensor | None) -> Tensor:
        """Return the codes of fp32 bits; those above `limit` become `limit`."""
        magnitude = bits & 0x7FFFFFFF
        nan = magnitude > INFINITY
        magnitude.clamp_(max=INFINITY)
        if not self.mantissa:
            # fp32's subnormal numbers from 2^-127 on are normal here: their bits are stretched.
            stretched = (2 * magnitude.clamp(max=2**MANTISSA) - 2**MANTISSA).clamp_(min=0)
            magnitude = torch.where(magnitude < 2**MANTISSA, stretched, magnitude)
        codes = self._nearest(magnitude) if noise is None else self._by_chance(magnitude, noise)
        codes.clamp_(0, limit)
        if self.signed:
            highest = -(2**31) if self.bits == 32 else self.sign_code
            codes |= (bits >> 31).bitwise_and_(highest)
        codes.masked_fill_(nan, self.largest_code if self.nan_code is None else self.nan_code)
        return codes.long().bitwise_and_(2**32 - 1) if self.bits == 32 else codes

    def _nearest(self, magnitude: Tensor) -> Tensor:
        """Return codes with ties to even, not yet limited, of the bits of positive numbers."""
        shift = MANTISSA - self.mantissa
        if not shift:
            return magnitude.clone()
        half = 1 << (shift - 1)
        if self.mantissa:
            codes = (magnitude >> shift).bitwise_and_(1).add_(magnitude).add_(half - 1)
        else:
            codes = magnitude + half  # of two powers of two, the upper has the even significand
        codes.bitwise_right_shift_(shift).sub_((BIAS - self.bias) << self.mantissa)
        if not self._has_own_subnormals:
            return codes
        step = _bits(self.smallest * 2.0**MANTISSA)
        small = magnitude.clamp(max=_bits(self.smallest_normal)).view(torch.float32)
        small = (small + self.smallest * 2.0**MANTISSA).view(torch.int32).sub_(step)
        # Below the smallest normal number the first code is too low, above it the second one.
        return torch.maximum(codes, small, out=codes)

    def _by_chance(self, magnitude: Tensor, noise: Tensor) -> Tensor:
        """Return codes of one of the two neighbours, with `NOISE` random bits for each number."""
        shift = MANTISSA - self.mantissa
        codes = (noise >> (NOISE - shift)).add_(magnitude).bitwise_right_shift_(shift)
        codes -= (BIAS - self.bias) << self.mantissa
        if not self._has_own_subnormals:
            return codes
        normal = magnitude >= _bits(self.smallest_normal)
        steps = magnitude.view(torch.float32).clamp(max=self.smallest_normal) / self.smallest
        below = steps.floor()
        up = (steps - below) * 2**NOISE > noise
        return torch.where(normal, codes, below.int() + up.int())

    @property
    def _has_own_subnormals(self) -> bool:
        """Whether numbers are subnormal here that are normal in fp32."""
        return self.mantissa > 0 and self.bias < BIAS


def _chunks(x: Tensor, out: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Give x and `out` in flat pieces, which on the CPU are small; `out` is contiguous."""
    x, out = x.reshape(-1), out.view(-1)
    size = CHUNK if x.device.type == "cpu" else max(x.numel(), 1)
    yield from zip(x.split(size), out.split(size))


def _bits(number: float) -> int:
    return struct.unpack("<i", struct.pack("<f", number))[0]


@functools.lru_cache(maxsize=64)
def _table(form: FloatFormat, device: torch.device) -> Tensor:
    """Return the numbers of all codes, in fp32."""
    return torch.tensor([form.value(code) for code in range(2**form.bits)], device=device)


def _like(form: NumberFormat) -> FloatFormat:
    """Return the format that turns tensors into codes of `form`."""
    return FloatFormat(
        form.exponent, form.mantissa, form.bias, form.specials, form.signed, form.name
    )


FP32, TF32 = _like(number_formats.FP32), _like(number_formats.TF32)
BF16, FP16 = _like(number_formats.BF16), _like(number_formats.FP16)
E5M2, E4M3 = _like(number_formats.E5M2), _like(number_formats.E4M3)
E3M2, E2M3 = _like(number_formats.E3M2), _like(number_formats.E2M3)
E2M1, E8M0 = _like(number_formats.E2M1), _like(number_formats.E8M0)
