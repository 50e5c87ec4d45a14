"""Small whole numbers in as few bits as they need: eight of k bits are k bytes."""

import torch
from torch import Tensor


def pack(codes: Tensor, bits: int) -> Tensor:
    """Pack numbers below 2^bits, [N] -> bytes [ceil(N·bits/8)]; bits from 1 to 8.

    The first number has the lowest bits. Raises ValueError for another number of bits.
    """
    _known(bits)
    numel = codes.numel()
    groups = torch.zeros(-(-numel // 8) * 8, dtype=torch.int64, device=codes.device)
    groups[:numel] = codes
    # Eight codes fill at most the 64 bits of one whole number; its first `bits` bytes hold them.
    words = (groups.view(-1, 8) << _shifts(bits, codes.device)).sum(1)
    return words.view(torch.uint8).view(-1, 8)[:, :bits].flatten()[: -(-numel * bits // 8)]


def unpack(packed: Tensor, bits: int, numel: int) -> Tensor:
    """Undo `pack`: bytes -> the first `numel` numbers, as int64."""
    _known(bits)
    groups = -(-numel // 8)
    whole = torch.zeros(groups * bits, dtype=torch.uint8, device=packed.device)
    whole[: packed.numel()] = packed
    words = torch.zeros(groups, 8, dtype=torch.uint8, device=packed.device)
    words[:, :bits] = whole.view(groups, bits)
    words = words.view(torch.int64)
    return ((words >> _shifts(bits, packed.device)) & (2**bits - 1)).flatten()[:numel]


def _shifts(bits: int, device) -> Tensor:
    return torch.arange(8, device=device) * bits


def _known(bits: int) -> None:
    if not 1 <= bits <= 8:
        raise ValueError(f"{bits} bits: a number is packed in 1 to 8")
