"""The bytes of encoded feature maps, by hand and as they are really kept."""

import pytest
import torch

from lib.predict.recompute.encodings import (
    FORMATS,
    FeatureMap,
    encoded,
    encoded_bytes,
    index_bits,
    index_bytes,
    is_sparse,
    reduced_bytes,
    sign_bytes,
    sparse_bytes,
    vgg,
)
from lib.single.convnet import VGG
from lib.single.encode import gist, lossless, nonzeros
from lib.single.recompute import kept_bytes
from tests.every import every


def test_bytes_by_hand():
    assert [sign_bytes(n) for n in (0, 1, 8, 9)] == [0, 1, 1, 2]
    assert [index_bits(n) for n in (1, 2, 4, 5, 9, 16, 256)] == [1, 1, 2, 3, 4, 4, 8]
    assert [index_bytes(n, 4) for n in (1, 4, 5)] == [1, 1, 2] and index_bytes(5, 9) == 3
    assert [reduced_bytes(7, name) for name in (None, *FORMATS)] == [28, 14, 12, 7]
    assert reduced_bytes(1, "fp10") == 4 and reduced_bytes(7, "fp8", itemsize=8) == 56
    # 1000 numbers are 4 rows: 5 pointers
    assert sparse_bytes(1000, 100) == 400 + 100 + 20
    assert sparse_bytes(1000, 100, "fp10") == 4 * 34 + 100 + 20


@pytest.mark.parametrize(
    ("delayed", "share"), [(None, 4 / 5), ("fp16", 2 / 3), ("fp10", 4 / 7), ("fp8", 1 / 2)]
)
def test_sparse_rows_pay_below_a_share_of_nonzero_numbers(delayed, share):
    """A number costs b bytes, and in a sparse row b + 1: below b / (b + 1) rows are smaller."""
    numel = 256_000
    assert is_sparse(numel, int((share - 0.02) * numel), delayed)
    assert not is_sparse(numel, int(share * numel), delayed)


def test_what_a_map_keeps():
    pooled, indices = FeatureMap(1, "relu to pool", 4000), FeatureMap(2, "indices", 1000, 4)
    fed = FeatureMap(2, "pool to layer", 1000)
    lossy = {"binarise": False, "sparse": False, "delayed": "fp8"}
    assert [one.plain for one in (pooled, indices, fed)] == [16000, 8000, 4000]
    assert encoded(pooled) == 500 and encoded(pooled, **lossy) == 4000
    assert encoded(indices) == 250 and encoded(indices, **lossy) == 8000
    assert encoded(fed, 400) == 2020 and encoded(fed, 1000) == 4000
    assert encoded(fed, 400, delayed="fp8") == 820 and encoded(fed, 490, delayed="fp8") == 1000
    with pytest.raises(ValueError, match="sparse rows depend on how many numbers are not zero"):
        encoded(fed)


NETWORKS = {
    "small": ({}, 5),
    "one image": ({"groups": ((3,), (5, 7, 9)), "size": 12, "hidden": (13, 11)}, 1),
    "no hidden layer": ({"groups": ((5,),), "size": 6, "hidden": ()}, 3),
}
ENCODINGS = [
    {"binarise": binarise, "sparse": sparse, "delayed": delayed}
    for binarise in (True, False)
    for sparse in (True, False)
    for delayed in (None, *FORMATS)
    if binarise or sparse or delayed
]


def of(sizes, batch, images):
    """A network, samples of a kind, and the maps that it keeps."""
    model = VGG(**sizes, seed=1)
    size = sizes.get("size", 16)
    noise = torch.Generator().manual_seed(2)
    x = {
        "random": torch.randn(batch, 3, size, size, generator=noise),
        "zero": torch.zeros(batch, 3, size, size),
    }
    if images == "all positive":
        for name, parameter in model.named_parameters():
            if name.endswith("weight"):
                parameter.data.abs_()
        x[images] = torch.ones(batch, 3, size, size)
    return model, x[images], vgg(batch, **sizes)


@pytest.mark.parametrize(("sizes", "batch"), NETWORKS.values(), ids=NETWORKS)
@pytest.mark.parametrize("images", ["random", "zero", "all positive"])
def test_bytes_are_those_that_autograd_holds(sizes, batch, images):
    model, x, maps = of(sizes, batch, images)
    assert kept_bytes(model, x) == sum(one.plain for one in maps)
    counts = nonzeros(model, x)
    assert len(counts) == sum(one.kind.endswith("to layer") for one in maps)
    for encodings in ENCODINGS:
        found = kept_bytes(gist(model, **encodings), x)
        assert found == encoded_bytes(maps, counts, **encodings), encodings
    if images == "zero":
        assert every(count == 0 for count in counts)


def test_a_byte_for_each_sign_is_not_what_is_predicted(monkeypatch):
    """A bite: the same gradients with signs that are not packed."""

    def whole_bytes(codes, bits):
        return codes.to(torch.uint8)

    model, x, maps = of({}, 5, "random")
    expected = encoded_bytes(maps, sparse=False)
    assert kept_bytes(gist(model, sparse=False), x) == expected
    monkeypatch.setattr(lossless, "pack", whole_bytes)
    assert kept_bytes(model, x) > expected


def test_what_is_refused():
    with pytest.raises(ValueError, match="No format is called 'fp12'. Choose fp16, fp10, fp8, or"):
        reduced_bytes(3, "fp12")
    with pytest.raises(ValueError, match="An image has 7 rows; 2 halves cannot share them"):
        vgg(2, size=14)
    with pytest.raises(ValueError, match="needs indices of 9 bits"):
        index_bytes(3, 257)
