"""One forward of a chain, and its backward: which storages are where, and what is on its way."""

import weakref
from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from lib.single.host_memory import Copy, HostMemory


class Stored:
    """A storage that autograd has saved; `tensor` lies in it while it is on the device."""

    __slots__ = ("tensor", "version", "seen", "stays", "block", "home", "changed", "__weakref__")

    def __init__(self, tensor: Tensor, seen):
        self.tensor, self.version = tensor, tensor._version
        self.seen = seen  # what hooks around ours hold while it is on the device
        self.stays = self.changed = False
        self.block = -1  # the last one that saves it, with which it comes back
        self.home: Tensor | None = None  # in the host's memory

    def leave(self) -> None:
        """Free the device's memory, unless a kept block has saved the storage meanwhile."""
        if not self.stays:
            self.check()
            self.tensor = self.seen = None

    def check(self) -> None:
        """Note whether somebody has changed the numbers after they were saved."""
        self.changed |= self.tensor is not None and self.tensor._version != self.version


class _Saved:
    """Stands for a tensor that autograd saves: where it lies in a storage."""

    __slots__ = ("run", "number", "stored", "form")

    def __init__(self, run: "OffloadedRun", number: int, stored: Stored, tensor: Tensor):
        self.run, self.number, self.stored = run, number, stored
        self.form = tensor.dtype, tensor.storage_offset(), tensor.size(), tensor.stride()

    def open(self) -> Tensor:
        """Return the tensor, on the device."""
        stored = self.stored
        self.run.reach(self.number)
        if stored.block != self.number:
            self.run.arrive(stored.block)
        stored.check()
        _refuse_changed(stored.changed, self.number)
        return _looking_into(stored.tensor, *self.form)


class _Here:
    """Stands for a tensor that autograd saves and that is not sent: a weight, for example."""

    __slots__ = ("run", "number", "tensor", "version", "seen")

    def __init__(self, run: "OffloadedRun", number: int, tensor: Tensor, seen):
        self.run, self.number, self.tensor, self.seen = run, number, tensor, seen
        self.version = tensor._version

    def open(self) -> Tensor:
        """Return the tensor."""
        self.run.reach(self.number)
        _refuse_changed(self.tensor._version != self.version, self.number)
        return self.tensor


