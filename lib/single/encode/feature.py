"""A block of a chain runs, and what it keeps of its input and output is kept encoded.

[Note: how it is encoded]
As in lib/single/recompute/checkpoint.py, a hook puts a `_Slot` in the place of each tensor that
autograd saves. When the block is done, each slot gets what is kept: the encoded parts for the
block's input and output, and the tensor itself for anything else. Backward opens the slot, and the
parts are decoded to the dense tensor. PyTorch's own backward then computes with it.

[Note: once]
A ReLU saves its result, and the next layer saves the same tensor as its input. The two slots share
one `_Kept`, so it is encoded and kept once. A tensor is known by its storage and by how often it
was changed in place.

[Note: hooks outside]
The parts are saved by an operation of autograd (`saved`), so hooks around the model see them: what
counts bytes counts the parts, and a checkpoint around the model forgets them.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from lib.single.recompute.saved import saved

# flat numbers [N] -> the parts to be kept, and what makes the numbers from the parts
Encoding = Callable[[Tensor], tuple[tuple[Tensor, ...], Callable[..., Tensor]]]


class Feature:
    """Describes the feature map that a tensor is: how it is encoded, and its parts once kept.

    Without an encoding it is kept as it is.
    """

    def __init__(self, tensor: Tensor, encoding: Encoding | None):
        self.identity, self.dtype, self.encoding = identity_of(tensor), tensor.dtype, encoding
        self.kept: _Kept | None = None

    def is_of(self, tensor: Tensor, identity: tuple[int, int]) -> bool:
        """Return whether a tensor of this identity is the feature map, or a view of it."""
        return self.identity == identity and self.dtype == tensor.dtype

    def keep(self, tensor: Tensor) -> "_Kept":
        """Return what is kept of the whole storage; the first call encodes it."""
        if self.kept is None:
            whole = tensor.untyped_storage().nbytes() // tensor.itemsize
            flat = tensor.detach().as_strided((whole,), (1,), 0)
            self.kept = _Kept(flat, self.encoding)
        return self.kept


def run(
    block: nn.Module, x: Tensor, feature: Feature, encoding: Encoding | None,
    indices: Encoding | None = None,
) -> tuple[Tensor, Feature]:  # fmt: skip
    """Run a block on x, whose feature map is given; return its output and that one's feature map.

    The output is encoded by `encoding`, and the indices of maxima that the block saves by
    `indices`. Raises RuntimeError where the block changes in place what it saves.
    """
    saved: list[tuple[_Slot, Tensor]] = []

    def pack(tensor: Tensor) -> _Slot:
        slot = _Slot(tensor)
        saved.append((slot, tensor))
        return slot

    with saved_tensors_hooks(pack, _Slot.open):
        y = block(x)
    # A view such as that of nn.Flatten is the same feature map.
    passes_on = feature.is_of(y, identity_of(y))
    output = feature if passes_on else Feature(y, encoding)
    for slot, tensor in saved:
        _refuse_changes(slot, tensor, block)
        for one in (feature, output):
            if one.is_of(tensor, slot.identity):
                slot.kept = one.keep(tensor)
        if slot.kept is None:
            pooled = indices is not None and tensor.dtype == torch.int64
            slot.kept = _Kept(tensor.detach(), indices if pooled else None)
            slot.strided = None  # it comes back in its shape
    saved.clear()  # autograd holds the hook, and with it this list
    return y, output


def identity_of(tensor: Tensor) -> tuple[int, int]:
    """Return the storage of a tensor and how often it was changed, while the tensor is alive."""
    return tensor.untyped_storage()._cdata, tensor._version


class _Slot:
    """Stands for a tensor that autograd saves: its identity, its strides, and what is kept."""

    __slots__ = ("identity", "strided", "kept")

    def __init__(self, tensor: Tensor):
        self.identity, self.kept = identity_of(tensor), None
        self.strided = tensor.shape, tensor.stride(), tensor.storage_offset()

    def open(self) -> Tensor:
        """Return the tensor, decoded."""
        tensor = self.kept.decoded()
        return tensor if self.strided is None else tensor.as_strided(*self.strided)


class _Kept:
    """What is kept of a tensor: encoded parts, held by autograd, and what decodes them."""

    def __init__(self, tensor: Tensor, encoding: Encoding | None):
        with torch.no_grad():
            parts, self.decode = (tensor,), _only
            if encoding is not None:
                parts, self.decode = encoding(tensor)
        with torch.enable_grad():
            self.parts = saved(*parts)

    def decoded(self) -> Tensor:
        """Return the tensor that the parts stand for, flat where it was encoded flat."""
        with torch.no_grad():
            return self.decode(*self.parts.saved_tensors)


def _only(tensor: Tensor) -> Tensor:
    return tensor


def _refuse_changes(slot: _Slot, tensor: Tensor, block: nn.Module) -> None:
    if tensor._version != slot.identity[1]:
        raise RuntimeError(
            f"A {type(block).__name__} changes in place a tensor that it needs in backward. What "
            "is kept for backward is encoded after the block, so it must stay as it was."
        )
