"""Products of scaled matrices by `torch._scaled_mm`, on the machines whose PyTorch has them.

    a [M, K] and b [N, K] row by row in memory, so that bᵀ [K, N] lies column by column

NVIDIA GPUs need compute capability 8.9 for one scale for each matrix and 9.0 for one for each row;
there K and N are multiples of 16, the two formats are not both e5m2, and with a scale for each row
the result is bfloat16. On the CPU PyTorch 2.13 takes any size, and its result is float32.
"""

import torch
from torch import Tensor

from lib.single.precision.scaled import FORMATS, Scaled

ONE_SCALE, ROW_SCALES = (8, 9), (9, 0)  # compute capability
MULTIPLE = 16  # of the sizes, on GPUs


def machine_product(a: Scaled, b: Scaled) -> Tensor:
    """Multiply a [M, K] by the transpose of b [N, K] as the machine does it: [M, N].

    Raises ValueError, with the reason, where `reason_against` has one.
    """
    if reason := reason_against(a, b):
        raise ValueError(f"torch._scaled_mm cannot multiply these matrices: {reason}.")
    by_row = a.scales.numel() > 1 or b.scales.numel() > 1
    left, right = a.scales, b.scales.T
    if by_row:
        left, right = left.expand(len(a.codes), 1), right.expand(1, len(b.codes))
    rounded = by_row and a.codes.is_cuda
    result = torch._scaled_mm(
        a.codes.contiguous(),
        b.codes.contiguous().T,
        scale_a=left.contiguous(),
        scale_b=right.contiguous(),
        out_dtype=torch.bfloat16 if rounded else torch.float32,
    )
    return result.float()


def reason_against(a: Scaled, b: Scaled, capability: tuple[int, int] | None = None) -> str:
    """Return why `torch._scaled_mm` cannot multiply a [M, K] by b [N, K], or "" where it can.

    `capability` is that of an NVIDIA GPU; without one the matrices' own device is asked.
    """
    if a.scales.shape[1] > 1 or b.scales.shape[1] > 1:
        return "their scales change along the inner dim, and it takes one for each row or matrix"
    if any(m.tile[0] > 1 and m.scales.numel() > 1 for m in (a, b)):
        return "several of their rows share a scale, and it takes one for each row or matrix"
    device = a.codes.device
    if capability is None and a.codes.is_cuda:
        capability = torch.cuda.get_device_capability(device)
    if capability is None:
        return "" if device.type == "cpu" else f"it is not known to run on {device.type}"
    needed = ROW_SCALES if a.scales.numel() > 1 or b.scales.numel() > 1 else ONE_SCALE
    if capability < needed:
        shown, asked = (".".join(map(str, pair)) for pair in (capability, needed))
        return f"the GPU has compute capability {shown}, and {asked} is needed"
    if a.codes.dtype == b.codes.dtype == FORMATS["e5m2"]:
        return "both are e5m2"
    sizes = {"inner dim": a.codes.shape[1], "number of columns of the result": len(b.codes)}
    for name, size in sizes.items():
        if size % MULTIPLE:
            return f"the {name} is {size}, which is no multiple of {MULTIPLE}"
    return ""
