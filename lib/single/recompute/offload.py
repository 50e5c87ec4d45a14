"""Activations in the host's memory: what blocks save goes there, and comes back before backward.

    forward    0 │ 1 │ 2 │ 3            backward   3 │ 2 │ 1 │ 0
    to host        0 │ 1 │ 2            to device  2 │ 1 │ 0            ahead = 1, block 3 is kept

[Note: when copies run]
The copy of a block's storages begins when its forward ends. The device waits for it when the block
`ahead` places later has ended, and then frees them. So forward has at most `ahead` + 1 blocks on
the device beside those that are kept, however slow the link is. Backward of a block asks for its
own storages, if they are not there, and for those of the `ahead` blocks that it comes to next.

[Note: whose a storage is]
The output of a block is the input of the next one, which most often saves it. So an output waits
for the end of that block, and goes or stays with it. So does any storage that both save.

Source: Rhu et al. 2016, "vDNN" (arXiv 1602.08124); Rajbhandari et al. 2021, "ZeRO-Infinity" (arXiv
2104.07857), which sends the inputs of checkpoints to the host.
"""

import functools
from collections.abc import Collection

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from lib.predict.recompute.offload import kept_blocks
from lib.predict.recompute.plan import Plan, checked, none
from lib.single.host_memory import HostMemory
from lib.single.recompute.chain import blocks_of
from lib.single.recompute.checkpoint import checkpoint
from lib.single.recompute.offloaded_run import OffloadedRun


def offload_activations(
    model: nn.Module, keep: int | Collection[int] = 1, ahead: int = 1,
    host: HostMemory | None = None, *, plan: Plan | None = None,
) -> nn.Module:  # fmt: skip
    """Let the blocks of a chain keep what backward needs in the host's memory; in place.

    The model, which is returned, is a `Chain`, such as GPT, or an `nn.Sequential`. `keep` is the
    number of last blocks that keep it on the device, or a collection of the numbers of blocks that
    do; the last `ahead` blocks always do, because backward needs them before a copy would be over.
    What was sent comes back while backward is `ahead` blocks before it. Parameters, buffers and the
    chain's output stay on the device. With a `plan` of recomputation each of its items counts as
    one block, and of a checkpoint only the input is sent. Names and weights of the model stay.

    Raises TypeError for a model that is no chain, and ValueError for blocks that it does not have
    and for a model whose forward something else, such as `recompute`, has replaced.
    """
    blocks, replaced = blocks_of(model), vars(model).get("forward")
    if replaced is not None and getattr(replaced, "func", None) is not _run:
        raise ValueError(
            f"The forward of this {type(model).__name__} has been replaced already, for example by "
            "`recompute`, and offload would undo that. Give the plan of recomputation to "
            "`offload_activations` as plan=..., and leave the model as it was."
        )
    plan = none(len(blocks)) if plan is None else checked(plan, len(blocks))
    staying = kept_blocks(len(plan), keep, ahead)
    model.forward = functools.partial(_run, model, plan, staying, ahead, host or HostMemory())
    return model


def _run(model: nn.Module, plan: Plan, staying, ahead: int, host: HostMemory, x: Tensor) -> Tensor:
    """Run the chain; each item of the plan saves through hooks of its own."""
    blocks = blocks_of(model)
    run = OffloadedRun(host, staying, ahead, len(plan), _storages_of(model), x.device)
    for number, item in enumerate(plan):
        with saved_tensors_hooks(*run.hooks(number)):
            x = _item(item, blocks, x)
        run.end(number, x)
    return x


def _item(item, blocks: list[nn.Module], x: Tensor) -> Tensor:
    if isinstance(item, tuple):
        return checkpoint(functools.partial(_items, item, blocks), x)
    return blocks[item](x)


def _items(items: Plan, blocks: list[nn.Module], x: Tensor) -> Tensor:
    for item in items:
        x = _item(item, blocks, x)
    return x


def _storages_of(model: nn.Module) -> set[int]:
    kept = (*model.parameters(), *model.buffers())
    return {tensor.untyped_storage()._cdata for tensor in kept}
