"""The second run of a checkpointed function: what it saves, by number, and how it differs."""

from contextlib import contextmanager

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

Facts = tuple[torch.Size, torch.dtype, torch.device]


def facts_of(tensor: Tensor) -> Facts:
    """Return what a tensor of the second run must have in common with that of the first."""
    return tensor.shape, tensor.dtype, tensor.device


class _Enough(Exception):
    """Ends a run whose remaining operations save nothing that is needed."""


class Difference(Exception):
    """Says that the second run saved other tensors than the first."""

    def explain(self, run, wanted, count) -> None:
        """Run once more, watch the operations, and raise RuntimeError with the one that differs."""
        watch = _Watch()
        try:
            with watch, Caught(wanted, count).catching():
                run()
        except Difference:
            pass
        raise RuntimeError(
            f"A checkpointed function did something else when it ran again in backward. {self} "
            f"{watch.said()} It must compute the same from the same inputs: give "
            "random numbers by torch's generators, and change no state that it reads."
        ) from None


class Caught:
    """Fills slots by their numbers while a function runs; `count` were saved in the first run."""

    def __init__(self, wanted: dict, count: int):
        self.wanted, self.count, self.number = wanted, count, 0
        self.last = max(wanted)

    @contextmanager
    def catching(self):
        """Catch what is saved inside; end the run as soon as all that is wanted is there."""
        try:
            with saved_tensors_hooks(self._catch, _never):
                yield
        except _Enough as enough:
            # Its frames hold what the run computed; in Python 3.12 they form a ring with it.
            enough.__traceback__ = None

    def _catch(self, tensor: Tensor) -> None:
        slot = self.wanted.get(self.number)
        if slot is not None:
            if facts_of(tensor) != slot.facts:
                raise Difference(
                    f"Tensor {self.number} that it saves was {_told(slot.facts)} and is "
                    f"{_told(facts_of(tensor))}."
                )
            slot.value = _without_graph(tensor)
        self.number += 1
        if self.number > self.last:
            raise _Enough

    def complete(self) -> None:
        """Raise Difference where the run has ended and something is missing."""
        if self.number <= self.last:
            raise Difference(f"It saved {self.count} tensors, and now {self.number}.")


def _without_graph(tensor: Tensor) -> Tensor:
    """Return a tensor that does not hold the graph of the second run."""
    if type(tensor) not in (Tensor, torch.nn.Parameter):
        return tensor.detach()
    with torch._C._DisableTorchDispatch():  # modes count operations, and this is none of them
        return tensor.detach()


class _Watch(TorchDispatchMode):
    """Counts operations and remembers the last; a detach, as the checkpoint's own, is none."""

    def __init__(self):
        super().__init__()
        self.count, self.last = 0, None

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is not torch.ops.aten.detach.default:
            self.count, self.last = self.count + 1, func
        return func(*args, **(kwargs or {}))

    def said(self) -> str:
        if self.last is None:
            return "It ran no operation."
        return f"The last operation before was number {self.count}, {self.last}."


def _told(facts: Facts) -> str:
    shape, dtype, device = facts
    return f"{str(dtype).removeprefix('torch.')} {list(shape)} on {device}"


def _never(_):
    raise AssertionError("Nothing goes backward through the graph of a second run.")
