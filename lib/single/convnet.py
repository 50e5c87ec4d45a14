"""A small convolutional network as a chain of blocks: images [B, C, H, H] -> classes [B, O].

Each block maps one tensor to one tensor, as in models.py: a convolution with a ReLU and a pooling
layer that halves the image, and at the end a linear layer.
"""

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
        generator = torch.Generator("cpu").manual_seed(seed)
        for parameter in self.parameters():
            scale = (2 / parameter[0].numel()) ** 0.5 if parameter.dim() > 1 else 0.0
            drawn = torch.randn(parameter.shape, generator=generator, device="cpu")
            parameter.data.copy_(scale * drawn)


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
