"""A chain of blocks that runs by a plan of recomputation, and what its blocks keep and take."""

import functools
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from statistics import median

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from lib.predict.recompute.budget import best
from lib.predict.recompute.plan import BlockCost, Plan, checked, every, none, square_root
from lib.single.models import Chain
from lib.single.recompute.checkpoint import checkpoint
from lib.single.recompute.kept_operations import Rule

POLICIES = ("none", "all", "sqrt", "selective")
CHOICES = (
    f"Choose {', '.join(POLICIES)}, a number of blocks in each checkpoint, or a Plan, such as "
    "(0, (1, 2), 3)"
)


def recompute(
    model: nn.Module, policy: str | int | Plan, keep: Rule | None = None,
    *, around: Callable[[], AbstractContextManager] = nullcontext,
) -> nn.Module:  # fmt: skip
    """Let a chain forget by a policy what its blocks keep, in place, and return it.

    The model is a `Chain`, such as GPT, or an `nn.Sequential`. The policy is "none", "all" (each
    block forgets), "sqrt" (a checkpoint around each √n blocks), "selective" (only what lies between
    q, k, v and the result of each attention is forgotten, its scores among it), a number k of
    blocks in each checkpoint, or a Plan (lib/predict/recompute/plan.py). `keep` chooses operations
    whose results every checkpoint keeps. Each checkpoint is made inside `around()`, whose hooks see
    the input that it keeps. Names and weights of the model stay. A slice of it is another chain,
    to which only "selective" applies: of a pipeline give each stage. Raises TypeError for a model
    that is no chain, and ValueError for a policy that does not fit.
    """
    blocks = blocks_of(model)
    attentions = [module for module in model.modules() if callable(getattr(module, "core", None))]
    if policy == "selective" and not attentions:
        raise ValueError(
            "The policy 'selective' forgets the scores of attention, and this "
            f"{type(model).__name__} has no attention with a `core`. {CHOICES}."
        )
    plan = none(len(blocks)) if policy == "selective" else _plan(policy, len(blocks))
    for attention in attentions:
        core = getattr(attention.core, "forgets", attention.core)
        attention.core = _Forgetful(core, keep, around) if policy == "selective" else core
    model.forward = functools.partial(_run, model, plan, keep, around)
    return model


class _Forgetful:
    """Calls the core of an attention, which it `forgets`, in a checkpoint."""

    def __init__(self, core: Callable, keep: Rule | None, around):
        self.forgets, self.keep, self.around = core, keep, around

    def __call__(self, *inputs):
        with self.around():
            return checkpoint(self.forgets, *inputs, keep=self.keep)


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """Return the blocks of a chain in their order; raise TypeError for a model that is none."""
    if isinstance(model, Chain):
        return list(model.blocks.values())
    if isinstance(model, nn.Sequential):
        return list(model)
    raise TypeError(
        f"A {type(model).__name__} is no chain of blocks. Give a Chain, such as GPT, or an "
        "nn.Sequential; elsewhere call `checkpoint` around what shall be forgotten."
    )


def _plan(policy, blocks: int) -> Plan:
    if isinstance(policy, tuple):
        return checked(policy, blocks)
    if isinstance(policy, int) and not isinstance(policy, bool):
        return every(blocks, policy)
    plans = {"none": none, "all": lambda n: every(n, 1), "sqrt": square_root}
    if policy not in plans:
        raise ValueError(f"No policy is called {policy!r}. {CHOICES}.")
    return plans[policy](blocks)


def _run(model: nn.Module, plan: Plan, keep, around, x: Tensor) -> Tensor:
    return _items(plan, blocks_of(model), keep, around, x)


def _items(items: Plan, blocks: list[nn.Module], keep, around, x: Tensor) -> Tensor:
    for item in items:
        if isinstance(item, tuple):
            with around():
                inner = functools.partial(_items, item, blocks, keep, nullcontext)
                x = checkpoint(inner, x, keep=keep)
        else:
            x = blocks[item](x)
    return x


def block_costs(
    model: nn.Module, x: Tensor, seconds: Sequence[float] | None = None, repeats: int = 5
) -> list[BlockCost]:
    """Return what each block of a chain keeps for x and how long its forward takes.

    Bytes are those of the storages that autograd saves in a block, each once, without parameters,
    buffers and the block's input and output. `seconds` are measured by the clock unless given.
    """
    weights = {_place(t) for t in (*model.parameters(), *model.buffers())}
    costs = []
    for number, block in enumerate(blocks_of(model)):
        x = x.detach().requires_grad_(x.is_floating_point())
        kept, y = _kept(block, x)
        inside = sum(
            n for place, n in kept.items() if place not in weights | {_place(x), _place(y)}
        )
        taken = _timed(block, x, repeats) if seconds is None else seconds[number]
        costs.append(BlockCost(x.untyped_storage().nbytes(), inside, taken))
        x = y
    return costs


def kept_bytes(model: nn.Module, x: Tensor) -> int:
    """Return the bytes that autograd keeps for backward after model(x), each storage once.

    Parameters, buffers and the samples x are not counted.
    """
    others = {_place(t) for t in (x, *model.parameters(), *model.buffers())}
    return sum(nbytes for place, nbytes in _kept(model, x)[0].items() if place not in others)


def best_plan(
    model: nn.Module, x: Tensor, budget: float, seconds: Sequence[float] | None = None
) -> Plan:
    """Return the plan that computes least again for x, if activations may hold `budget` bytes.

    Blocks are measured as `block_costs` does, and the plan is `best` of lib.predict.recompute: each
    block runs at most once again. Raises ValueError for a budget that no such plan meets.
    """
    return best(block_costs(model, x, seconds), budget)


def _kept(block: Callable, x: Tensor) -> tuple[dict[int, int], Tensor]:
    """Return what autograd keeps of a call, storage -> bytes, and the result."""
    kept: dict[int, int] = {}
    storages = []  # none is freed while others are counted, so no two have the same place

    def note(t):
        storages.append(t.untyped_storage())
        kept[_place(t)] = t.untyped_storage().nbytes()
        return t

    with saved_tensors_hooks(note, lambda t: t):
        return kept, block(x)


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _timed(block: nn.Module, x: Tensor, repeats: int) -> float:
    """Return the median seconds of a forward, after one that is not counted."""
    taken = []
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        block(x)
        if x.device.type != "cpu":
            torch.get_device_module(x.device).synchronize()
        taken.append(time.perf_counter() - begin)
    return median(taken[1:])
