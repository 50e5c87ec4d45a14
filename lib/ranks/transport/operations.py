"""PyTorch's operations, torch.ops.aten.mm and their like, travel as their names."""

import functools

import torch
from torch._ops import OpOverload, OpOverloadPacket, _OpNamespace, _Ops


def by_name(item) -> tuple | None:
    """Return how pickle makes an operation, or a namespace of them, again; None for all else."""
    if isinstance(item, OpOverload):
        return _found, (*item._schema.name.split("::"), item._overloadname)
    if isinstance(item, OpOverloadPacket):
        return _found, tuple(item._qualified_op_name.split("::"))
    if isinstance(item, _OpNamespace):
        return _found, (item.name,)
    return (_found, ()) if isinstance(item, _Ops) else None


def _found(*names: str):
    return functools.reduce(getattr, names, torch.ops)
