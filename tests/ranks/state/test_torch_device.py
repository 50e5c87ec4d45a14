"""Where PyTorch's own classes choose a device themselves, they choose that of the world."""

import torch
import torch.distributed as dist
from torch import nn

from tests.ranks.launched.test_launched import answers, srun

CHOICES = """
import json
import torch, torch.distributed as dist
torch._C._get_accelerator = lambda *_: torch.device("cuda")  # as on a machine with GPUs

from lib import World
from tests.ranks.state.test_torch_device import fsdp2

with World.from_torchrun(device="cpu") as world:
    print("ANSWER", json.dumps(fsdp2()))
assert torch._C._get_accelerator().type == "cuda", "after the world it is as it was"
assert torch.get_device_module() is torch.cuda
"""


def fsdp2():
    """One step of FSDP2 on a mesh that nobody has named: which devices, and the same gradients."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model, x = nn.Linear(4, 4, dtype=torch.float64), torch.randn(2, 4, dtype=torch.float64)
    model(x).square().sum().backward()
    expected = model.weight.grad.cpu()
    model.zero_grad()
    fully_shard(model)
    model(x).square().sum().backward()
    gradient = model.weight.grad.full_tensor().cpu()
    return [
        model.weight.device_mesh.device_type,
        model.weight.grad.to_local().device.type,
        torch.get_device_module().__name__,
        round((gradient - expected).abs().max().item(), 13),
    ]


def objects():
    """PyTorch's collectives of objects, and its barriers."""
    rank, size = dist.get_rank(), dist.get_world_size()
    gathered, sent = [None] * size, [f"from {rank}"]
    dist.all_gather_object(gathered, {"rank": rank})
    dist.broadcast_object_list(sent, 1)
    if rank == 0:
        dist.send_object_list(["hello"], 1)
    elif rank == 1:
        dist.recv_object_list(received := [None], 0)
        assert received == ["hello"]
    dist.barrier()
    return [item["rank"] for item in gathered], sent


def test_fsdp2_takes_the_cpu_in_a_world_on_the_cpu_where_there_are_gpus(tmp_path):
    chosen = ["cpu", "cpu", "torch.cpu", 0.0]
    assert answers(srun(tmp_path, CHOICES, 2)) == [chosen] * 2


def test_fsdp2_takes_the_device_of_its_world(worlds):
    """On the CPU of a machine without GPUs this cannot fail; where there are GPUs it can."""
    kind = worlds(2).device
    chosen = [kind, kind, torch.get_device_module(kind).__name__, 0.0]
    assert worlds(2).run(fsdp2) == [chosen] * 2


def test_objects_travel(worlds):
    assert worlds(2).run(objects) == [([0, 1], ["from 1"])] * 2


def meshes(kind):
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

    grid = init_device_mesh(kind, (2, 2), mesh_dim_names=("dp", "tp"))
    whole = torch.arange(8.0).view(4, 2).to(kind)
    spread = distribute_tensor(whole, grid, [Shard(0), Shard(1)])
    model = nn.parallel.DistributedDataParallel(nn.Linear(2, 1))
    model(torch.ones(1, 2)).sum().backward()
    device = model.module.weight.grad.device.type
    return spread.to_local().device.type, torch.equal(spread.full_tensor(), whole), device


def test_meshes_dtensors_and_ddp_stay_on_the_device_of_their_world(worlds):
    kind = worlds(4).device
    assert worlds(4).run(meshes, kind) == [(kind, True, kind)] * 4
