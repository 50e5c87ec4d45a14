"""PyTorch's optimizers on parameters that PyTorch's FSDP2 (`fully_shard`) has cut by rows.

FSDP2 makes each parameter a DTensor [N/p, M], which knows that it is a part of [N, M]. An optimizer
that looks at rows, columns or whole matrices is right if all its operations are right for DTensors.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.optim import Optimizer

from lib.course.lean_optimizers.sharded import apart, gpt
from lib.course.lean_optimizers.training import SAMPLES, SHAPE
from lib.single import Batches, next_token_loss, share
from lib.single.optimizers.muon import hidden_matrices

NAMES = ("AdamW", "Adafactor", "Muon")
STEPS, RATE = 3, 0.01


def weights_of(name: str, sharded: bool) -> dict[str, Tensor]:
    """Return what an optimizer of torch.optim makes of the small GPT's weights, under FSDP2 or not.

    Raises RuntimeError where an operation of the optimizer does not work on DTensors.
    """
    model, part = gpt(), lambda batch: batch
    hidden = hidden_matrices(model)
    if sharded:
        ranks = dist.get_world_size()
        kind = next(model.parameters()).device.type
        fully_shard(model, mesh=init_device_mesh(kind, (ranks,)))
        part = lambda batch: share(batch, dist.get_rank(), ranks)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if name == "Muon":
        trained = {name: p for name, p in trained.items() if name in hidden}
    optimizer: Optimizer = getattr(torch.optim, name)(trained.values(), lr=RATE)
    batches = Batches(SAMPLES, SHAPE.sequence)
    for step in range(STEPS):
        inputs, targets = map(part, batches[step])
        model.zero_grad()
        next_token_loss(model(inputs), targets).backward()
        optimizer.step()
    whole = {name: p.full_tensor() if sharded else p for name, p in trained.items()}
    return {name: p.detach().cpu() for name, p in whole.items()}


def on_ranks(name: str) -> dict[str, Tensor] | str:
    """Return the weights of `weights_of` under FSDP2, or the name of the error that it raises."""
    try:
        return weights_of(name, sharded=True)
    except RuntimeError as error:
        return type(error).__name__


def table(world) -> str:
    """Write for each optimizer how far its weights under FSDP2 are from those of one device."""
    lines = [f"{'torch.optim':<13}under fully_shard"]
    for name in NAMES:
        weights = world.run(on_ranks, name)[0]
        words = weights
        if not isinstance(weights, str):
            words = in_words(apart(weights, weights_of(name, sharded=False)))
        lines.append(f"{name:<13}{words}")
    return "\n".join(lines)


def in_words(far: float) -> str:
    """Write a relative distance: rounding of float64, rounding of bfloat16, or the number."""
    return "equal" if far < 1e-9 else "equal within 2 %" if far < 0.02 else f"{far:.0e}"
