"""Megatron's sequence parallelism as a plan of PyTorch's `parallelize_module`, beside ours."""

from dataclasses import replace
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.functional import cross_entropy

from lib.course import plain_gpt
from lib.course.sequence_parallel import lessons
from lib.parallel.tensor import plain_gradients, sequence_parallel, vocab_parallel_cross_entropy
from lib.ranks.mesh import mesh
from lib.single import GPT

# A plan splits the tokens and no positions, so learned ones would not fit to a rank's tokens.
SHAPE = replace(lessons.SHAPE, positions="rotary")


def split(model: nn.Module, device_mesh) -> nn.Module:
    """Split a plain GPT with rotary positions: matrices by `tp`, and tokens between them."""
    column = partial(ColwiseParallel, input_layouts=Shard(1))
    row = partial(RowwiseParallel, output_layouts=Shard(1))
    last = len(model) - 1
    plan = {
        "blocks.0.tokens": row(input_layouts=Replicate()),
        f"blocks.{last}.norm": SequenceParallel(),
        f"blocks.{last}.linear": column(output_layouts=Shard(-1), use_local_output=False),
    }
    for n in range(1, last):
        block = f"blocks.{n}"
        plan |= {f"{block}.norm1": SequenceParallel(), f"{block}.norm2": SequenceParallel()}
        plan |= {f"{block}.attention.qkv": column(), f"{block}.attention.proj": row()}
        plan |= {f"{block}.mlp.up": column(), f"{block}.mlp.down": row()}
    return parallelize_module(model, device_mesh, plan)


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def ours_and_plan() -> list[bool]:
    """Run a step of ours and one of PyTorch's plan, each after a barrier, forward and backward.

    Returns whether the losses are the same, and whether all gradients are. Each gradient is
    gathered after the last barrier, and where it is a partial sum it is added up there.
    """
    tokens, targets = plain_gpt.batch(SHAPE, lessons.SAMPLES)
    ours = sequence_parallel(_plain())
    theirs = split(_plain(), mesh(tp=dist.get_world_size()).torch())
    dist.barrier()
    loss = vocab_parallel_cross_entropy(ours(tokens), targets)
    loss.backward()
    dist.barrier()
    with loss_parallel():
        their_loss = cross_entropy(theirs(tokens).flatten(0, 1), targets.flatten())
        their_loss.backward()
    dist.barrier()
    gradients = plain_gradients(ours)
    same = [
        torch.allclose(_whole(p.grad), gradients[name]) for name, p in theirs.named_parameters()
    ]
    return [torch.allclose(_whole(their_loss), loss), all(same)]


def _plain() -> GPT:
    """Return the plain GPT, the same on every rank."""
    torch.manual_seed(0)
    return GPT(SHAPE).double()
