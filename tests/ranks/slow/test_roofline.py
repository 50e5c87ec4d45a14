"""FLOP and bytes of single operations, each by its own arithmetic."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from lib.ranks.slow import roofline


class Counted(TorchDispatchMode):
    """Add up what `cost` says of every operation inside."""

    def __init__(self):
        super().__init__()
        self.by_name: dict[str, roofline.Cost] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        found = roofline.cost(func, args, kwargs or {}, out)
        name = func._overloadpacket.__name__
        old = self.by_name.get(name, roofline.NOTHING)
        self.by_name[name] = roofline.Cost(old.flop + found.flop, old.bytes + found.bytes)
        return out


A, B = torch.ones(4, 8), torch.ones(8, 16)
IDS, TABLE = torch.tensor([1, 2, 2]), torch.ones(1000, 8)
LIST = [torch.ones(10), torch.ones(20)]
TWO, ENDS = torch.ones(2, 8, 16), torch.tensor([1, 4], dtype=torch.int32)


@pytest.mark.parametrize(
    "operation, name, flop, nbytes",
    [
        (lambda: A @ B, "mm", 2 * 4 * 8 * 16, 4 * (32 + 128 + 64)),
        (lambda: A.half() @ B.half(), "mm", 1024, 2 * (32 + 128 + 64)),
        (lambda: torch.addmm(torch.ones(16), A, B), "addmm", 1024, 4 * (16 + 32 + 128 + 64)),
        (lambda: A + A, "add", 0, 4 * (32 + 32)),  # one tensor, read once
        (lambda: A + A.clone(), "add", 0, 4 * 96),
        (lambda: torch.add(A, 1, out=torch.empty(4, 8)), "add", 0, 4 * 64),
        (lambda: A.clone().add_(1), "add_", 0, 4 * 64),
        (lambda: A.clone().mul_(A), "mul_", 0, 4 * 96),
        (lambda: A.clone().copy_(torch.ones(8)), "copy_", 0, 4 * (8 + 32)),
        (lambda: A.clone().zero_(), "zero_", 0, 4 * 32),
        (lambda: torch.zeros_like(A), "zeros_like", 0, 4 * 32),
        (lambda: torch.ones(8).expand(4, 8) + A, "add", 0, 4 * (8 + 32 + 32)),
        (lambda: A.view(8, 4).t()[1:].unsqueeze(0), "view", 0, 0),
        (lambda: torch.empty(1000), "empty", 0, 0),
        (lambda: nn.functional.embedding(IDS, TABLE), "embedding", 0, 4 * 48 + 8 * 3),
        (lambda: TABLE[IDS], "index", 0, 4 * 48 + 8 * 3),
        (lambda: torch._foreach_add_(LIST, LIST), "_foreach_add_", 0, 4 * 60),
        (lambda: torch._foreach_mul(LIST, 2.0), "_foreach_mul", 0, 4 * 60),
        (lambda: nn.Conv2d(2, 3, 3)(torch.ones(1, 2, 8, 8)), "convolution",
         2 * 3 * 2 * 9 * 36, 4 * (128 + 54 + 3 + 108)),
        (lambda: nn.functional.grouped_mm(A, TWO, offs=ENDS), "_grouped_mm",
         2 * 4 * 8 * 16, 4 * (32 + 256 + 64 + 2)),
        (lambda: nn.functional.grouped_mm(A.T, A[:, :4], offs=ENDS), "_grouped_mm",
         2 * 8 * 4 * 4, 4 * (32 + 16 + 64 + 2)),
    ],
)  # fmt: skip
def test_one_operation(operation, name, flop, nbytes):
    with Counted() as counted:
        operation()
    assert counted.by_name[name] == (flop, nbytes)


def test_backward_costs_twice_the_forward():
    layer, x = nn.Linear(64, 64, bias=False), torch.ones(32, 64, requires_grad=True)
    with Counted() as counted:
        out = layer(x)
        forward = counted.by_name["mm"]
        out.sum().backward()
    assert forward.flop == 2 * 32 * 64 * 64
    assert counted.by_name["mm"].flop == 3 * forward.flop


@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_counted_on_the_cpu(causal):
    """The scores that a causal mask hides count too, as in PyTorch's counter."""
    b, h, s, k = 2, 3, 16, 8
    q = torch.ones(b, h, s, k, requires_grad=True)
    with Counted() as counted:
        nn.functional.scaled_dot_product_attention(q, q, q, is_causal=causal).sum().backward()
    (forward, backward) = (c.flop for n, c in counted.by_name.items() if "attention" in n)
    assert forward == 2 * 2 * b * h * s * s * k
    assert backward == 5 * 2 * b * h * s * s * k


@pytest.mark.parametrize("foreach", [False, True])
def test_an_optimizer_step_moves_its_bytes(foreach):
    parameter = nn.Parameter(torch.ones(100))
    parameter.grad = torch.ones(100)
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9, foreach=foreach)
    optimizer.step()
    with Counted() as counted:
        optimizer.step()
    # momentum: scaled (2), added to (3); weight: added to (3)
    assert sum(c.bytes for c in counted.by_name.values()) == 4 * 100 * (2 + 3 + 3)


def test_communication_is_not_compute():
    assert roofline.cost(torch.ops.c10d.barrier.default, (), {}, None) == roofline.NOTHING
