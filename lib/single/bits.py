"""Packs small whole numbers into as few bits as they need: eight numbers of k bits are k bytes."""

import torch
from torch import Tensor


def pack(codes: Tensor, bits: int) -> Tensor:
    """Pack numbers below 2^bits, [N] -> bytes [ceil(N·bits/8)], with bits from 1 to 8.

    The first number gets the lowest bits. Raises ValueError for another number of bits.
    """
    _known(bits)
    numel = codes.numel()
    groups = torch.zeros(-(-numel // 8), 8, dtype=torch.uint8, device=codes.device)
    groups.view(-1)[:numel] = codes
    # Eight codes fit into one integer of 64 bits; its first `bits` bytes hold them.
    words = torch.zeros(len(groups), dtype=torch.int64, device=codes.device)
    for n in range(8):
        words |= groups[:, n].long() << (n * bits)
    return words.view(torch.uint8).view(-1, 8)[:, :bits].flatten()[: -(-numel * bits // 8)]


def unpack(packed: Tensor, bits: int, numel: int) -> Tensor:
    """Unpack the first `numel` numbers from the bytes that `pack` returned, a byte each."""
    _known(bits)
    groups = torch.zeros(-(-numel // 8), bits, dtype=torch.uint8, device=packed.device)
    groups.view(-1)[: packed.numel()] = packed
    words = torch.zeros(len(groups), 8, dtype=torch.uint8, device=packed.device)
    words[:, :bits] = groups
    words = words.view(torch.int64).flatten()
    codes = torch.empty(len(groups), 8, dtype=torch.uint8, device=packed.device)
    for n in range(8):
        codes[:, n] = (words >> (n * bits)) & (2**bits - 1)
    return codes.view(-1)[:numel]


def _known(bits: int) -> None:
    if not 1 <= bits <= 8:
        raise ValueError(f"A number is packed into 1 to 8 bits, not {bits}.")
