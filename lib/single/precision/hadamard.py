"""Random Hadamard transforms, which spread an outlier over its block without changing a product.

    spread(x) = x · diag(signs) · H / √n    in blocks of n along the last dim

[Note: products]
H is symmetric, its entries are 1 and -1, and H · H = n · I. So the transform is orthogonal, and
where both operands of a product are spread along its inner dim, the product stays what it was:
spread(a) · spread(b)ᵀ = a · bᵀ. Rounding sees other numbers, however. One entry of size m among
n - 1 small ones becomes n entries of size m/√n, so a block's scale is smaller by √n. The small ones
are no longer lost beside it; but neither is the outlier exact any more, which has a whole block's
error now. Without random signs a block of equal entries would become a single outlier.

Source: NVIDIA 2025, Pretraining Large Language Models with NVFP4 (arXiv 2509.25149): blocks of 16,
one vector of signs, for the gradients of the weights alone.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from lib.predict.arguments import whole

BLOCK = 16


def hadamard(size: int) -> Tensor:
    """Return the Hadamard matrix of 1 and -1 by Sylvester's doubling, [size, size].

    Raises ValueError unless `size` is a power of two.
    """
    if whole(size, "size") & (size - 1):
        raise ValueError(f"The size of a Hadamard matrix must be a power of two here, not {size}.")
    matrix = torch.ones(1, 1)
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix


def random_signs(seed: int = 0, size: int = BLOCK) -> Tensor:
    """Return `size` numbers that are 1 or -1, drawn from the seed alone: [size]."""
    generator = torch.Generator("cpu").manual_seed(seed)
    return 2.0 * torch.randint(2, (size,), generator=generator, device="cpu") - 1


def spread(x: Tensor, signs: Tensor) -> Tensor:
    """Transform each block of n entries along the last dim, [.., K] -> [.., K rounded up to n].

    n is the number of signs, a power of two. Zeros fill the last block; they add nothing to a
    product of two spread matrices.
    """
    size = len(signs)
    x = pad(x, (0, -x.shape[-1] % size))
    matrix = signs[:, None] * hadamard(size).to(signs) / size**0.5
    blocks = x.unflatten(-1, (-1, size))
    return (blocks @ matrix.to(x)).flatten(-2)
