"""The same model through PyTorch's parallelize_module: the same losses, gradients and weights."""

import pytest
import torch
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)

from lib.course.sequence_parallel import plan
from lib.parallel.tensor import sequence_parallel
from lib.ranks.mesh import mesh
from tests.parallel.tensor import models
from tests.parallel.tensor.steps import batches, differences, spread, trained


def dtensor(model, device_mesh, sequence=False):
    """Split a plain GPT as PyTorch does it, by modules; sequences too, if positions are rotary."""
    if sequence:
        return plan.split(model, device_mesh)
    last = f"blocks.{len(model) - 1}"
    modules = {
        "blocks.0.tokens": RowwiseParallel(input_layouts=Replicate()),
        f"{last}.linear": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
    }
    for n in range(1, len(model) - 1):
        modules |= {
            f"blocks.{n}.attention.qkv": ColwiseParallel(),
            f"blocks.{n}.attention.proj": RowwiseParallel(),
            f"blocks.{n}.mlp.up": ColwiseParallel(),
            f"blocks.{n}.mlp.down": RowwiseParallel(),
        }
    return parallelize_module(model, device_mesh, modules)


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def theirs(name, ranks, sequence=False):
    model = dtensor(models.gpt(name), mesh(tp=ranks).torch(), sequence)
    loss = lambda logits, targets: torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), targets.flatten()
    )
    with loss_parallel():
        found = trained(model, batches(model.shape.vocabulary), loss)
    found["logits"] = [whole(one) for one in found["logits"]]
    gradients = {n: whole(p.grad) for n, p in model.named_parameters()}
    return found | {"gradients": gradients, "weights": {n: whole(t) for n, t in
                                                        model.state_dict().items()}}  # fmt: skip


@pytest.mark.parametrize(("name", "ranks"), [("plain", 2), ("two keys", 2), ("plain", 4)])
def test_a_step_is_dtensors(worlds, name, ranks):
    expected = worlds(ranks).run(theirs, name, ranks)[0]
    found = differences(worlds(ranks).run(spread, name), expected)
    assert max(found.values()) < 1e-10, found


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_step_on_split_sequences_is_dtensors(worlds, ranks):
    expected = worlds(ranks).run(theirs, "rotary", ranks, True)[0]
    found = differences(worlds(ranks).run(spread, "rotary", sequence_parallel), expected)
    assert max(found.values()) < 1e-10, found
