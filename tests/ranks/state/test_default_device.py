"""What names no device is made on the rank's; what arrives is there too; answers are the CPU's.

On a machine without a second device `meta` stands for it, which tells where a tensor is and not
what it holds. With the pretended GPU on PYTHONPATH (tests/pretend) values are compared as well.
"""

import io

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from lib.ranks.state import default_device
from lib.ranks.state.default_device import is_gpu, make_default
from lib.ranks.transport import packing

PRETENDED = getattr(torch.accelerator.current_accelerator(), "type", "") == "pretend"
DEVICE = torch.device("pretend:2" if PRETENDED else "meta")
with_values = pytest.mark.skipif(not PRETENDED, reason="_build/pretend is not on PYTHONPATH")


@pytest.fixture
def rank():
    """Make this process like a rank whose default device is a GPU."""
    make_default(DEVICE)
    yield
    torch.set_default_device(None)


def sent(item, device=DEVICE):
    return packing.unpack([bytearray(buffer) for buffer in packing.pack(item)], device)


def trained(optimizer=torch.optim.AdamW, **options):
    """Give a model and its optimizer after one step, on the default device."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    steps = optimizer(model.parameters(), lr=0.1, **options)
    model(torch.ones(4, 3)).sum().backward()
    steps.step()
    return model, steps


# Answers.


def test_answers_leave_a_rank_whose_default_device_is_a_gpu(rank):
    """Packing makes a tensor of its own to look into the memory: it names the CPU."""
    given = torch.arange(3.0, device="cpu")
    there = sent([given, given[1:]], "cpu")
    assert [part.tolist() for part in there] == [[0, 1, 2], [1, 2]]
    assert there[0].untyped_storage()._cdata == there[1].untyped_storage()._cdata


@with_values
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.arange(4.0),
        lambda: torch.nn.Parameter(torch.ones(2)),
        lambda: torch.ones(3, dtype=torch.bfloat16),
    ],
)
def test_what_was_made_on_the_gpu_arrives_on_the_cpu(rank, make):
    made = make()
    there = sent(made, "cpu")
    assert made.device == DEVICE and there.device.type == "cpu" and type(there) is type(made)
    assert torch.equal(there, made.cpu())


@with_values
def test_models_and_optimizers_come_back_as_they_were(rank):
    """Weights, gradients and state are those of the GPU; they are the CPU's and still one model."""
    model, steps = trained()
    back, there = sent((model, steps), "cpu")
    for p, q in zip(model.parameters(), back.parameters(), strict=True):
        assert q.device.type == q.grad.device.type == "cpu"
        assert torch.equal(p.cpu(), q) and torch.equal(p.grad.cpu(), q.grad)
        assert torch.equal(steps.state[p]["exp_avg"].cpu(), there.state[q]["exp_avg"])
    torch.set_default_device(None)
    back(torch.ones(1, 3)).sum().backward()
    there.step()


# Arguments.


def test_what_the_notebook_sends_arrives_on_the_gpu():
    """Arguments, what they hold, and what functions read of the notebook: all of it is there."""
    model = torch.nn.BatchNorm1d(3)
    model(torch.ones(2, 3)).sum().backward()
    x = torch.ones(4)
    there, other, view = sent((model, lambda: x, x[1:]))
    tensors = [*there.parameters(), *there.buffers(), there.weight.grad, other(), view]
    assert {tensor.device for tensor in tensors} == {DEVICE}
    assert other().untyped_storage()._cdata == view.untyped_storage()._cdata
    assert there.weight.requires_grad and isinstance(there.weight, torch.nn.Parameter)
    assert not {t.device for t in sent([torch.ones(2)], "cpu")} - {torch.device("cpu")}


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.uint16, torch.complex64], ids=str)
def test_new_dtypes_arrive_there_too(dtype):
    there = sent([torch.zeros(4, dtype=torch.uint8).view(torch.uint8).to(dtype)])[0]
    assert (there.device, there.dtype) == (DEVICE, dtype)


@pytest.mark.skipif(PRETENDED, reason="the pretended GPU has no sparse tensors")
def test_layouts_arrive_there_too():
    """Sparse, jagged and nested tensors, subclasses and empty ones, where the device has them."""
    sparse, csr = sent([torch.eye(3).to_sparse(), torch.eye(3).to_sparse_csr()])
    assert {sparse.device, sparse._values().device, csr.device} == {DEVICE}
    ragged = [torch.ones(2), torch.ones(3)]
    jagged = sent(torch.nested.nested_tensor(ragged, layout=torch.jagged))
    assert {jagged.device, jagged.values().device, jagged.offsets().device} == {DEVICE}
    assert sent(torch.empty(0, 3)).device == DEVICE


def test_shapes_of_a_nested_tensor_stay_on_the_cpu():
    """PyTorch reads them on the processor, on whichever device the numbers are."""
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    packer = packing.Packer(io.BytesIO())
    packer.dump(nested)
    assert len(packer.on_cpu) == 3


def test_what_belongs_to_the_cpu_stays_there():
    """A generator, its state, and an optimizer's count of steps: PyTorch wants them so."""
    generator = torch.Generator().manual_seed(3)
    state = {"random": torch.get_rng_state(), "x": torch.ones(2)}
    there, back = sent((generator, state))
    assert there.device.type == "cpu" and torch.equal(there.get_state(), generator.get_state())
    assert back["random"].device.type == "cpu" and back["x"].device == DEVICE
    torch.set_rng_state(back["random"])
    bytes_of_that_size = torch.zeros(torch.get_rng_state().numel(), dtype=torch.uint8)
    assert sent(bytes_of_that_size).device == DEVICE  # no generator's state: ordinary numbers


