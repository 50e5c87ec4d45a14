"""Floating-point formats of few bits: what they can hold, and single numbers in and out of codes.

A code is the number's bits read as a whole number: the sign is the highest bit, then the exponent,
then the mantissa. With e and f the exponent's and the mantissa's bits read as whole numbers,

    normal     (e > 0)    ± 2^(e - bias) · (1 + f / 2^mantissa)
    subnormal  (e = 0)    ± 2^(1 - bias) · f / 2^mantissa

Sources: IEEE 754-2019 (FP32, FP16); Kalamkar et al. 2019, "A Study of BFLOAT16 for Deep Learning
Training" (BF16); NVIDIA's A100 white paper (TF32); Micikevicius et al. 2022, "FP8 Formats for Deep
Learning" (E4M3, E5M2); OCP Microscaling Formats v1.0, 2023 (E3M2, E2M3, E2M1, E8M0).
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class NumberFormat:
    """Describes a floating-point format by the widths of its fields.

    `specials` says what the highest codes mean: with "ieee" the highest exponent is infinity and
    NaN, with "nan" only the code whose exponent and mantissa are all ones is NaN (and there is no
    infinity), and with "none" every code is a finite number. A format without a mantissa has
    neither subnormals nor zero: its codes are powers of two.
    """

    name: str
    exponent: int  # bits
    mantissa: int  # bits
    bias: int
    specials: str
    signed: bool = True

    def __post_init__(self):
        if self.specials not in ("ieee", "nan", "none"):
            raise ValueError(f'`specials` is "ieee", "nan" or "none", not {self.specials!r}.')
        if self.exponent < 1 or self.mantissa < 0:
            raise ValueError(
                f"A format has at least 1 bit of exponent and no negative number of mantissa bits, "
                f"not {self.exponent} and {self.mantissa}."
            )
        if self.largest_code < 1 or (self.specials == "ieee" and self.mantissa < 1):
            raise ValueError(
                f"{self.exponent} bits of exponent and {self.mantissa} of mantissa leave no room "
                f"for numbers beside the specials {self.specials!r}."
            )

    @property
    def bits(self) -> int:
        """The bits of one number."""
        return self.signed + self.exponent + self.mantissa

    @property
    def largest_code(self) -> int:
        """The code of the largest number; codes of positive numbers have the numbers' order."""
        if self.specials == "ieee":
            return ((2**self.exponent - 1) << self.mantissa) - 1
        return 2 ** (self.exponent + self.mantissa) - 1 - (self.specials == "nan")

    @property
    def nan_code(self) -> int | None:
        """The code of NaN, or None where the format has none."""
        if self.specials == "none":
            return None
        quiet = 2 ** (self.mantissa - 1) if self.specials == "ieee" else 1
        return self.largest_code + (self.specials == "ieee") + quiet

    @property
    def sign_code(self) -> int:
        """The code of the sign's bit, which is 0 in a format without a sign."""
        return 2 ** (self.bits - 1) if self.signed else 0

    @property
    def largest(self) -> float:
        """The largest finite number."""
        return self.value(self.largest_code)

    @property
    def smallest_normal(self) -> float:
        """The smallest number that has all bits of the mantissa."""
        return math.ldexp(1.0, (1 if self.mantissa else 0) - self.bias)

    @property
    def smallest(self) -> float:
        """The smallest number above zero."""
        return math.ldexp(self.smallest_normal, -self.mantissa)

    @property
    def epsilon(self) -> float:
        """The distance from 1 to the next larger number: relative errors are at most half of it."""
        return math.ldexp(1.0, -self.mantissa)

    def fields(self, code: int) -> tuple[int, int, int]:
        """Return sign, exponent and mantissa of a code, each read as a whole number.

        Raises ValueError for a code that has more bits than the format.
        """
        if not 0 <= code < 2**self.bits:
            raise ValueError(f"A code of {self.name} is between 0 and {2**self.bits - 1}: {code}.")
        sign = code >> (self.bits - 1) if self.signed else 0
        return sign, (code >> self.mantissa) % 2**self.exponent, code % 2**self.mantissa

    def value(self, code: int) -> float:
        """Return the number of a code, exactly; ValueError for a code with too many bits."""
        sign, exponent, mantissa = self.fields(code)
        magnitude = code - sign * self.sign_code
        if magnitude > self.largest_code:
            infinite = self.specials == "ieee" and mantissa == 0
            number = math.inf if infinite else math.nan
        elif exponent == 0 and self.mantissa:
            number = math.ldexp(mantissa, 1 - self.bias - self.mantissa)
        else:
            significand = 2**self.mantissa + mantissa
            number = math.ldexp(significand, exponent - self.bias - self.mantissa)
        return -number if sign else number

    def code_of(self, number: float, overflow: str = "saturate") -> int:
        """Return the code of the nearest number, of the even one where two are equally near.

        What rounds to more than `largest`, and infinity itself, becomes `largest` with
        overflow="saturate". With "infinity" it becomes infinity, or NaN in a format without one. A
        format without a sign keeps the magnitude alone. NaN loses its sign, and becomes `largest`
        in a format without NaN.

        Raises ValueError for another `overflow`, and for "infinity" where neither exists.
        """
        self.check_overflow(overflow)
        sign = self.sign_code if math.copysign(1.0, number) < 0 else 0
        if math.isnan(number):
            return self.largest_code if self.nan_code is None else self.nan_code
        limit = self.largest_code + (overflow == "infinity")
        if math.isinf(number):
            return sign | limit
        lowest = math.frexp(self.smallest_normal)[1]
        exponent = max(math.frexp(number)[1], lowest) if number else lowest
        # In units of the last bit the number is a whole one after rounding. Where it has grown to
        # the next power of two, the sum below carries into the exponent.
        units = round(math.ldexp(abs(number), self.mantissa + 1 - exponent))
        if not self.mantissa:
            units = max(units, 1) - 1  # no code is zero
        return sign | min(units + ((exponent - lowest) << self.mantissa), limit)

    def check_overflow(self, overflow: str) -> None:
        """Raise ValueError where this format cannot do what `overflow` asks."""
        if overflow not in ("saturate", "infinity"):
            raise ValueError(f'`overflow` is "saturate" or "infinity", not {overflow!r}.')
        if overflow == "infinity" and self.specials == "none":
            raise ValueError(
                f"{self.name} has neither infinity nor NaN, so what is too large can only become "
                f'{self.largest:g}, its largest number: give overflow="saturate".'
            )


FP32 = NumberFormat("FP32", 8, 23, 127, "ieee")
TF32 = NumberFormat("TF32", 8, 10, 127, "ieee")
BF16 = NumberFormat("BF16", 8, 7, 127, "ieee")
FP16 = NumberFormat("FP16", 5, 10, 15, "ieee")
E5M2 = NumberFormat("E5M2", 5, 2, 15, "ieee")
E4M3 = NumberFormat("E4M3", 4, 3, 7, "nan")
E3M2 = NumberFormat("E3M2", 3, 2, 3, "none")
E2M3 = NumberFormat("E2M3", 2, 3, 1, "none")
E2M1 = NumberFormat("E2M1", 2, 1, 1, "none")
E8M0 = NumberFormat("E8M0", 8, 0, 127, "nan", signed=False)  # a scale, as in MX
