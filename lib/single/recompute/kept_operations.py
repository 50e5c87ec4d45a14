"""Operations whose results a checkpoint keeps, so that the second run does not compute them."""

import functools
from collections.abc import Callable, Collection

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

Rule = Callable[[object], bool]


def only(*operations) -> Rule:
    """Return the rule that keeps the results of these operations and of no other.

    An operation is given with its overload or without: torch.ops.aten.mm stands for all of its
    overloads.
    """
    chosen: Collection = set(operations)
    return lambda operation: operation in chosen or operation.overloadpacket in chosen


class Keeping:
    """Notes results of chosen operations in their order, and gives them in place of computing."""

    def __init__(self, rule: Rule):
        self.rule, self.results = rule, []
        self.chosen: dict[int, bool] = {}  # by identity: the hash of an operation is slow

    def has(self, operation) -> bool:
        """Return whether results of this operation are kept; those of views never are."""
        found = self.chosen.get(id(operation))
        if found is None:
            found = self.chosen[id(operation)] = _makes(operation) and bool(self.rule(operation))
        return found

    def noting(self) -> TorchDispatchMode:
        """Return the mode of the first run."""
        self.results = []
        return _Noting(self)

    def reusing(self) -> TorchDispatchMode:
        """Return the mode of a run that takes what was noted, once."""
        return _Reusing(self)


class _Mode(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else each operation goes through a wrapper of torch's compiler


class _Noting(_Mode):
    def __init__(self, keeping: Keeping):
        super().__init__()
        self.keeping = keeping

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if self.keeping.has(func):
            self.keeping.results.append((func, _alone(result), _versions(result)))
        return result


class _Reusing(_Mode):
    def __init__(self, keeping: Keeping):
        super().__init__()
        self.keeping, self.next = keeping, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if not self.keeping.has(func):
            return func(*args, **(kwargs or {}))
        if self.next == len(self.keeping.results) or self.keeping.results[self.next][0] != func:
            raise RuntimeError(
                f"A checkpointed function runs {func} again as kept operation {self.next}, which "
                "it did not do in forward. It must do the same both times."
            )
        _, result, versions = self.keeping.results[self.next]
        if _versions(result) != versions:
            raise RuntimeError(
                f"The result of {func}, which a checkpoint keeps, was changed in place after it "
                "was computed. Keep another operation, or do not change it in place."
            )
        self.next += 1
        return _alone(result)


def _versions(result) -> list[int]:
    """Return how often each tensor of a result was changed in place."""
    if isinstance(result, torch.Tensor):
        return [result._version]
    return [leaf._version for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]


@functools.cache
def _makes(operation) -> bool:
    """Return whether an operation makes new tensors; views and changes in place do not."""
    return all(returned.alias_info is None for returned in operation._schema.returns)


def _alone(result):
    """Return tensors that share the values of a result and its changes, but not its graph."""
    # Below autograd a view has a count of changes of its own, unless this key is there again.
    with torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.ADInplaceOrView, False):
        if isinstance(result, torch.Tensor):
            return result.detach()
        return tree_map_only(torch.Tensor, torch.Tensor.detach, result)
