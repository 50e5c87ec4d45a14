"""What one operation costs on a GPU: its FLOP and the bytes it moves, from the tensors it is given.

[Note: the roofline]
A GPU needs at least FLOP ÷ peak for the arithmetic and bytes ÷ memory bandwidth for the traffic,
and does both at once: the longer one is the time. FLOP are PyTorch's own count
(torch.utils.flop_counter: matrix products, convolutions, attention; two for each multiply-add); for
everything else the bytes decide. Bytes are what must be read once and written once: each tensor
given, each tensor made. A view moves nothing; an expanded dim is read once; a look-up reads the
rows it takes, not the table.

Attention under a causal mask counts whole, as in PyTorch's counter and in the published formulas
for the FLOP of a model (lib/predict/flops.py), though flash kernels skip about half of it. Each
prediction that is held against slow motion follows this rule. One that speaks of a kernel that
skips the masked half says so: `masked` of lib/predict/sequence/ring_step.py.
"""

import functools
from typing import NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, register_flop_formula, sdpa_flop_count

# Not kernels: communication has a lane of its own, the profiler only looks.
_ELSEWHERE = ("c10d", "_c10d_functional", "c10d_functional", "_dtensor", "profiler")
# Views and allocations that the schema does not call so, and what asks the host.
_FREE = {
    "_unsafe_view", "_reshape_alias", "lift", "lift_fresh", "empty", "empty_like", "empty_strided",
    "new_empty", "new_empty_strided", "set_", "resize_", "_local_scalar_dense", "is_same_size",
    "sym_size", "sym_stride", "sym_numel", "record_stream", "_has_compatible_shallow_copy_type",
    "_has_same_storage_numel",
}  # fmt: skip
# They do not read their first tensor: they overwrite it, or take only its shape.
_OVERWRITE = {
    "copy_", "zero_", "fill_", "normal_", "uniform_", "bernoulli_", "random_", "_foreach_copy_",
    "_foreach_zero_", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like",
    "new_zeros", "new_ones", "new_full",
}  # fmt: skip
# They read of their first tensor as many entries as this argument (None: the result) has.
_PICK = {
    "embedding": None, "index_select": None, "gather": None, "index": None, "take": None,
    "nll_loss_forward": 1,
}  # fmt: skip
# They add into, or write over, as many entries of their first tensor as this argument has.
_SCATTER = {"scatter_": 3, "scatter_add_": 3, "index_add_": 3, "index_copy_": 3, "index_put_": 2,
            "scatter": 3, "scatter_add": 3, "nll_loss_backward": 2}  # fmt: skip
# Optimizers of one kernel write gradients only where a scaler gives them a scale.
_SCALES_GRADIENTS = {"_fused_adam_", "_fused_adamw_", "_fused_sgd_"}


class Cost(NamedTuple):
    """What an operation takes: arithmetic in FLOP, memory traffic in bytes."""

    flop: int
    bytes: int


NOTHING = Cost(0, 0)


class _Facts(NamedTuple):
    """What the schema of an operation says once for all its calls."""

    name: str
    free: bool
    written: tuple[int | str, ...]  # arguments it changes: positions, or names of keywords
    makes: bool  # returns tensors of its own
    flop: object


class Tally(TorchDispatchMode):
    """Keep the Cost of every operation that runs inside: `with Tally() as tally: step()`.

    With `stand_ins` the costs are those of the large model's operations.
    """

    def __init__(self, stand_ins=None):
        super().__init__()
        self.costs: list[Cost] = []
        self.stand_ins = stand_ins

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.costs.append(cost(func, args, kwargs or {}, out, self.stand_ins))
        return out


