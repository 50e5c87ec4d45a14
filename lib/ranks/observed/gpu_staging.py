"""GPU tensors through gloo: copied to the processor's memory before, and back once they are there.

Ranks that share one GPU cannot use NCCL, and gloo sends most operations from the processor's memory
only. The copies are what a machine without direct links between GPUs does as well.
"""

import threading

import torch
from torch.utils._pytree import tree_map_only


def elsewhere(tensor: torch.Tensor) -> bool:
    """True for a tensor that gloo cannot reach."""
    return tensor.device.type != "cpu"


class Staged:
    """A call with every tensor replaced by a copy on the CPU; `finish` brings the results home."""

    def __init__(self, call, args: tuple, results):
        self.call, self.copies, self.lock, self.home = call, {}, threading.Lock(), False
        self.args = tuple(self._stage(argument) for argument in args)
        self.results = [self.copies[id(t)] for t in results if id(t) in self.copies]

    def __call__(self):
        return self.call(*self.args)

    def finish(self, _work=None) -> None:
        """Copy what arrived to where the caller wants it; once the operation has finished."""
        with self.lock, torch.no_grad():
            for tensor, copy in () if self.home else self.results:
                tensor.copy_(copy)
            self.home = True  # whoever waits next may find the tensor changed by the caller

    def arrived(self, future):
        """Give what a future of the operation is to hold: the caller's tensors, not the copies."""
        self.finish()
        homes = {copy.data_ptr(): tensor for tensor, copy in self.results}
        return tree_map_only(torch.Tensor, lambda t: homes.get(t.data_ptr(), t), future.value())

    def _stage(self, item):
        if isinstance(item, torch.Tensor) and elsewhere(item):
            # One copy for one tensor, also where it is input and output; alive as long as this is.
            return self.copies.setdefault(id(item), (item, item.detach().to("cpu", copy=True)))[1]
        if isinstance(item, list | tuple):
            return [self._stage(part) for part in item]
        return item
