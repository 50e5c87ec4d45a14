"""A cache of weights on the device, whose home is the host's memory (GeePS's parameter cache)."""

import contextlib
from collections.abc import Sequence

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from lib.predict.arguments import whole
from lib.predict.sharded.offload import resident_units
from lib.single.host_memory import Copy
from lib.single.offload import OffloadedOptimizer


class ParameterCache:
    """Keeps the weights of few units on the device, and fetches the others before they are used.

    `units` are modules in the order in which forward runs them, such as the blocks of a Chain. Of
    these as many as fit, from the last on, stay on the device; each of the others is fetched from
    the host when its turn comes, together with the next `prefetch` ones, and its memory is freed
    when it has been used: after forward, and in backward when its gradients are complete. The
    weights on the device never take more than `device_bytes`. Weights that belong to no unit, or to
    more than one (tied ones), always stay. The weights' home is that of `optimizer`, which steps
    them there. A unit may run several times in a step.

    Raises ValueError where `device_bytes` are too few for a unit and those that are fetched ahead.
    """

    def __init__(
        self, model: nn.Module, units: Sequence[nn.Module], optimizer: OffloadedOptimizer,
        device_bytes: int, prefetch: int = 1,
    ):  # fmt: skip
        self.units, self.optimizer = list(units), optimizer
        self.prefetch = whole(prefetch, "prefetch", 0)
        self.weights = _weights_by_unit(self.units, optimizer.home)
        owned = {id(p) for weights in self.weights for p in weights}
        sizes = [sum(p.nbytes for p in weights) for weights in self.weights]
        always = sum(p.nbytes for p in model.parameters() if id(p) not in owned)
        self.resident = set(resident_units(sizes, device_bytes, self.prefetch, always))
        self.numels = {p: p.untyped_storage().nbytes() for weights in self.weights for p in weights}
        self.copies: dict[int, list[Copy]] = {}  # of the units that are there, or on their way
        self.left = [0] * len(self.units)  # gradients that a unit's backward still owes
        self.hooks = [hook for n in self.swapped for hook in self._watch(n)]
        self.hooks.append(optimizer.register_step_pre_hook(lambda *_: self._end_step()))
        for n in self.swapped:
            self._empty(n)

    @property
    def swapped(self) -> list[int]:
        """Return the numbers of the units that come and go."""
        return [n for n in range(len(self.units)) if n not in self.resident]

    def _watch(self, n: int) -> list:
        unit = self.units[n]
        return [
            unit.register_forward_pre_hook(lambda *_: self._begin(n, 1)),
            unit.register_forward_hook(
                lambda _unit, _inputs, outputs: self._end_forward(n, outputs), always_call=True
            ),
            *(p.register_post_accumulate_grad_hook(lambda _: self._arrived(n))
              for p in self.weights[n]),
        ]  # fmt: skip

    # A unit comes and goes.

    def _begin(self, n: int, direction: int) -> None:
        """Wait for a unit's weights, and start to fetch those that are used next."""
        self._fetch(n)
        swapped = self.swapped
        place = swapped.index(n)
        ahead = [place + direction * k for k in range(1, self.prefetch + 1)]
        near = {swapped[k] for k in ahead if 0 <= k < len(swapped)}
        for other in list(self.copies):
            if other != n and other not in near:
                self._free(other)
        for copy in self.copies[n]:
            copy.wait()
        self.copies[n] = []
        for k in ahead:
            if 0 <= k < len(swapped):
                self._fetch(swapped[k])

    def _end_forward(self, n: int, outputs) -> None:
        last = n == self.swapped[-1]  # backward begins with it
        for tensor in tree_leaves(outputs):
            if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                tensor.register_hook(lambda _: self._begin_backward(n))
        if not (last and torch.is_grad_enabled()):
            self._free(n)

    def _begin_backward(self, n: int) -> None:
        self.left[n] = self.left[n] or len(self.weights[n])
        self._begin(n, -1)

    def _arrived(self, n: int) -> None:
        self.left[n] -= 1
        if not self.left[n]:
            self._free(n)

    def _fetch(self, n: int) -> None:
        if n in self.copies:
            return
        optimizer = self.optimizer
        self.copies[n] = []
        for p in self.weights[n]:
            p.untyped_storage().resize_(self.numels[p])
            copy = optimizer.host.to_device(
                p.data, optimizer.home[p].data, optimizer.stepped.get(p, ())
            )
            self.copies[n].append(copy)

    def _end_step(self) -> None:
        """Free what a unit has kept because no gradient of some of its weights came."""
        self.left = [0] * len(self.units)
        for n in list(self.copies):
            self._free(n)

    def _free(self, n: int) -> None:
        if n in self.copies and not self.left[n]:  # while it owes gradients, backward reads it
            for copy in self.copies.pop(n):
                copy.wait()  # it was fetched for nothing; its memory is not freed under it
            self._empty(n)

    def _empty(self, n: int) -> None:
        for p in self.weights[n]:
            p.untyped_storage().resize_(0)

    @contextlib.contextmanager
    def whole(self):
        """Have all weights on the device inside; what is changed there goes to the host."""
        for n in self.swapped:
            self._fetch(n)
        for copies in self.copies.values():
            for copy in copies:
                copy.wait()
        try:
            yield
        finally:
            self.optimizer.refresh()
            for n in self.swapped:
                self.copies.pop(n, None)
                self._empty(n)


def _weights_by_unit(units: list, home: dict) -> list[list]:
    """Give the trained weights of each unit that no other unit has."""
    users: dict[int, int] = {}
    for unit in dict.fromkeys(units):
        for p in unit.parameters():
            users[id(p)] = users.get(id(p), 0) + 1
    if len(dict.fromkeys(units)) != len(units):
        raise ValueError(
            "A unit is listed twice. List each unit once, in the order in which forward first runs "
            "it; it may run several times in a step."
        )
    return [[p for p in unit.parameters() if users[id(p)] == 1 and p in home] for unit in units]
