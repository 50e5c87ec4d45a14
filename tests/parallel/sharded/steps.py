"""The same training steps, plain and with each stage, and what is compared afterwards."""

import copy

import torch
import torch.distributed as dist

from lib.parallel.data import DistributedDataParallel
from lib.parallel.sharded import FSDP, ShardedDataParallel, ZeroRedundancyOptimizer
from lib.single import share


def sgd(parameters):
    return torch.optim.SGD(parameters, 0.1, momentum=0.9)


def plain(kind, steps=2, make=sgd):
    """Train on one device; outputs, input gradient, gradients and weights of the last step."""
    torch.manual_seed(0)
    model = kind().double()
    optimizer = make(model.parameters())
    for n in range(steps):
        found = step(model, optimizer, model.batch(n), model.loss)
    found["gradients"] = {
        name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()
    }
    return found | {"weights": state_of(model)}


def step(model, optimizer, batch, loss):
    x, y = batch
    x = x.detach().requires_grad_(x.is_floating_point())
    optimizer.zero_grad()
    outputs = model(x)
    loss(outputs, y).backward()
    optimizer.step()
    return {"outputs": outputs.detach(), "input": x.grad}


def state_of(model):
    return {name: value.clone() for name, value in copy.copy(model.state_dict()).items()}


def ruined(kind):
    """A model whose weights on all ranks but the first must not matter."""
    torch.manual_seed(0)
    model = kind().double()
    for parameter in model.parameters():
        parameter.data.add_(dist.get_rank())
    return model


def fsdp(kind, steps=2, options=None, make=sgd):
    model = ruined(kind)
    spread = FSDP(model, **(options or {}))
    optimizer = make(spread.parameters())
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for n in range(steps):
        found = step(spread, optimizer, share(model.batch(n), rank, ranks), model.loss)
    return found | {"gradients": spread.full_gradients(), "weights": spread.full_state_dict()}


def zero1(kind, steps=2, bucket_bytes=300):
    model = ruined(kind)
    spread = DistributedDataParallel(model, find_unused=True)
    momentum = {"lr": 0.1, "momentum": 0.9}
    optimizer = ZeroRedundancyOptimizer(
        spread.parameters(), torch.optim.SGD, bucket_bytes=bucket_bytes, **momentum
    )
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for n in range(steps):
        found = step(spread, optimizer, share(model.batch(n), rank, ranks), model.loss)
    gradients = {n: None if p.grad is None else p.grad.clone() for n, p in model.named_parameters()}
    return found | {"gradients": gradients, "weights": state_of(model)}


def zero2(kind, steps=2, bucket_bytes=300):
    model = ruined(kind)
    spread = ShardedDataParallel(model, bucket_bytes=bucket_bytes)
    optimizer = ZeroRedundancyOptimizer(spread, torch.optim.SGD, lr=0.1, momentum=0.9)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for n in range(steps):
        found = step(spread, optimizer, share(model.batch(n), rank, ranks), model.loss)
    return found | {"gradients": gathered(spread), "weights": state_of(model)}


def gathered(spread):
    """Gather the whole gradients of a ShardedDataParallel; None where no rank has a part of one."""
    found = {}
    for bucket in spread.flats:
        present = torch.tensor([g is not None for g in bucket.gradients], dtype=torch.int32)
        dist.all_reduce(present)
        shard = torch.zeros_like(bucket.share)
        for piece, gradient in zip(bucket.layout.pieces(shard, bucket.rank), bucket.gradients):
            if gradient is not None:
                piece.copy_(gradient)
        whole = torch.empty_like(bucket.flat)
        dist.all_gather_single(whole, shard)
        views = bucket.layout.views(whole)
        for parameter, view, count in zip(bucket.parameters, views, present.tolist()):
            found[id(parameter)] = view if count else None
    return {name: found.get(id(p)) for name, p in spread.module.named_parameters()}


def differences(parts, truth):
    """Relative distances from the plain run of every tensor on every rank, by name."""
    found = {"outputs": far(torch.cat([part["outputs"] for part in parts]), truth["outputs"])}
    if truth["input"] is not None:  # the mean over B/dp samples is dp times as steep as that over B
        whole = torch.cat([part["input"] for part in parts]) / len(parts)
        found["input"] = far(whole, truth["input"])
    for rank, part in enumerate(parts):
        for what in ("gradients", "weights"):
            for name, value in part[what].items():
                expected = truth[what][name]
                assert (value is None) == (expected is None), f"{what} of {name}"
                if value is not None:
                    found[f"{what} of {name}, rank {rank}"] = far(value, expected)
        assert part["weights"].keys() == truth["weights"].keys()
    return found


def far(a, b):
    assert a.shape == b.shape and a.dtype == b.dtype
    a, b = a.double(), b.double()
    return ((a - b).norm() / b.norm().clamp(min=1e-30)).item()
