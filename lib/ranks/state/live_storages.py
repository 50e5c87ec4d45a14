"""The storages that are alive in this process: which, how large, and when each one dies."""

import functools
import time
import weakref
from collections.abc import Callable

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes, is_traceable_wrapper_subclass

_DROPPED_WITHIN = 0.05  # seconds; a thread that lets go of something needs microseconds
HOST = "host"  # the kind of what lies in the host's memory (lib/ledger/host.py)


class Piece:
    """One storage that is alive: its number, size and kind, and how often autograd has saved it."""

    __slots__ = ("number", "size", "kind", "saved", "computed", "reference")

    def __init__(self, number: int, size: int, kind: str, computed: bool):
        self.number, self.size, self.kind, self.computed = number, size, kind, computed
        self.saved, self.reference = 0, None

    @property
    def alive(self) -> bool:
        """True while something holds the storage."""
        return self.reference() is not None


class Storages:
    """All storages seen and still alive; `changed(kind, bytes, number)` hears what comes and goes.

    Storages are numbered in the order in which they are seen; no number is used twice. Tensors on
    the device "meta" count only `without_data`: beside real ones they only stand for their shapes.
    """

    def __init__(self, changed: Callable[[str, int, int], None], without_data: bool = False):
        self.changed, self.pieces, self.open = changed, {}, False
        self.without_data = without_data
        self.seen = 0  # how many; the number of the next one

    def see(self, tensor, kind: str = "other", computed: bool = False) -> list[Piece]:
        """Give the pieces behind a tensor; those not known yet count from now on, as `kind`."""
        return [self._see(storage, kind, computed) for storage in self.behind(tensor)]

    def since(self, number: int) -> list[Piece]:
        """Give the pieces that are alive and have this number or a later one."""
        return [piece for piece in self.pieces.copy().values() if piece.number >= number]

    def behind(self, tensor) -> list[torch.UntypedStorage]:
        """Give the storages behind a tensor that count."""
        return storages_of(tensor, self.without_data)

    def _see(self, storage, kind, computed) -> Piece:
        piece = self.pieces.get(storage._cdata)
        if piece is None:
            kind = HOST if getattr(storage, "in_host_memory", False) else kind
            piece = Piece(self.seen, storage.nbytes(), kind, computed)
            self.seen += 1
            self.pieces[storage._cdata] = piece
            gone = functools.partial(self._died, storage._cdata, piece)
            piece.reference = weakref.ref(storage, gone)
            self.changed(kind, piece.size, piece.number)
        elif piece.size != storage.nbytes():
            self.resized(storage)
        return piece

    def move(self, piece: Piece, kind: str) -> None:
        """Count a piece as another kind from now on."""
        if piece.kind not in (kind, HOST) and piece.reference() is not None:
            old, piece.kind = piece.kind, kind
            self.changed(old, -piece.size, piece.number)
            self.changed(kind, piece.size, piece.number)

    def resized(self, storage) -> None:
        """Count a storage with the size it has now."""
        piece = self.pieces.get(storage._cdata)
        if piece is not None:
            old, piece.size = piece.size, storage.nbytes()
            self.changed(piece.kind, piece.size - old, piece.number)

    def _died(self, key: int, piece: Piece, _) -> None:
        if self.open and self.pieces.get(key) is piece:
            del self.pieces[key]
            self.changed(piece.kind, -piece.size, piece.number)

    def __enter__(self):
        self.open = True
        self._resize = torch.UntypedStorage.resize_  # FSDP empties storages so: no operation tells
        torch.UntypedStorage.resize_ = functools.partialmethod(_resize, self)
        return self

    def __exit__(self, *_):
        torch.UntypedStorage.resize_ = self._resize
        self.open = False


def await_death(pieces: list[Piece]) -> None:
    """Wait until none of the pieces is alive, for a moment at most; another thread drops them."""
    end = time.monotonic() + _DROPPED_WITHIN
    while any(piece.alive for piece in pieces) and time.monotonic() < end:
        time.sleep(20e-6)


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


def storages_of(tensor: torch.Tensor, without_data: bool = False) -> list[torch.UntypedStorage]:
    """Give the storages behind a tensor: one, those of the parts that it is made of, or none."""
    if tensor.is_meta and not without_data:
        return []
    if is_traceable_wrapper_subclass(tensor):
        names, _ = tensor.__tensor_flatten__()
        parts = [getattr(tensor, name) for name in names]
        tensors = [part for part in parts if isinstance(part, torch.Tensor)]
        return [s for tensor in tensors for s in storages_of(tensor, without_data)]
    return [part.untyped_storage() for part in parts_of(tensor)]


def parts_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Give the two dense tensors that a sparse one is made of; of a dense one, itself."""
    return [tensor._indices(), tensor._values()] if tensor.is_sparse else [tensor]


def without_graph(tensor: torch.Tensor) -> torch.Tensor:
    """Give what a saved-tensor hook may hold: a tensor that does not lead to its own graph.

    The node that saves its result holds what the hook returns. If this led back to the node, a
    graph that is retained and then dropped would stay, because the garbage collector cannot see the
    cycle. Autograd puts the result back into its graph when it asks for it.
    """
    if tensor.grad_fn is None:
        return tensor
    with _disable_current_modes():  # others count operations, and this is none of the program's
        return tensor.detach()


def foreign(kind: type) -> bool:
    """True for tensor classes that take operations apart themselves, such as DTensor."""
    known = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, FakeTensor)
    return (
        kind not in known and kind.__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl
    )


def imagined(types, out) -> bool:
    """Tell whether an operation computed no numbers: so DTensor asks for the shape of a result."""
    if any(kind is FakeTensor for kind in types):
        return True
    while isinstance(out, list | tuple) and out:
        out = out[0]
    return isinstance(out, torch.Tensor) and (out.is_meta or isinstance(out, FakeTensor))
