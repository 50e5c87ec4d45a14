"""What travels: every kind of tensor, as it was, and what is said of that which cannot."""

import functools
import threading

import pytest
import torch

from lib import RankError
from lib.ranks.transport import packing

DTYPES = sorted(
    {item for item in vars(torch).values() if isinstance(item, torch.dtype)}, key=str
)  # with float8, uint16, complex32, sub-byte integers and bits
QUANTIZED = (torch.quint8, torch.qint8, torch.qint32, torch.quint4x2, torch.quint2x4)


def travel(item):
    return packing.unpack([bytes(buffer) for buffer in packing.pack(item)])


def bits(tensor):
    return bytes(tensor.untyped_storage().cpu().tolist())


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d not in QUANTIZED], ids=str)
def test_every_dtype_travels(dtype):
    """Case 29: the bits, the shape and the stride of each dtype are those that were sent."""
    raw = torch.arange(96, dtype=torch.uint8)
    tensor = raw.view(dtype).unflatten(0, (2, -1)).T
    for there in (travel(tensor), travel(torch.nn.Parameter(tensor, requires_grad=False))):
        assert (there.dtype, there.shape, there.stride()) == (
            dtype,
            tensor.shape,
            tensor.stride(),
        )
        assert bits(there) == bits(raw)


def test_new_dtypes_go_to_ranks_and_come_back(worlds):
    """Case 29: float8, unsigned integers and complex32 are arguments and results of a call."""
    for dtype in (torch.float8_e4m3fn, torch.uint16, torch.uint32, torch.uint64, torch.complex32):
        tensor = torch.arange(4).to(dtype)
        model = torch.nn.Module()
        model.register_buffer("b", tensor)
        back = worlds(2).run(lambda t, m: [t, t[1:], m], tensor, model)[1]
        assert torch.equal(back[0].to(torch.complex64), tensor.to(torch.complex64))
        assert back[1].untyped_storage().data_ptr() == back[0].untyped_storage().data_ptr()
        assert back[2].b.dtype == dtype


class Marked(torch.Tensor):
    pass


def marked(dtype):
    tensor = torch.ones(3).to(dtype).as_subclass(Marked)
    tensor.mark = "here"
    return tensor


@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e5m2])
def test_classes_and_attributes_of_tensors_travel(dtype):
    """Case 29: a subclass with an attribute arrives as one."""
    there = travel(marked(dtype))
    assert type(there) is Marked and there.mark == "here" and there.dtype == dtype


JAGGED = torch.jagged
LAYOUTS = {
    "sparse": lambda: torch.eye(3).to_sparse(),
    "sparse, with doubles": lambda: torch.sparse_coo_tensor([[0, 0], [1, 1]], [1.0, 2.0], (2, 2)),
    "csr": lambda: torch.eye(3).to_sparse_csr(),
    "bsr": lambda: torch.eye(4).to_sparse_bsr((2, 2)),
    "conjugate": lambda: torch.tensor([1 + 2j, 3j]).conj(),
    "negative": lambda: torch.tensor([1 + 2j, 3j]).conj().imag,
    "expanded": lambda: torch.arange(3.0).unsqueeze(1).expand(3, 4),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "jagged": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=JAGGED),
    "quantized": lambda: torch.quantize_per_tensor(torch.arange(4.0), 0.1, 3, torch.qint8),
    "empty": lambda: torch.empty(0, 3),
}  # fmt: skip


def plain(tensor):
    if tensor.is_nested:
        return torch.nested.to_padded_tensor(tensor, -1.0)
    return (tensor.dequantize() if tensor.is_quantized else tensor).to_dense().resolve_conj()


@pytest.mark.parametrize("kind", LAYOUTS)
def test_every_layout_travels(kind):
    """Case 29: sparse, conjugate, expanded, nested and quantized tensors arrive as they were."""
    tensor = LAYOUTS[kind]()
    there = travel(tensor)
    assert (there.layout, there.dtype) == (tensor.layout, tensor.dtype)
    assert (there.is_conj(), there.is_neg()) == (tensor.is_conj(), tensor.is_neg())
    assert torch.equal(plain(there), plain(tensor))
    if kind == "expanded":
        assert there.stride() == (1, 0) and there.untyped_storage().nbytes() == 12


def test_meta_tensors_travel_without_memory():
    """Case 29: a model without memory arrives as one."""
    there = travel(torch.nn.Linear(1000, 1000, device="meta"))
    assert there.weight.is_meta and there.weight.shape == (1000, 1000)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_travel_with_their_parameters(dtype, worlds):
    """Case 29: a model that comes back from a rank has the gradients that it had there."""
    model = torch.nn.Linear(2, 2, dtype=dtype)
    model.bias.requires_grad_(False)
    back = worlds(2).run(with_gradients, model)[1]
    with_gradients(model)
    assert torch.equal(back.weight.grad, model.weight.grad) and back.weight.grad.dtype == dtype
    assert back.bias.grad is None and not back.bias.requires_grad
    leaf = torch.ones(2, requires_grad=True)
    (leaf * 3).sum().backward()
    assert travel(leaf).grad.tolist() == [3, 3] and travel(leaf).requires_grad


def with_gradients(model):
    model(torch.ones(1, 2, dtype=model.weight.dtype)).sum().backward()
    return model


LOCK = threading.Lock()


def outer():
    inside = threading.Lock()
    return lambda: inside


def through(names):
    exec("def f(): return lock\nclass C:\n    def m(self): return lock\n", names)
    return names


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda names: names["f"], r"global `lock` of f \(lock\)"),
        (lambda names: names["C"]().m, r"global `lock` of m \(lock\)"),
        (lambda names: functools.partial(names["f"], 3), r"global `lock` of f \(lock\)"),
        (lambda names: outer(), r"outer variable `inside` of <lambda> \(lock\)"),
        (lambda names: functools.partial(abs, [LOCK]), r"the function\[0\]\[0\] \(lock\)"),
    ],
)
def test_what_cannot_travel_is_named(worlds, make, told):
    """Case 29: of a function, the sentence names the variable and the function that reads it."""
    step = make(through({"__name__": "__main__", "lock": LOCK}))
    with pytest.raises(RankError, match=f"nothing was run.*\n  {told}: cannot pickle"):
        worlds(2).run(step)


def test_a_tensor_that_cannot_travel_is_named(worlds):
    """Case 29: an opaque tensor has no memory that could be sent."""
    with pytest.raises(
        RankError, match=r"the arguments\[0\]\['x'\] \(Tensor\): Cannot access storage"
    ):
        worlds(2).run(len, {"x": torch.ones(3).to_mkldnn()})


def test_code_of_a_cell_keeps_its_file_and_lines_so_that_failures_name_them():
    space = {"__name__": "__main__"}
    exec(compile("def outer():\n    return lambda: 1\n", "/tmp/cell_7.py", "exec"), space)
    outer = travel(space["outer"])
    for function, line in ((outer, 1), (outer(), 2)):
        assert function.__code__.co_filename == "/tmp/cell_7.py"
        assert function.__code__.co_firstlineno == line
    assert outer()() == 1
