"""Activations in the host's memory: no bit of a gradient changes, and bytes are as predicted."""

import copy
import gc

import pytest
import torch
from torch import nn

from lib.predict.recompute.offload import offload_use
from lib.predict.shape import GPTShape, MLPShape
from lib.predict.sharded.offload import HostSpeeds
from lib.ranks.memory import Memory
from lib.single import GPT, MLP
from lib.single.convnet import ConvNet
from lib.single.host_memory import HostMemory
from lib.single.recompute import block_costs
from lib.single.recompute.offload import offload_activations
from tests.every import every

SMALL = {"vocabulary": 40, "sequence": 16, "width": 32, "heads": 2, "layers": 3, "hidden": 64}
HOST = HostSpeeds(1e-6, 1e9, 1e9)


def drawn(*size):
    return torch.randn(*size, generator=torch.Generator("cpu").manual_seed(3), device="cpu")


def tokens():
    generator = torch.Generator("cpu").manual_seed(3)
    return torch.randint(40, (2, 16), generator=generator, device="cpu")


def frozen():
    model = GPT(GPTShape(**SMALL))
    for parameter in model.blocks["2"].parameters():
        parameter.requires_grad_(False)
    model.blocks["0"].tokens.weight.requires_grad_(False)
    return model


class Sum(nn.Module):
    """Adds a table, a buffer that backward needs, and multiplies by it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.ones(8, 8))

    def forward(self, x):
        return x @ self.table + x


MODELS = {
    "GPT": (lambda: GPT(GPTShape(**SMALL)), tokens),
    "tied": (lambda: GPT(GPTShape(**SMALL, tied=True)), tokens),
    "dropout": (lambda: GPT(GPTShape(**SMALL, dropout=0.1)), tokens),
    "rotary, two keys": (
        lambda: GPT(GPTShape(**SMALL | {"heads": 4}, kv_heads=2, positions="rotary")), tokens,
    ),
    "frozen": (frozen, tokens),
    "MLP": (lambda: MLP(MLPShape((8, 16, 24, 16, 4))), lambda: drawn(6, 8)),
    "ConvNet": (lambda: ConvNet((3, 8, 16, 8)), lambda: drawn(4, 3, 8, 8)),
    "buffers": (
        lambda: nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), Sum(), nn.Tanh(), Sum()),
        lambda: drawn(6, 8),
    ),
    "views": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(144, 8), nn.Tanh(),
            nn.Identity(), nn.Linear(8, 2),
        ), lambda: drawn(4, 3, 8, 8),
    ),
}  # fmt: skip
WAYS = [(1, 1), (0, 0), (2, 2), ({0, 2}, 1), ((), 7)]


def placed(name):
    make, batch = MODELS[name]
    torch.manual_seed(0)
    model = make()
    return model, batch().to(next(model.parameters()).device)


def steps(model, x, count=3):
    """The outputs, all gradients and the weights after some steps of SGD."""
    optimizer, seen = torch.optim.SGD(model.parameters(), lr=0.1), []
    torch.manual_seed(4)
    for _ in range(count):
        optimizer.zero_grad()
        y = model(x)
        y.square().mean().backward()
        seen += [y.detach(), *(p.grad for p in model.parameters() if p.requires_grad)]
        optimizer.step()
    return [*seen, *(p.detach() for p in model.parameters())]


def same(ours, theirs):
    return len(ours) == len(theirs) and every(torch.equal(a, b) for a, b in zip(ours, theirs))


@pytest.mark.parametrize(("keep", "ahead"), WAYS, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_no_bit_of_a_gradient_changes(name, keep, ahead):
    model, x = placed(name)
    expected = steps(copy.deepcopy(model), x)
    names, host = list(model.state_dict()), Counting()
    assert offload_activations(model, keep, ahead, host) is model
    assert same(steps(model, x), expected) and list(model.state_dict()) == names
    assert (host.moved["to_host"] > 0) is (ahead < 7)
    assert host.moved["to_device"] == host.moved["to_host"]


class Counting(HostMemory):
    """Adds up the bytes that are copied, and can leave the way back out."""

    def __init__(self, back=True):
        super().__init__()
        self.moved, self.back = {"to_host": 0, "to_device": 0}, back

    def together(self, op, pairs, after=()):
        self.moved[op] += sum(one.nbytes for one, _ in pairs)
        if op == "to_device" and not self.back:
            pairs = [(one, torch.zeros_like(other)) for one, other in pairs]
        return super().together(op, pairs, after)


@pytest.mark.parametrize("name", MODELS)
def test_without_the_way_back_it_does(name):
    model, x = placed(name)
    expected = steps(copy.deepcopy(model), x, 1)
    offload_activations(model, 0, 0, Counting(back=False))
    assert not same(steps(model, x, 1), expected)
