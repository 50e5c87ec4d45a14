"""Forgets what a function keeps for backward, and computes it again when backward asks for it.

    forward    inputs ──> function ──> outputs        only the inputs are kept
    backward   inputs ──> function again ──> what autograd had saved ──> gradients

[Note: how it is forgotten]
Autograd saves tensors during forward. A hook (torch.autograd.graph.saved_tensors_hooks) puts a `_Slot`
in the place of each, which knows its number and holds nothing. The first slot that backward opens runs the
function once more, in which another hook catches the tensors by their numbers and fills all slots that
are still there. The run stops at the last number that is needed: what comes after it saves nothing.

[Note: checkpoints inside checkpoints]
The inputs are kept by an operation of autograd (`saved`), so a checkpoint around this one forgets them
too, and gives them when this one asks.

[Note: kept operations]
With `keep`, the results of chosen operations stay: the first run notes them in their order, and the
second takes them from there and does not compute them (selective recomputation). They are held outside
of autograd, so a checkpoint around this one does not forget them.

Source: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost" (arXiv 1604.06174); the
hooks are PyTorch's, whose own non-reentrant checkpoint works alike.
"""  # noqa: E501

import weakref
from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_flatten, tree_unflatten

from lib.single.recompute.kept_operations import Keeping, Rule
from lib.single.recompute.saved import saved
from lib.single.recompute.second_forward import Caught, Difference, facts_of
from lib.single.recompute.surroundings import Surroundings


def checkpoint(
    function: Callable, *inputs, keep: Rule | None = None, random: bool = True, **keywords
):
    """Return function(*inputs, **keywords), and keep only the inputs for backward.

    Tensors among the inputs, also in lists and dicts, get their gradients. With `random`, the
    second run draws the same random numbers, also from every generator given to `repeated`.
    `keep(operation)` chooses operations, such as torch.ops.aten.mm.default, whose results are kept
    and not computed again. In backward RuntimeError says where the second run differs from the
    first.
    """
    if not torch.is_grad_enabled():
        return function(*inputs, **keywords)
    region = _Region(function, inputs, keywords, keep, random)
    with saved_tensors_hooks(region.forget, region.remember), region.first():
        return function(*inputs, **keywords)


class _Slot:
    """Stands for a tensor that autograd saves: its number, and the tensor once it is back."""

    __slots__ = ("number", "facts", "value", "__weakref__")

    def __init__(self, number: int, tensor: Tensor):
        self.number, self.facts, self.value = number, facts_of(tensor), None


class _Region:
    """One call of a function: what it needs to run again, and the slots of what it had saved."""

    def __init__(self, function, inputs, keywords, keep, random):
        leaves, self.form = tree_flatten((inputs, keywords))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        self.function = function
        self.needs = [t.requires_grad for t in tensors]
        self.others = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self.places = [n for n, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        self.surroundings = Surroundings(tensors, random)
        self.keeping = None if keep is None else Keeping(keep)
        self.inputs = saved(*tensors)
        self.slots: list[weakref.ref] = []

    def first(self):
        """Return the context of the first run."""
        return nullcontext() if self.keeping is None else self.keeping.noting()

    def forget(self, tensor: Tensor) -> _Slot:
        """Take a slot in place of a tensor that autograd saves."""
        slot = _Slot(len(self.slots), tensor)
        self.slots.append(weakref.ref(slot))
        return slot

    def remember(self, slot: _Slot) -> Tensor:
        """Return the tensor of a slot; the first one that is asked for runs the function again."""
        if slot.value is None:
            self._run_again()
        value, slot.value = slot.value, None
        return value

    def _run_again(self) -> None:
        wanted = {slot.number: slot for slot in (ref() for ref in self.slots) if slot is not None}
        caught = Caught(wanted, len(self.slots))
        try:
            with caught.catching():
                self._second()
            caught.complete()
        except Difference as difference:
            difference.explain(self._second, wanted, len(self.slots))

    def _second(self) -> None:
        """Run the function on its inputs, with a graph of its own."""
        tensors = [
            t.detach().requires_grad_(needs)
            for t, needs in zip(self.inputs.saved_tensors, self.needs)
        ]
        leaves = list(self.others)
        for place, tensor in zip(self.places, tensors):
            leaves[place] = tensor
        inputs, keywords = tree_unflatten(leaves, self.form)
        with torch.enable_grad(), self.surroundings.again():
            if self.keeping is None:
                self.function(*inputs, **keywords)
            else:
                with self.keeping.reusing():
                    self.function(*inputs, **keywords)
