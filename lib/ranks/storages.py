"""The storages that are alive in this process: which, how large, and when each one dies."""

import functools
import weakref
from collections.abc import Callable

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


class Piece:
    """One storage that is alive: its size, its kind, and how often autograd has saved it."""

    __slots__ = ("size", "kind", "saved", "computed", "reference")

    def __init__(self, size: int, kind: str, computed: bool):
        self.size, self.kind, self.computed = size, kind, computed
        self.saved, self.reference = 0, None

    @property
    def alive(self) -> bool:
        """True while something holds the storage."""
        return self.reference() is not None


class Storages:
    """All storages seen and still alive; `changed(kind, bytes)` is told what comes and goes."""

    def __init__(self, changed: Callable[[str, int], None]):
        self.changed, self.pieces, self.open = changed, {}, False

    def see(self, tensor, kind: str = "other", computed: bool = False) -> list[Piece]:
        """Give the pieces behind a tensor; those not known yet count from now on, as `kind`."""
        return [self._see(storage, kind, computed) for storage in storages_of(tensor)]

    def _see(self, storage, kind, computed) -> Piece:
        piece = self.pieces.get(storage._cdata)
        if piece is None:
            piece = self.pieces[storage._cdata] = Piece(storage.nbytes(), kind, computed)
            gone = functools.partial(self._died, storage._cdata, piece)
            piece.reference = weakref.ref(storage, gone)
            self.changed(kind, piece.size)
        elif piece.size != storage.nbytes():
            self.resized(storage)
        return piece

    def move(self, piece: Piece, kind: str) -> None:
        """Count a piece as another kind from now on."""
        if piece.kind != kind:
            old, piece.kind = piece.kind, kind
            self.changed(old, -piece.size)
            self.changed(kind, piece.size)

    def resized(self, storage) -> None:
        """Count a storage with the size it has now."""
        piece = self.pieces.get(storage._cdata)
        if piece is not None:
            old, piece.size = piece.size, storage.nbytes()
            self.changed(piece.kind, piece.size - old)

    def _died(self, key: int, piece: Piece, _) -> None:
        if self.open and self.pieces.get(key) is piece:
            del self.pieces[key]
            self.changed(piece.kind, -piece.size)

    def __enter__(self):
        self.open = True
        self._resize = torch.UntypedStorage.resize_  # FSDP empties storages so: no operation tells
        torch.UntypedStorage.resize_ = functools.partialmethod(_resize, self)
        return self

    def __exit__(self, *_):
        torch.UntypedStorage.resize_ = self._resize
        self.open = False


def _resize(storage, storages: Storages, size: int):
    result = storages._resize(storage, size)
    storages.resized(storage)
    return result


def tensors_of(item) -> list[torch.Tensor]:
    """Give all tensors in nested lists, tuples and dicts."""
    if isinstance(item, torch.Tensor):
        return [item]
    if isinstance(item, dict):
        item = item.values()
    elif not isinstance(item, list | tuple):
        return []
    return [tensor for part in item for tensor in tensors_of(part)]


def storages_of(tensor: torch.Tensor) -> list[torch.UntypedStorage]:
    """Give the storages behind a tensor: one, or those of the pieces a DTensor is made of."""
    if is_traceable_wrapper_subclass(tensor):
        names, _ = tensor.__tensor_flatten__()
        parts = [getattr(tensor, name) for name in names]
        return [s for part in parts if isinstance(part, torch.Tensor) for s in storages_of(part)]
    return [tensor.untyped_storage()]


def foreign(kind: type) -> bool:
    """True for tensor classes that take operations apart themselves, such as DTensor."""
    known = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, FakeTensor)
    return (
        kind not in known and kind.__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl
    )


def imagined(types, out) -> bool:
    """True for an operation without numbers: DTensor asks so which shape a result would have."""
    if any(kind is FakeTensor for kind in types):
        return True
    while isinstance(out, list | tuple) and out:
        out = out[0]
    return isinstance(out, torch.Tensor) and (out.is_meta or isinstance(out, FakeTensor))
