"""The convolutional network: shapes, the same numbers from a seed, slices."""

import pytest
import torch

from lib.single.convnet import ConvNet
from tests.every import every


def test_shapes_of_every_block():
    model, x = ConvNet((3, 8, 16), size=8, classes=10), torch.randn(2, 3, 8, 8)
    shapes = []
    for number in range(len(model)):
        x = model[number : number + 1](x)
        shapes.append(tuple(x.shape))
    assert shapes == [(2, 8, 4, 4), (2, 16, 2, 2), (2, 10)]


def test_weights_depend_on_the_seed_alone():
    first, again, other = (dict(ConvNet(seed=s).named_parameters()) for s in (1, 1, 2))
    assert every(torch.equal(first[name], again[name]) for name in first)
    assert every(not torch.equal(first[n], other[n]) for n in first if n.endswith("weight"))


def test_slices_are_the_model():
    model, x = ConvNet(), torch.randn(2, 3, 8, 8)
    assert torch.equal(model[1:](model[:1](x)), model(x))


def test_an_image_that_cannot_be_halved_is_refused():
    with pytest.raises(ValueError, match="An image has 3 rows; 2 halves cannot share them"):
        ConvNet((3, 8, 16), size=6)
