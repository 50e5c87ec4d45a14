"""Tensors of a large model in place of those of a small run that stands for it.

They have the large model's sizes and no memory (device "meta"), so that the roofline counts the
FLOP and the bytes of the large model's operation. lib/predict/larger.py says which size stands for
which.
"""

import torch


class StandIns:
    """Gives what the tensors of the small run stand for, as a `Larger` says."""

    def __init__(self, larger):
        self.larger = larger

    def of(self, *items) -> list:
        """Put stand-ins in place of the tensors in `items`; the same tensor gets the same one."""
        known: dict[int, torch.Tensor] = {}
        return [self._of(item, known) for item in items]

    def bytes_of(self, tensors) -> int:
        """Add up the bytes that these tensors stand for."""
        return sum(self.tensor(tensor).nbytes for tensor in tensors)

    def tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """Give one stand-in. Raises ValueError for a size that stands for nothing or for two."""
        if tensor.layout is not torch.strided:
            return tensor  # its size depends on its values
        index = not (tensor.is_floating_point() or tensor.dtype is torch.bool)
        sizes = self.larger.shape(tuple(tensor.shape), index)
        expanded = [n if stride or n < 2 else 1 for n, stride in zip(sizes, tensor.stride())]
        return torch.empty(expanded, dtype=tensor.dtype, device="meta").expand(sizes)

    def _of(self, item, known: dict):
        if isinstance(item, torch.Tensor):
            if id(item) not in known:
                known[id(item)] = self.tensor(item)
            return known[id(item)]
        if isinstance(item, list | tuple):
            return [self._of(part, known) for part in item]
        if isinstance(item, dict):
            return {name: self._of(part, known) for name, part in item.items()}
        return item
