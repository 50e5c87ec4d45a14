"""Signs, sparse rows and places in windows come back, in the bytes that are predicted."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import max_pool2d

from lib.predict.recompute.encodings import (
    index_bytes,
    reduced_bytes,
    sign_bytes,
    sparse_bytes,
)
from lib.single.encode.lossless import check_window, nonzero, signs, sparse_rows, windows
from tests.every import every

SIZES = [1, 7, 8, 9, 255, 256, 257, 512, 1000]


def same_bits(a, b):
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


def held(parts):
    return sum(part.untyped_storage().nbytes() for part in parts)


def some_zeros(numel, share=0.5):
    noise = torch.Generator().manual_seed(numel)
    x = torch.randn(numel, generator=noise)
    return torch.where(torch.rand(numel, generator=noise) < share, 0.0, x)


@pytest.mark.parametrize("numel", SIZES)
def test_signs(numel):
    x = some_zeros(numel).relu()
    parts, decode = signs(x)
    assert torch.equal(decode(*parts), (x > 0).float())
    assert held(parts) == sign_bytes(numel) == math.ceil(numel / 8)


def test_signs_of_numbers_that_are_special():
    """As in the backward of a ReLU, -0.0 is not above 0, and NaN passes gradients on."""
    x = torch.tensor([0.0, -0.0, math.nan, math.inf, 1e-45])
    parts, decode = signs(x)
    assert decode(*parts).tolist() == [0, 0, 1, 1, 1]


@pytest.mark.parametrize("numel", SIZES)
@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 1.0])
def test_sparse_rows(numel, share):
    x = some_zeros(numel, share)
    parts, decode = sparse_rows(x)
    assert same_bits(decode(*parts), x)
    nonzeros = int(x.count_nonzero())
    assert held(parts) == min(4 * numel, sparse_bytes(numel, nonzeros))
    if share == 1 and numel > 3:
        assert held(parts) == 4 * (math.ceil(numel / 256) + 1) < x.nbytes
    if share == 0:
        assert parts[0] is x  # sparse rows would be larger


@pytest.mark.parametrize("name", ["fp16", "fp10", "fp8"])
@pytest.mark.parametrize("share", [0.3, 0.7, 0.95])
def test_sparse_rows_of_fewer_bits(name, share):
    x = some_zeros(1000, share)
    parts, decode = sparse_rows(x, name)
    least = min(reduced_bytes(1000, name), sparse_bytes(1000, int(x.count_nonzero()), name))
    assert held(parts) == least
    found = decode(*parts)
    assert found[x == 0].count_nonzero() == 0 and not torch.equal(found, x)
    assert every(((found - x).abs() <= 2**-4 * x.abs() + 2**-10).tolist())


def test_by_hand():
    x = torch.zeros(600)
    x[[3, 255, 256, 599]] = torch.tensor([1.0, 2.0, 3.0, 4.0])
    (values, places, pointers), _ = sparse_rows(x)
    assert values.tolist() == [1, 2, 3, 4] and places.tolist() == [3, 255, 0, 599 - 512]
    assert pointers.tolist() == [0, 2, 3, 4]
    assert (values.dtype, places.dtype, pointers.dtype) == (
        torch.float32, torch.uint8, torch.int32,
    )  # fmt: skip


def test_a_zero_is_a_number_without_bits():
    """-0.0 and NaN come back; what compares with 0 would lose the sign of -0.0."""
    x = torch.zeros(500)
    x[:3] = torch.tensor([-0.0, math.nan, math.inf])
    parts, decode = sparse_rows(x)
    assert same_bits(decode(*parts), x) and held(parts) < x.nbytes
    assert nonzero(x).tolist() == [0, 1, 2] != x.nonzero().flatten().tolist()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_numbers(dtype):
    x = some_zeros(700, 0.8).to(dtype)
    parts, decode = sparse_rows(x, "fp8")
    assert decode(*parts).dtype == dtype and torch.equal(decode(*parts), x)
    assert held(parts) == sparse_bytes(700, int(x.count_nonzero()), None, x.itemsize) < x.nbytes


POOLS = {
    "2 × 2": (nn.MaxPool2d(2), (2, 3, 8, 6)),
    "3 × 3, overlapping": (nn.MaxPool2d(3, 2), (2, 3, 9, 7)),
    "padded": (nn.MaxPool2d(3, 2, padding=1), (1, 3, 8, 5)),
    "dilated": (nn.MaxPool2d((2, 3), (1, 2), padding=(1, 0), dilation=(3, 2)), (1, 2, 9, 11)),
    "rounded up": (nn.MaxPool2d(2, ceil_mode=True), (1, 2, 5, 7)),
    "4 × 4": (nn.MaxPool2d((4, 4)), (1, 1, 16, 16)),
    "no batch": (nn.MaxPool2d(2), (3, 6, 6)),
    "one pixel": (nn.MaxPool2d(1, 2), (1, 2, 4, 4)),
}


@pytest.mark.parametrize(("pool", "shape"), POOLS.values(), ids=POOLS)
@pytest.mark.parametrize("ties", [False, True])
def test_places_in_windows(pool, shape, ties):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    x = torch.zeros(shape) if ties else x
    _, indices = max_pool2d(
        x, pool.kernel_size, pool.stride, pool.padding, pool.dilation, pool.ceil_mode, True
    )
    parts, decode = windows(pool, x.shape, indices)
    assert torch.equal(decode(*parts), indices)
    kernel = pool.kernel_size
    window = kernel * kernel if isinstance(kernel, int) else math.prod(kernel)
    assert held(parts) == index_bytes(indices.numel(), window) < indices.nbytes


def test_places_of_another_image_are_wrong():
    """A bite: the width of the image matters."""
    x = torch.randn(1, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    _, indices = max_pool2d(x, 2, return_indices=True)
    parts, decode = windows(nn.MaxPool2d(2), torch.Size((1, 1, 8, 7)), indices)
    assert not torch.equal(decode(*parts), indices)


def test_a_window_too_large_is_refused():
    check_window(nn.MaxPool2d(16))
    with pytest.raises(ValueError, match="A window of 272 elements needs indices of 9 bits"):
        check_window(nn.MaxPool2d((16, 17)))