class OffloadedRun:
    """A forward of a chain whose blocks send what they save to the host, except those that stay.

    `staying` are the numbers of the `blocks` that keep all on the device, `weights` the storages
    that are never sent. It lives as long as autograd holds anything of this forward.
    """

    def __init__(
        self, host: HostMemory, staying: set[int], ahead: int, blocks: int, weights: set[int],
        device: torch.device,
    ):  # fmt: skip
        self.host, self.staying, self.ahead, self.last = host, staying, ahead, blocks - 1
        self.weights, self.device = weights, device
        self.known: dict[int, tuple] = {}  # storages -> (reference to it, reference to its Stored)
        self.undecided: list[weakref.ref] = []  # saved by blocks that have run, and not yet sent
        self.leaving: deque[tuple] = deque()  # (block, copy, what it sends), in order
        self.saved: dict[int, list[weakref.ref]] = {}  # block -> what comes back with it
        self.coming: dict[int, tuple[Copy, list]] = {}  # on the way to the device
        self.reached = -1  # the block whose backward runs

    def hooks(self, number: int) -> tuple[Callable, Callable]:
        """Return what autograd calls to save a tensor in a block, and to have it back."""
        around = torch._C._autograd._top_saved_tensors_default_hooks(True)
        keep = around[0] if around else lambda tensor: None
        self.saved[number] = []
        return (lambda tensor: self._save(number, tensor, keep)), (lambda saved: saved.open())

    # Forward.

    def _save(self, number: int, tensor: Tensor, keep: Callable):
        tensor = tensor.detach()  # a result would hold its own node of the graph for ever
        storage = tensor.untyped_storage() if _is_plain(tensor, self.device) else None
        if storage is None or storage._cdata in self.weights or not storage.nbytes():
            return _Here(self, number, tensor, keep(tensor))
        stored = self._stored(storage, tensor, keep)
        if number in self.staying and stored.home is not None:  # sent in vain
            stored.stays = True
            stored.tensor = tensor if stored.tensor is None else stored.tensor
        if stored.block != number:
            self.saved[number].append(weakref.ref(stored))
            stored.block = number
        return _Saved(self, number, stored, tensor)

    def _stored(self, storage, tensor: Tensor, keep: Callable) -> Stored:
        """Return what stands for a storage, which may have been saved before."""
        of_storage, of_stored = self.known.get(storage._cdata, (lambda: None, lambda: None))
        stored = of_stored() if of_storage() is storage else None
        if stored is None or stored.version != tensor._version:
            stored = Stored(tensor, keep(tensor))
            self.known[storage._cdata] = weakref.ref(storage), weakref.ref(stored)
            self.undecided.append(weakref.ref(stored))
        return stored

    def end(self, number: int, outputs) -> None:
        """Send what a block has saved, and free what those before it have sent."""
        passed_on = {
            leaf.untyped_storage()._cdata for leaf in tree_leaves(outputs) if _is_strided(leaf)
        }
        alive = [stored for ref in self.undecided if (stored := ref())]
        waits = lambda stored: stored.tensor.untyped_storage()._cdata in passed_on
        self.undecided = [weakref.ref(stored) for stored in alive if waits(stored)]
        decided = (stored for stored in alive if not waits(stored))
        out = [stored for stored in decided if stored.block not in self.staying]
        if out and number + self.ahead <= self.last:
            self._send(number, out)
        while self.leaving and self.leaving[0][0] + self.ahead <= number:
            _, copy, left = self.leaving.popleft()
            copy.wait_on_device()
            for stored in left:
                stored.leave()
        if number == self.last:
            self.known.clear()

    def _send(self, number: int, out: list[Stored]) -> None:
        pairs = []
        for stored in out:
            here = _bytes_of(stored.tensor)
            stored.home = self.host.empty(here)
            pairs.append((stored.home, here))
        self.leaving.append((number, self.host.together("to_host", pairs), out))

    # Backward.

    def reach(self, number: int) -> None:
        """Hear that backward uses what a block has saved: have it here, and the next ones soon."""
        if self.reached == number:
            return
        self.reached = number
        before = sorted((n for n, saved in self.saved.items() if saved and n <= number))
        for n in reversed(before[-1 - self.ahead :]):
            self._fetch(n)
        self.arrive(number)

    def arrive(self, number: int) -> None:
        """Let the device wait for what comes back with a block."""
        self._fetch(number)
        copy, _ = self.coming.pop(number, (None, ()))
        if copy is not None:
            copy.wait_on_device()

    def _fetch(self, number: int) -> None:
        """Start to copy to the device what comes back with a block, unless it is there."""
        pairs = []
        for stored in (ref() for ref in self.saved[number]):
            if stored and stored.block == number and stored.tensor is None:
                # Made with gradients on, as what checkpoints compute again: an activation.
                with torch.enable_grad():
                    stored.tensor = torch.empty_like(stored.home, device=self.device)
                pairs.append((stored.tensor, stored.home))
                stored.home, stored.version = None, 1  # the copy is the first change
        if pairs:
            self.coming[number] = self.host.together("to_device", pairs), pairs

    def __del__(self):
        for copy, _ in self.coming.values():
            copy.wait_on_device()  # it came for nothing; its memory is not freed under it


def _is_plain(tensor: Tensor, device: torch.device) -> bool:
    """Tell whether a tensor is nothing but a look into a storage of this device."""
    known = type(tensor) in (Tensor, nn.Parameter, nn.Buffer) and _is_strided(tensor)
    return known and tensor.device == device and not (tensor.is_conj() or tensor.is_neg())


def _is_strided(item) -> bool:
    return isinstance(item, Tensor) and item.layout is torch.strided


def _bytes_of(tensor: Tensor) -> Tensor:
    """Return the whole storage of a tensor as bytes."""
    nbytes = tensor.untyped_storage().nbytes()
    return _looking_into(tensor, torch.uint8, 0, (nbytes,), (1,))


def _looking_into(tensor: Tensor, dtype: torch.dtype, offset: int, size, stride) -> Tensor:
    """Return another tensor of the same storage."""
    other = torch.empty(0, dtype=dtype, device=tensor.device)
    return other.set_(tensor.untyped_storage(), offset, size, stride)


def _refuse_changed(changed: bool, number: int) -> None:
    if changed:
        raise RuntimeError(
            f"A tensor that block {number} has saved for backward was changed in place afterwards, "
            "so its gradients would be wrong. Replace the operation that changes it, whose name "
            "ends in _, by one that makes a new tensor."
        )
