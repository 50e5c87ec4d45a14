"""Matrices in 8 bits a number, with one scale for each tile, and their products.

    x [M, K]  ≈  codes [M, K] of 8 bits · scales [M/r, K/c], each for a tile of r · c entries

[Note: scales]
Eight bits hold few powers of two, so each tile is divided by its scale first: the largest entry of
the tile then meets the largest number of the format. A scale here multiplies codes, as in
`torch._scaled_mm`; Transformer Engine calls that one `scale_inv`, and its inverse `scale`.

[Note: sums]
The product of two numbers of 8 bits is exact in float32, and sums are float32. Scales that are the
same for the whole inner dim are multiplied after the sum. Where they change along it, each run of
the inner dim has its own sum, which is scaled and added in float32: DeepSeek-V3's promotion, every
128 products. This is what the tensor cores are asked for, except that those of the H800 sum with
about 14 bits (DeepSeek-AI 2024, DeepSeek-V3, section 3.3.2).
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

FORMATS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
SMALLEST_SCALE = torch.finfo(torch.float32).tiny  # below it, float32 itself loses bits


class Scaled(NamedTuple):
    """Holds a matrix as codes of 8 bits, [M, K], and a float32 scale for each tile.

    `tile` is (rows, columns); a 0 stands for the whole dim. The last tiles may be smaller.
    """

    codes: Tensor
    scales: Tensor
    tile: tuple[int, int]

    def decode(self) -> Tensor:
        """Return the float32 numbers that the codes and their scales stand for, [M, K]."""
        return self.codes.float() * _each_entry(self.scales, self.tile, self.codes.shape)

    @property
    def T(self) -> "Scaled":
        """The same numbers as a matrix [K, M]; nothing is copied."""
        return Scaled(self.codes.T, self.scales.T, self.tile[::-1])

    @property
    def nbytes(self) -> int:
        """The bytes of all codes and scales."""
        return self.codes.nbytes + self.scales.nbytes


def scaled(
    x: Tensor,
    format: str,
    tile: tuple[int, int] = (0, 0),
    power_of_two: bool = False,
    scale: Tensor | None = None,
) -> Scaled:
    """Round a matrix [M, K] to 8 bits, each tile divided by its scale, to nearest even.

    `format` is "e4m3" or "e5m2". With `power_of_two` scales are rounded up to powers of two, which
    change no bit of a number but its exponent. With `scale`, a tensor of one number, nothing is
    measured, and finite numbers that are too large become the largest. A tile with an infinity or a
    NaN becomes NaN (with `scale`: that entry alone), so that a loss scaler finds it.
    """
    dtype = FORMATS[format]
    x = x.detach().float()
    scales = scales_of(x, format, tile, power_of_two) if scale is None else scale.reshape(1, 1)
    largest = torch.finfo(dtype).max
    quotient = x / _each_entry(scales, tile, x.shape)
    # PyTorch's cast turns an infinity into 448 or into NaN, by device: here it is NaN everywhere.
    quotient.masked_fill_(x.isinf(), torch.nan).clamp_(-largest, largest)
    return Scaled(quotient.to(dtype), scales, tile)


def scales_of(
    x: Tensor, format: str, tile: tuple[int, int] = (0, 0), power_of_two: bool = False
) -> Tensor:
    """Return max |x| / largest number of the format, for each tile of [M, K]: [M/r, K/c].

    A tile of zeros gets the scale 1.
    """
    maxima = _maxima(x.detach().float().abs(), tile)
    scales = (maxima / torch.finfo(FORMATS[format]).max).clamp(min=SMALLEST_SCALE)
    if power_of_two:
        # Read as a whole number, a float32 is a power of two where its 23 bits of mantissa are 0.
        bits = scales.view(torch.int32) + (2**23 - 1)
        scales = torch.where(scales.isfinite(), (bits & -(2**23)).view(torch.float32), scales)
    return torch.where(maxima == 0, 1.0, scales)


def product(a: Scaled, b: Scaled) -> Tensor:
    """Multiply a [M, K] by the transpose of b [N, K], summing in float32: [M, N].

    Both have tiles of the same width along K, or one of them a single tile.
    """
    runs = max(a.scales.shape[1], b.scales.shape[1])
    width = (a.tile[1] if a.scales.shape[1] == runs else b.tile[1]) or a.codes.shape[1]
    left, right = _each_row(a), _each_row(b)  # [M or 1, runs or 1] and [N or 1, runs or 1]
    total = None
    with torch.autocast(a.codes.device.type, enabled=False):
        parts = zip(a.codes.split(width, 1), b.codes.split(width, 1))
        for run, (rows, columns) in enumerate(parts):
            part = rows.float() @ columns.float().T
            part *= left[:, run % left.shape[1], None]
            part *= right[:, run % right.shape[1]]
            total = part if total is None else total.add_(part)
    return total


def _maxima(x: Tensor, tile: tuple[int, int]) -> Tensor:
    """Return the largest entry of each tile, [M, K] -> [M/r, K/c]; a NaN is the largest."""
    rows, columns = (own or size for own, size in zip(tile, x.shape))
    missing = -x.shape[0] % rows, -x.shape[1] % columns
    if any(missing):
        x = pad(x, (0, missing[1], 0, missing[0]))
    return x.unflatten(1, (-1, columns)).unflatten(0, (-1, rows)).amax((1, 3))


def _each_row(matrix: Scaled) -> Tensor:
    """Return the scales of each row, [M, runs], or [1, runs] where all rows share them."""
    return _repeated(matrix.scales, 0, matrix.tile[0], matrix.codes.shape[0])


def _each_entry(scales: Tensor, tile: tuple[int, int], shape: torch.Size) -> Tensor:
    """Return scales that broadcast to the entries of a matrix: [M or 1, K or 1]."""
    for dim in (0, 1):
        scales = _repeated(scales, dim, tile[dim], shape[dim])
    return scales


def _repeated(scales: Tensor, dim: int, times: int, size: int) -> Tensor:
    if scales.shape[dim] == 1 or times == 1:
        return scales
    return scales.repeat_interleave(times, dim).narrow(dim, 0, size)