def cost(func, args, kwargs, out, stand_ins=None) -> Cost:
    """Count FLOP and bytes of one call of an aten operation that gave back `out`.

    With `stand_ins` (stand_ins.py) they are those of the operation that this one stands for.
    """
    facts = _facts(func)
    if facts.free:
        return NOTHING
    if stand_ins is not None:
        args, kwargs, out = stand_ins.of(args, kwargs, out)
    flop = int(facts.flop(*args, **kwargs, out_val=out)) if facts.flop else 0
    if facts.name in _PICK or facts.name in _SCATTER:
        return Cost(flop, _part(facts.name, args, out))
    seen: dict[int, int] = {}
    for index, argument in enumerate(args):
        if index or facts.name not in _OVERWRITE:
            _add(argument, seen)
    for name, argument in kwargs.items():
        if name not in facts.written:
            _add(argument, seen)
    total = sum(seen.values())
    for where in facts.written:
        argument = kwargs.get(where) if isinstance(where, str) else args[where : where + 1]
        total += size_of(argument)
    if facts.makes:
        total += size_of(out)
    return Cost(flop, total)


@functools.cache
def _facts(func) -> _Facts:
    schema, name = func._schema, func._schema.name.split("::")[1]
    changed = [
        argument.name if argument.kwarg_only else index
        for index, argument in enumerate(schema.arguments)
        if argument.alias_info is not None
        and argument.alias_info.is_write
        and not (name in _SCALES_GRADIENTS and index == 1)
    ]
    aliases = [r.alias_info for r in schema.returns if r.alias_info is not None]
    view = bool(aliases) and not changed
    makes = any(r.alias_info is None for r in schema.returns)
    free = func.namespace in _ELSEWHERE or name in _FREE or view
    return _Facts(name, free, tuple(changed), makes, flop_registry.get(func._overloadpacket))


def _add(item, seen: dict[int, int]) -> None:
    """Count the tensors in `item`, each once however often it is given."""
    if isinstance(item, torch.Tensor):
        seen[id(item)] = size_of(item)
    elif isinstance(item, list | tuple):
        for part in item:
            _add(part, seen)


def size_of(item) -> int:
    """Give the bytes of a tensor, or of all tensors in a list; an expanded dim counts once."""
    if isinstance(item, torch.Tensor):
        numel = 1
        for size, stride in zip(item.shape, item.stride()):
            numel *= size if stride or not size else 1
        return numel * item.element_size()
    if isinstance(item, list | tuple):
        return sum(size_of(part) for part in item)
    return 0


def _part(name: str, args, out) -> int:
    """Count an operation that touches only a part of its first tensor."""
    rest = size_of(args[1:])
    if name in _PICK:
        which = out if _PICK[name] is None else args[_PICK[name]]
        picked = which.numel() * args[0].element_size()
        return picked + rest + size_of(out)
    if name == "nll_loss_backward":
        return size_of(out) + rest
    into = size_of(args[_SCATTER[name]]) if len(args) > _SCATTER[name] else size_of(args[0])
    if name.endswith("_"):
        return rest + 2 * into
    return size_of(args[0]) + rest + size_of(out) + into


def _attention(q, k, v, *args, out_shape=None, **kwargs) -> int:
    return sdpa_flop_count(q, k, v)


def _attention_backward(gradient, q, k, v, *args, out_shape=None, **kwargs) -> int:
    # Five products where the forward has two: the scores anew, then dV, dP, dQ, dK.
    return sdpa_flop_count(q, k, v) * 5 // 2


def _grouped(a, b, *args, out_shape=None, **kwargs) -> int:
    # Each row of one meets one matrix of the other, or each column one row.
    return 2 * a[0] * a[1] * b[-1]


# PyTorch counts the CUDA kernels of attention, and leaves out the one for the CPU and grouped_mm.
for _name, _formula in (
    ("_grouped_mm", _grouped),
    ("_scaled_dot_product_flash_attention_for_cpu", _attention),
    ("_scaled_dot_product_flash_attention_for_cpu_backward", _attention_backward),
):
    if (_packet := getattr(torch.ops.aten, _name, None)) and _packet not in flop_registry:
        register_flop_formula(_packet)(_formula)