def test_an_optimizers_count_of_steps_is_where_pytorch_keeps_it():
    """On the CPU; with the parameters where the optimizer was told to keep it there."""
    _, steps = trained()
    (_, there), listed = sent((steps.param_groups, steps)), sent(steps.state_dict())
    for state in (*there.state.values(), *listed["state"].values()):
        assert state["step"].device.type == "cpu" and state["exp_avg"].device == DEVICE
    _, fused = trained(fused=True)
    assert {s["step"].device for s in sent(fused).state.values()} == {DEVICE}


@with_values
@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.Adagrad, torch.optim.SGD])
def test_training_goes_on_where_it_arrives(optimizer):
    """The next step on the GPU gives the numbers that it gives in the notebook."""
    model, steps = trained(optimizer)
    pairs = [(model, steps), sent((model, steps))]
    for one, its in pairs:
        device = one.weight.device
        its.zero_grad()
        one(torch.ones(4, 3, device=device)).square().sum().backward()
        its.step()
    torch.testing.assert_close(pairs[1][0].weight.cpu(), model.weight)


class Elsewhere(torch.Generator):
    """A generator that says it is a GPU's."""

    device = torch.device("cuda:1")


def test_a_generator_of_a_gpu_is_refused(monkeypatch):
    """It could only be made anew on the other side, which may have no GPU."""
    monkeypatch.setattr(torch, "Generator", Elsewhere)
    with pytest.raises(TypeError, match="generator of cuda:1 cannot leave its process. Send what"):
        packing.pack(Elsewhere())


# What is made there.


def test_what_names_no_device_is_made_on_the_ranks(rank):
    assert torch.get_default_device() == DEVICE
    assert {t.device for t in (torch.ones(2), torch.arange(3), torch.nn.Linear(2, 2).bias)} == {
        DEVICE
    }
    assert torch.ones(2, device="cpu").device.type == "cpu"
    torch.set_default_device("cpu")  # the reader's own wish
    assert torch.ones(2).device.type == "cpu"


def test_the_generator_itself_draws(monkeypatch):
    """Torch's own default device would ask the other device to draw, and CUDA refuses."""
    monkeypatch.setattr(default_device, "is_gpu", lambda device: True)
    generator = torch.Generator().manual_seed(5)
    before = generator.get_state()
    make_default("meta")
    try:
        drawn = torch.randperm(5, generator=generator)
    finally:
        torch.set_default_device(None)
    assert drawn.is_meta and not torch.equal(generator.get_state(), before)


def test_a_meta_tensor_has_nothing_to_draw(rank):
    generator = torch.Generator().manual_seed(5)
    before, weight = generator.get_state(), torch.empty(3, 4, device="meta")
    drawn = torch.nn.init.uniform_(weight, generator=generator)
    assert drawn is weight and weight.uniform_(generator=generator).is_meta
    assert torch.equal(generator.get_state(), before)


@with_values
def test_a_generator_of_the_cpu_draws_there(rank):
    """The numbers are the CPU's and lie on the GPU, as functions and in place."""

    def g():
        return torch.Generator().manual_seed(5)

    weight = torch.nn.Parameter(torch.empty(3, 4))
    leaf = torch.randn(3, generator=g(), requires_grad=True)
    drawn = [
        leaf,
        torch.randperm(5, generator=g()),
        torch.randint(9, (4,), generator=g()),
        torch.empty(3).normal_(generator=g()),
        torch.nn.init.uniform_(weight, generator=g()),
        torch.bernoulli(torch.full((9,), 0.5), generator=g()),
    ]
    assert {t.device for t in drawn} == {DEVICE}
    assert leaf.is_leaf and leaf.requires_grad and drawn[4] is weight
    assert torch.rand(2, generator=g(), device="cpu").device.type == "cpu"
    expected = torch.randn(3, generator=g(), device="cpu")
    assert torch.equal(leaf.cpu(), expected)
    assert torch.equal(drawn[3].cpu(), torch.empty(3, device="cpu").normal_(generator=g()))
    assert torch.equal(
        weight.cpu(), torch.nn.init.uniform_(torch.empty(3, 4, device="cpu"), generator=g())
    )


@with_values
@pytest.mark.parametrize("own", [False, True])
def test_a_dataloader_shuffles(rank, own):
    """Its sampler draws with a generator of the CPU; torch's own default device forbids that."""
    data = TensorDataset(torch.arange(8.0))
    generator = torch.Generator().manual_seed(1) if own else None
    rows = [x for (x,) in DataLoader(data, 2, shuffle=True, generator=generator)]
    assert {x.device for x in rows} == {DEVICE}
    assert sorted(torch.cat(rows).tolist()) == list(range(8))


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, n):
        return torch.tensor(float(n))


@with_values
def test_worker_processes_make_their_batches_on_the_cpu(rank):
    """They are forked, and a forked process cannot use a GPU."""
    loader = DataLoader(Numbers(), 4, num_workers=1, multiprocessing_context="fork")
    batches = list(loader)
    assert {x.device.type for x in batches} == {"cpu"}
    assert torch.cat(batches).tolist() == list(range(8))


def test_is_gpu():
    devices = map(torch.device, ("cpu", "meta", "cuda:1"))
    assert [is_gpu(device) for device in devices] == [False, False, True]
