"""Numbers as codes of 8 bits: 256 values in [-1, 1], times one maximum for each block of numbers.

    x [N] -> codes [N] of one byte, maxima [N/block] in fp32        x ≈ values[code] · maximum

[Note: the dynamic map]
After the sign bit, k zero bits say that a number is of the order 10^-k, a one ends them, and the
bits that are left count equal steps from 0.1 to 1:

    s 0..0 1 f..f        ± 10^-k · (0.1 + 0.9 · (f + 1/2) / 2^(6 - k)),    k = 0, 1, .. 6

So numbers near 1 have 6 bits of fraction, and the smallest, 0.55 · 10^-6, has none. The two codes
without a one are 0 and 1, so that the largest number of a block is kept exactly. A number that is
never negative needs no sign: its bit becomes one more bit of fraction for each k.

Here codes count the values in rising order, so they are not the bits above; the values are the
same. Source: Dettmers et al. 2021, "8-bit Optimizers via Block-wise Quantization" (arXiv
2110.02861), sections 1.2 and 2.2.
"""

import functools

import torch
from torch import Tensor

DECADES = 7  # 10^0 to 10^-6
TINY = torch.finfo(torch.float32).tiny


def dynamic_values(signed: bool) -> Tensor:
    """Return the 256 values of the dynamic map in rising order, in float64; see the note above."""
    magnitudes = []
    for k in range(DECADES):
        steps = 2 ** (DECADES - 1 - k + (not signed))
        middles = (torch.arange(steps, dtype=torch.float64, device="cpu") + 0.5) / steps
        magnitudes.append(10.0**-k * (0.1 + 0.9 * middles))
    positive = torch.cat(magnitudes)
    ends = positive.new_tensor([0.0, 1.0])
    return torch.cat([positive, ends, *([-positive] if signed else [])]).sort().values


def linear_values(signed: bool) -> Tensor:
    """Return 256 values in equal steps, in float64: k/127 from -128 on, or k/255 from 0 on."""
    codes = torch.arange(256, dtype=torch.float64, device="cpu")
    return (codes - 128) / 127 if signed else codes / 255


VALUES = {"dynamic": dynamic_values, "linear": linear_values}


