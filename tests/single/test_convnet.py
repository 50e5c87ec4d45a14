"""The convolutional network: shapes, the same numbers from a seed, slices."""

import pytest
import torch

from lib.single.convnet import VGG, ConvNet
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


def test_a_vgg_is_a_chain_of_single_layers():
    model, x = VGG(((4, 6), (8,)), hidden=(20, 12), size=8, classes=5), torch.randn(2, 3, 8, 8)
    shapes = []
    for number in range(len(model)):
        x = model[number : number + 1](x)
        shapes.append(tuple(x.shape)[1:])
    images = [(4, 8, 8)] * 2 + [(6, 8, 8)] * 2 + [(6, 4, 4)] + [(8, 4, 4)] * 2 + [(8, 2, 2)]
    assert shapes == [*images, (32,), (20,), (20,), (12,), (12,), (5,)]
    kinds = [type(block).__name__ for block in model.blocks.values()]
    assert kinds[:5] == ["Conv2d", "ReLU", "Conv2d", "ReLU", "MaxPool2d"]
    assert kinds[8:] == ["Flatten", *["Linear", "ReLU"] * 2, "Linear"]


def test_weights_of_a_vgg_depend_on_the_seed_alone():
    first, again, other = (dict(VGG(seed=s).named_parameters()) for s in (1, 1, 2))
    assert every(torch.equal(first[name], again[name]) for name in first)
    assert every(not torch.equal(first[n], other[n]) for n in first if n.endswith("weight"))
    with pytest.raises(ValueError, match="An image has 9 rows; 2 halves cannot share them"):
        VGG(size=18)
