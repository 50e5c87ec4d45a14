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

from lib.ranks.mesh import mesh
from tests.parallel.tensor import models
from tests.parallel.tensor.steps import batches, differences, spread, trained


def dtensor(model, device_mesh):
    """Split a plain GPT as PyTorch does it, by modules."""
    plan = {"blocks.0.tokens": RowwiseParallel(input_layouts=Replicate()),
            f"blocks.{len(model) - 1}.linear": ColwiseParallel(output_layouts=Shard(-1),
                                                               use_local_output=False)}  # fmt: skip
    for n in range(1, len(model) - 1):
        plan |= {
            f"blocks.{n}.attention.qkv": ColwiseParallel(),
            f"blocks.{n}.attention.proj": RowwiseParallel(),
            f"blocks.{n}.mlp.up": ColwiseParallel(),
            f"blocks.{n}.mlp.down": RowwiseParallel(),
        }
    return parallelize_module(model, device_mesh, plan)


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def theirs(name, ranks):
    model = dtensor(models.gpt(name), mesh(tp=ranks).torch())
    loss = lambda logits, targets: torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), targets.flatten()
    )
    with loss_parallel():
        found = trained(model, batches(model.shape.vocabulary), loss)
    found["logits"] = [whole(one) for one in found["logits"]]
    gradients = {n: whole(p.grad) for n, p in model.named_parameters()}
    return found | {"gradients": gradients, "weights": {n: whole(t) for n, t in
                                                        model.state_dict().items()}}  # fmt: skip


@pytest.mark.parametrize("name", ["plain", "two keys"])
def test_a_step_is_dtensors(worlds, name):
    expected = worlds(2).run(theirs, name, 2)[0]
    found = differences(worlds(2).run(spread, name), expected)
    assert max(found.values()) < 1e-10, found
