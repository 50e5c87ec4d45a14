"""Small whole numbers in as few bits as they need: eight of k bits are k bytes."""

import torch
from torch import Tensor


def pack(codes: Tensor, bits: int) -> Tensor:
    """Pack numbers below 2^bits, [N] -> bytes [ceil(N·bits/8)]; bits from 1 to 8.

    The first number has the lowest bits. Raises ValueError for another number of bits.
    """
    _known(bits)
    numel = codes.numel()
    groups = torch.zeros(-(-numel // 8), 8, dtype=torch.uint8, device=codes.device)
    groups.view(-1)[:numel] = codes
    # Eight codes fill at most the 64 bits of one whole number; its first `bits` bytes hold them.
    words = torch.zeros(len(groups), dtype=torch.int64, device=codes.device)
    for place in range(8):
        words |= groups[:, place].long() << (place * bits)
    return words.view(torch.uint8).view(-1, 8)[:, :bits].flatten()[: -(-numel * bits // 8)]


def unpack(packed: Tensor, bits: int, numel: int) -> Tensor:
    """Undo `pack`: bytes -> the first `numel` numbers, a byte each."""
    _known(bits)
    groups = torch.zeros(-(-numel // 8), bits, dtype=torch.uint8, device=packed.device)
    groups.view(-1)[: packed.numel()] = packed
    words = torch.zeros(len(groups), 8, dtype=torch.uint8, device=packed.device)
    words[:, :bits] = groups
    words = words.view(torch.int64).flatten()
    codes = torch.empty(len(groups), 8, dtype=torch.uint8, device=packed.device)
    for place in range(8):
        codes[:, place] = (words >> (place * bits)) & (2**bits - 1)
    return codes.view(-1)[:numel]


def _known(bits: int) -> None:
    if not 1 <= bits <= 8:
        raise ValueError(f"{bits} bits: a number is packed in 1 to 8")
