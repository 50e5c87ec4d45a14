"""Small convolutional networks as chains of blocks: images [B, C, H, H] -> classes [B, O].

Each block maps one tensor to one tensor, as in models.py. A block of a ConvNet is a convolution
with a ReLU and a pooling layer that halves the image; a block of a VGG is a single layer.
"""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.functional import max_pool2d, relu

from lib.predict.arguments import equal_share
from lib.single.models import Chain


class ConvNet(Chain):
    """Convolutions 3 × 3 of `channels[0]` -> `channels[1]` -> ..., then a linear layer.

    Images are `size` × `size`, and each convolution halves them; raises ValueError where that is
    not possible. The initial weights depend on `seed` alone.
    """

    def __init__(self, channels=(3, 8, 16), size: int = 8, classes: int = 10, seed: int = 0):
        blocks = [Convolution(*pair) for pair in zip(channels, channels[1:])]
        for _ in blocks:
            size = equal_share(size, 2, "An image has {} rows", "{} halves")
        blocks.append(Classes(channels[-1] * size * size, classes))
        super().__init__({str(number): block for number, block in enumerate(blocks)})
        _draw(self, seed)


class VGG(Chain):
    """Groups of convolutions 3 × 3 and of ReLUs, then linear layers with a ReLU between each two.

    A group such as (8, 8) has two convolutions of 8 channels, each with a ReLU, and a pooling layer
    that halves the image. `hidden` are the widths of the linear layers but for the last one, which
    has `classes`. Raises ValueError where an image cannot be halved. The initial weights depend on
    `seed` alone.

    Source: Simonyan and Zisserman 2014 (arXiv 1409.1556), made small.
    """

    def __init__(
        self, groups: Sequence[Sequence[int]] = ((8, 8), (16, 16)), hidden: Sequence[int] = (32,),
        size: int = 16, classes: int = 10, inputs: int = 3, seed: int = 0,
    ):  # fmt: skip
        layers: list[nn.Module] = []
        for group in groups:
            for width in group:
                layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.ReLU()]
                inputs = width
            layers.append(nn.MaxPool2d(2))
            size = equal_share(size, 2, "An image has {} rows", "{} halves")
        layers.append(nn.Flatten())
        inputs *= size * size
        for width in hidden:
            layers += [nn.Linear(inputs, width), nn.ReLU()]
            inputs = width
        layers.append(nn.Linear(inputs, classes))
        super().__init__({str(number): layer for number, layer in enumerate(layers)})
        _draw(self, seed)


class Convolution(nn.Module):
    """A convolution, a ReLU, and the maximum of each 2 × 2: [B, C, H, H] -> [B, O, H/2, H/2]."""

    def __init__(self, i: int, o: int):
        super().__init__()
        self.conv = nn.Conv2d(i, o, 3, padding=1)

    def forward(self, x):
        return max_pool2d(relu(self.conv(x)), 2)


class Classes(nn.Module):
    """The last block: [B, C, H, H] -> [B, O], a linear map of all pixels of all channels."""

    def __init__(self, i: int, o: int):
        super().__init__()
        self.linear = nn.Linear(i, o)

    def forward(self, x):
        return self.linear(x.flatten(1))


def _draw(model: nn.Module, seed: int) -> None:
    """Draw the weights by He's rule from a generator of their own; biases are zero."""
    generator = torch.Generator("cpu").manual_seed(seed)
    for parameter in model.parameters():
        scale = (2 / parameter[0].numel()) ** 0.5 if parameter.dim() > 1 else 0.0
        drawn = torch.randn(parameter.shape, generator=generator, device="cpu")
        parameter.data.copy_(scale * drawn)
