"""PyTorch's operations travel, alone and as globals of the reader's functions."""

import pytest
import torch

from lib.ranks.transport import packing

PRODUCT = torch.ops.aten.mm.default


def travel(item):
    return packing.unpack([bytes(buffer) for buffer in packing.pack(item)])


@pytest.mark.parametrize(
    "item",
    [
        PRODUCT, torch.ops.aten.mm, torch.ops.aten.add.Tensor, torch.ops.aten, torch.ops,
        torch.ops.c10d.allreduce_.default,
    ],
    ids=str,
)  # fmt: skip
def test_an_operation_is_found_by_its_name(item):
    assert travel({"it": item})["it"] is item


def test_a_function_of_the_reader_may_use_them(worlds):
    """By value, as what a notebook defines goes: its globals and torch's submodules go too."""
    code = "import torch\naten = torch.ops.aten\ndef f(x): return aten.mm(x, x), torch.ops.aten.mm"
    names = {"__name__": "__main__"}
    exec(code, names)
    two = 2 * torch.eye(2)
    for product, operation in worlds(2).run(names["f"], two):
        assert torch.equal(product, 4 * torch.eye(2)) and operation is torch.ops.aten.mm
