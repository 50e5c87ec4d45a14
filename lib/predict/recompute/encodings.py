"""The bytes of feature maps that are kept encoded between forward and backward (Gist).

    a ReLU before a max pooling layer     its signs, and where in its window each maximum was
    a ReLU before a convolution           its nonzero numbers, in compressed sparse rows
      or a linear layer, pooled or not
    any feature map                       fewer bits for each number; backward alone sees them

A feature map is what a layer hands to the next one. Numbers are float32, as in lib/single/encode,
which keeps what is predicted here.

Source: Jain et al. 2018, "Gist: Efficient Data Encoding for Deep Neural Network Training" (ISCA).
There an index within a window takes 4 bits, here the fewest whole ones: 2 for a window of 2 × 2.
"""

from collections.abc import Sequence
from typing import NamedTuple

from lib.predict.arguments import equal_share, whole

ITEMSIZE = 4  # bytes of a float32
INDEX = 8  # bytes of an index as PyTorch's pooling layers keep it
ROW = 256  # numbers in a sparse row, so that a number's place in it is one byte
POINTER = 4  # bytes of a pointer to the begin of a row
FORMATS = {"fp16": 16, "fp10": 10, "fp8": 8}  # bits of a number


class FeatureMap(NamedTuple):
    """Describes what a network keeps: numbers of a feature map, or indices of maxima.

    `kind` is "relu to pool", "relu to layer", "pool to layer" or "indices"; those of the second and
    third kind have zeros that a ReLU has made, and feed a convolution or a linear layer. `window`
    is the number of elements that an index chooses from.
    """

    block: int
    kind: str
    numel: int
    window: int = 1

    @property
    def plain(self) -> int:
        """Return the bytes that PyTorch keeps."""
        return self.numel * (INDEX if self.kind == "indices" else ITEMSIZE)


def sign_bytes(numel: int) -> int:
    """Return the bytes of one bit for each number."""
    return -(-numel // 8)


def index_bits(window: int) -> int:
    """Return the fewest whole bits of an index within a window of this many elements, at least 1.

    Raises ValueError for more than 8 bits.
    """
    bits = max(1, (whole(window, "window") - 1).bit_length())
    if bits > 8:
        raise ValueError(
            f"A window of {window} elements needs indices of {bits} bits, and at most 8 are "
            "packed. Keep the indices of this pooling layer as they are."
        )
    return bits


def index_bytes(numel: int, window: int) -> int:
    """Return the bytes of packed indices, each within its window."""
    return -(-numel * index_bits(window) // 8)


def reduced_bytes(numel: int, delayed: str | None, itemsize: int = ITEMSIZE) -> int:
    """Return the bytes of numbers in a format of FORMATS; numbers that are no float32 stay.

    Three numbers of 10 bits are four bytes. Where that is not less than before, they stay too.
    Raises ValueError for an unknown format.
    """
    if delayed is not None and delayed not in FORMATS:
        raise ValueError(
            f"No format is called {delayed!r}. Choose {', '.join(FORMATS)}, or None for numbers "
            "that stay as they are."
        )
    if delayed is None or itemsize != ITEMSIZE:
        return numel * itemsize
    packed = 4 * -(-numel // 3) if delayed == "fp10" else numel * FORMATS[delayed] // 8
    return min(packed, numel * itemsize)


def sparse_bytes(
    numel: int, nonzeros: int, delayed: str | None = None, itemsize: int = ITEMSIZE
) -> int:
    """Return the bytes of compressed sparse rows: values, a byte each for places, and pointers.

    The values are in the format `delayed` where one is given.
    """
    pointers = POINTER * (-(-numel // ROW) + 1)
    return reduced_bytes(nonzeros, delayed, itemsize) + nonzeros + pointers


def is_sparse(
    numel: int, nonzeros: int, delayed: str | None = None, itemsize: int = ITEMSIZE
) -> bool:
    """Return whether sparse rows are smaller than all numbers, both in the format `delayed`."""
    dense = reduced_bytes(numel, delayed, itemsize)
    return sparse_bytes(numel, nonzeros, delayed, itemsize) < dense


def vgg(
    batch: int, groups: Sequence[Sequence[int]] = ((8, 8), (16, 16)), hidden: Sequence[int] = (32,),
    size: int = 16,
) -> list[FeatureMap]:  # fmt: skip
    """Return what a VGG (lib/single/convnet.py) keeps for backward besides weights and images."""
    kept, block = [], 0
    for channels in groups:
        for m, width in enumerate(channels, 1):
            kind = "relu to pool" if m == len(channels) else "relu to layer"
            kept.append(FeatureMap(block + 1, kind, batch * width * size * size))
            block += 2
        size = equal_share(size, 2, "An image has {} rows", "{} halves")
        numel = batch * channels[-1] * size * size
        kept += [
            FeatureMap(block, "indices", numel, 4),
            FeatureMap(block, "pool to layer", numel),
        ]
        block += 1
    block += 1  # flattens
    for width in hidden:
        kept.append(FeatureMap(block + 1, "relu to layer", batch * width))
        block += 2
    return kept


def encoded(
    one: FeatureMap, nonzeros: int | None = None, *, binarise: bool = True, sparse: bool = True,
    delayed: str | None = None,
) -> int:  # fmt: skip
    """Return the bytes of a feature map with these encodings, as gist(model, ...) keeps it.

    `nonzeros` are needed where it is sparse: the shape does not say them.
    """
    if one.kind == "indices":
        return index_bytes(one.numel, one.window) if binarise else one.plain
    if one.kind == "relu to pool" and binarise:
        return sign_bytes(one.numel)
    if one.kind.endswith("to layer") and sparse:
        if nonzeros is None:
            raise ValueError(
                "The bytes of sparse rows depend on how many numbers are not zero. Give nonzeros."
            )
        if is_sparse(one.numel, nonzeros, delayed):
            return sparse_bytes(one.numel, nonzeros, delayed)
    return reduced_bytes(one.numel, delayed)


def encoded_bytes(maps: Sequence[FeatureMap], nonzeros: Sequence[int] = (), **encodings) -> int:
    """Return the bytes of all feature maps; `nonzeros` are those of the ones that feed a layer."""
    counts = iter(nonzeros)
    return sum(
        encoded(one, next(counts, None) if one.kind.endswith("to layer") else None, **encodings)
        for one in maps
    )