class CodeMap:
    """Maps numbers in [-1, 1] to the codes of the nearest of 256 values, and back.

    `values` are in rising order; code c stands for values[c]. Exactly between two values, the lower
    one is taken. Raises ValueError where two values are so close that `nearest` could not tell.

    [Note: nearest by a table]
    A search in 255 borders takes eight comparisons a number. But the bits of an fp32 number are an
    integer that rises with it, and among numbers that agree in their upper 16 bits lies at most one
    border. So a table of 65,536 words suffices: word h holds the code at the lower end of h,
    and how many of the lower bits must be added to reach the border, such that a plain sum carries
    into the code when the number lies beyond it.

    The bits of a negative number, as an integer, are -2^31 and those of its size: they fall where
    the number rises. Their absolute value rises with the number, and for numbers above -2 it is
    larger than the bits of any number below 2. So no word has to serve numbers of both signs.
    """

    def __init__(self, values: Tensor):
        if values.shape != (256,) or not bool((values[1:] > values[:-1]).all()):
            raise ValueError("A code of 8 bits needs 256 values in rising order.")
        self.values = values.to(torch.float32)
        self.negative = bool(values[0] < 0)
        self.words = _words(self.values)

    def to(self, device: torch.device) -> "CodeMap":
        """Return the map with its tables on a device."""
        if device == self.values.device:
            return self
        moved = object.__new__(CodeMap)
        for name in ("values", "words"):
            setattr(moved, name, getattr(self, name).to(device))
        moved.negative = self.negative
        return moved

    def nearest(self, x: Tensor) -> Tensor:
        """Return the codes of the values that are nearest to fp32 numbers in [-1, 1], as uint8.

        A map without negative values takes numbers in [0, 1].
        """
        codes = torch.empty(x.shape, dtype=torch.uint8, device=x.device)
        self._write_nearest(x.clone(memory_format=torch.contiguous_format), codes)
        return codes

    def _write_nearest(self, x: Tensor, codes: Tensor, room: Tensor | None = None) -> None:
        """Write the codes of numbers that are then no longer needed; `room` is [2, N] of int32."""
        key = x.view(torch.int32).view(-1)
        half, words = key.new_empty(2, len(key)) if room is None else room
        if self.negative:
            key.abs_()
        torch.bitwise_right_shift(key, 16, out=half).bitwise_and_(0xFFFF)
        torch.index_select(self.words, 0, half, out=words)
        codes.view(-1).copy_(words.add_(key).bitwise_right_shift_(16))

    def encode(self, x: Tensor, block: int) -> tuple[Tensor, Tensor]:
        """Encode fp32 numbers: [N] -> codes [N] uint8, and the maximum of each block, [N/block].

        The last block may be shorter. A block of zeros has the maximum 0; one with a NaN or an
        infinity is decoded as NaN.
        """
        codes = torch.empty(x.shape, dtype=torch.uint8, device=x.device)
        out = codes, x.new_empty(-(-x.numel() // block))
        self.encode_in_place(x.clone(), block, out)
        return out

    def encode_in_place(
        self, x: Tensor, block: int, out: tuple[Tensor, Tensor], room: Tensor | None = None
    ) -> None:
        """Encode numbers, [N], into `out` as `encode` does; x then holds nothing of use.

        `room` [2, N] of int32 is memory to work in, which is allocated where it is not given.
        """
        codes, maxima = out
        for rows, top in _blocks(block, x, maxima):
            torch.amax(rows, 1, out=top)
            if self.negative:
                torch.maximum(top, rows.amin(1).neg_(), out=top)
            rows.div_(_divisors(top))
        self._write_nearest(x, codes, room)

    def encode_rows(self, rows: Tensor, maxima: Tensor, codes: Tensor) -> None:
        """Write the codes of blocks [R, block] whose maxima [R] are known."""
        self._write_nearest(rows / _divisors(maxima), codes)

    def decode(
        self, codes: Tensor, maxima: Tensor, block: int, out: Tensor | None = None,
        room: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Decode: codes [N] and maxima [N/block] -> fp32 numbers [N].

        They are written into `out`, if given; `room` [N] of int32 is memory to work in.
        """
        index = codes.int() if room is None else room.copy_(codes)
        x = self.values.new_empty(codes.shape) if out is None else out
        # As integers: a CPU looks up the same four bytes faster than as fp32 numbers.
        torch.index_select(self.values.view(torch.int32), 0, index, out=x.view(torch.int32))
        for rows, top in _blocks(block, x, maxima):
            rows.mul_(top.unsqueeze(1))
        return x


@functools.cache
def code_map(kind: str, signed: bool) -> CodeMap:
    """Return the "dynamic" or the "linear" map. Raises ValueError for another name."""
    if kind not in VALUES:
        raise ValueError(f"No map of 8 bits is called {kind!r}. Choose dynamic or linear.")
    return CodeMap(VALUES[kind](signed))


def _blocks(block: int, x: Tensor, maxima: Tensor):
    """Give views of the whole blocks, [R, block], and of the shorter last one, each as a matrix."""
    whole = x.numel() // block
    if whole * block == x.numel():
        yield x.view(whole, block), maxima
        return
    if whole:
        yield x[: whole * block].view(whole, block), maxima[:whole]
    yield x[whole * block :].view(1, -1), maxima[whole:]


def _divisors(maxima: Tensor) -> Tensor:
    """Return what the rows of blocks are divided by, [R, 1]; zeros must not become NaN."""
    return maxima.clamp(min=TINY).unsqueeze(1)


def _words(values: Tensor) -> Tensor:
    """Make the table of `nearest` for fp32 values in rising order: one word for each upper half.

    A word plus the whole integer of a number is its code, times 2^16, and some lower bits.
    """
    exact = values.double()
    middle = (exact[1:] + exact[:-1]) / 2  # of two fp32 numbers, so exact in float64
    below = middle.float()
    down = torch.nextafter(below, torch.full_like(below, -torch.inf))
    below = torch.where(below.double() > middle, down, below)  # the last that is not beyond
    size = below.abs().view(torch.int32).long()
    border = torch.where(below < 0, -size, size) + 1
    key = 65536 * torch.arange(65536, device=values.device)
    start = torch.where(key < 2**30, key, key - 2**31)  # the numbers' lower ends, rising with them
    first = torch.searchsorted(border, start, right=True)  # their codes
    last = torch.searchsorted(border, start + 65535, right=True)
    if int((last - first).max()) > 1:
        raise ValueError(
            "Three values of the map lie so close together that a step of 2^-7 crosses two borders."
        )
    carry = torch.where(last > first, 65536 - (border[first.clamp(max=254)] - start), 0)
    return (first * 65536 + carry - key).to(torch.int32)
