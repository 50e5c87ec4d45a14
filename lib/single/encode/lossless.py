"""Encodings of what a ReLU gives that lose nothing that backward needs.

[Note: signs and windows]
The backward of a ReLU asks only which numbers were above 0, and that of a max pooling layer only
where the maximum of each window was. So a ReLU whose result goes into a max pooling layer keeps one
bit for each number, and the pooling layer the place inside the window instead of 8 bytes.

[Note: sparse rows]
A convolution needs its whole input in backward, but after a ReLU much of it is zero. The numbers
are taken as rows of 256, whatever the shape of the tensor: the values that are not zero in their
order, the place in the row of each (1 byte), and for each row how many come before it (4 bytes).
Forward and backward compute with the dense tensor; only what lies between is sparse. What counts as
zero is a number all of whose bits are 0, so that -0.0 comes back as well.

Source: Jain et al. 2018, Gist: "binarize", and "sparse storage and dense compute".
"""

from functools import partial

import torch
from torch import Tensor, nn

from lib.predict.recompute.encodings import ROW, index_bits, is_sparse
from lib.single.bits import pack, unpack
from lib.single.encode.reduced import reduced

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def signs(flat: Tensor):
    """Encode what a ReLU gave, [N], as one bit each: (parts, what decodes them to 0 and 1).

    For a ReLU's backward 1 is as good as any number above 0. NaN counts as above 0, as it does
    there.
    """
    decode = partial(_from_signs, numel=flat.numel(), dtype=flat.dtype)
    return (_alone(pack(~(flat <= 0), 1)),), decode


def _from_signs(packed: Tensor, numel: int, dtype: torch.dtype) -> Tensor:
    return unpack(packed, 1, numel).to(dtype)


def sparse_rows(flat: Tensor, delayed: str | None = None):
    """Encode numbers [N] as compressed sparse rows: (parts, what decodes them).

    The values are in the format `delayed` where one is given. Where the rows would not be smaller
    than all numbers in that format, they are kept dense.
    """
    positions = nonzero(flat)
    if not is_sparse(flat.numel(), positions.numel(), delayed, flat.itemsize):
        return reduced(flat, delayed)
    begins = torch.arange(-(-flat.numel() // ROW) + 1, device=flat.device) * ROW
    pointers = torch.searchsorted(positions, begins, out_int32=True)
    values, decode = reduced(flat[positions], delayed)
    places = (positions % ROW).to(torch.uint8)
    return (*values, places, pointers), partial(_from_rows, decode, flat.numel())


def _from_rows(decode, numel: int, values: Tensor, places: Tensor, pointers: Tensor) -> Tensor:
    values, counts = decode(values), pointers.diff()
    begins = torch.arange(counts.numel(), device=places.device) * ROW
    flat = values.new_zeros(numel)
    flat[begins.repeat_interleave(counts) + places] = values
    return flat


def nonzero(flat: Tensor) -> Tensor:
    """Return the positions of the numbers [N] of which not all bits are 0, in ascending order."""
    return flat.view(INTEGERS[flat.itemsize]).nonzero().flatten()


def windows(pool: nn.MaxPool2d, image: torch.Size, indices: Tensor):
    """Encode the indices of maxima, [..., H, W], as places in their windows: (parts, decoder).

    `image` is the shape of what was pooled, [..., H, W]; PyTorch's indices count its pixels.
    """
    bits = index_bits(_window(pool)[0] * _window(pool)[1])
    rows, columns = _begins(pool, indices)
    dilation, width = _pair(pool.dilation), _window(pool)[1]
    row = (indices // image[-1] - rows) // dilation[0]
    column = (indices % image[-1] - columns) // dilation[1]
    packed = _alone(pack((row * width + column).flatten(), bits))
    return (packed,), partial(_from_windows, pool, image[-1], indices.shape, bits)


def _from_windows(pool, image_width: int, shape: torch.Size, bits: int, packed: Tensor) -> Tensor:
    places = unpack(packed, bits, shape.numel()).long().view(shape)
    rows, columns = _begins(pool, places)
    dilation, width = _pair(pool.dilation), _window(pool)[1]
    row = rows + places // width * dilation[0]
    column = columns + places % width * dilation[1]
    return row * image_width + column


def check_window(pool: nn.MaxPool2d) -> None:
    """Raise ValueError where an index within the window of a pooling layer needs over 8 bits."""
    index_bits(_window(pool)[0] * _window(pool)[1])


def _begins(pool: nn.MaxPool2d, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first row [H, 1] and the first column [W] of each window in its image."""
    (down, right), padding = _pair(pool.stride), _pair(pool.padding)
    rows = torch.arange(indices.shape[-2], device=indices.device) * down - padding[0]
    columns = torch.arange(indices.shape[-1], device=indices.device) * right - padding[1]
    return rows[:, None], columns


def _window(pool: nn.MaxPool2d) -> tuple[int, int]:
    return _pair(pool.kernel_size)


def _pair(size) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else tuple(size)


def _alone(packed: Tensor) -> Tensor:
    """Return packed numbers in a storage of their own: they may be a view of eight bytes each."""
    return packed.clone()
