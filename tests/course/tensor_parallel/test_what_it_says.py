"""Chapter 4's claims: each is computed here from its own definition, and stands in the text."""

import re

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.functional import cross_entropy

from lib.course.tensor_parallel import lessons, slow
from lib.predict.roofline import speeds
from lib.predict.shape import GPTShape
from lib.predict.tensor.memory import published_layer
from lib.predict.tensor.products import split_steps
from lib.predict.tensor.step import tensor_parallel_step
from lib.ranks.mesh import mesh
from tests.course.stored_chapter import shown, stored_chapter
from tests.every import every

SHAPE = GPTShape(width=32, heads=4, layers=2, sequence=16)
WIDTH, LAYERS = 25_600, 128  # Megatron-LM's largest


@pytest.fixture(scope="module")
def notebook():
    return stored_chapter("04-tensor-parallel")


@pytest.fixture(scope="module")
def text(notebook):
    return "\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")


@pytest.fixture
def world(worlds):
    return worlds(4)


# --- the problem and the ways to split a product


def test_fsdp_with_recomputation_does_not_fit(text):
    """Two whole units, every layer's input, and one layer's activations."""
    units = 8 * (12 * WIDTH**2 + 13 * WIDTH)
    inputs = LAYERS * 2048 * WIDTH * 2
    one = published_layer(width=WIDTH, heads=160, sequence=2048, batch=1, ranks=1)
    assert f"128 · 2,048 · 25,600 · 2 bytes = {inputs / 1e9:.1f} GB" in text
    whole = (units + inputs + one) / 1e9
    assert whole > 80 and f"together {whole:.0f} GB" in text
    smaller = (4 * 12 * WIDTH**2 + inputs + one) / 1e9  # attention and MLP, with gradients
    assert smaller < 80 and "Smaller units would fit" in text


def sent(a, b, k, n):
    """Return the MB of each collective of a product on four ranks, by its name."""
    plan = split_steps(a, b, {"tp": 4}, 2048, k, n)
    return {one.op: 2 * plan.sent(one) / 1e6 for one in plan.steps if one.op != "multiply"}


def test_the_gather_sends_twice_as_much_in_the_second_picture_alone(text):
    columns, rows = (None, "tp"), ("tp", None)
    gathered = sent(columns, columns, 102_400, 25_600)["all_gather"]
    summed = sent(columns, rows, 102_400, 25_600)["all_reduce"]
    assert gathered == 2 * summed and f"it sends {gathered:,.0f} MB, twice" in text
    other = sent(columns, columns, 25_600, 102_400)["all_gather"]
    assert other < sent(columns, rows, 25_600, 102_400)["all_reduce"] / 7
    assert "in the *second* picture" in text and "K = 4·N" in text


# --- what column layers share


class Products(nn.Module):
    def __init__(self):
        super().__init__()
        for name in "qkvo":
            self.add_module(name, nn.Linear(32, 32))

    def forward(self, x):
        return self.o(self.q(x) * self.k(x) * self.v(x))


def all_reduces_of_dtensors(prepared):
    """Count the all_reduces of PyTorch's tensor parallelism in backward of q, k, v and o."""
    plan = {f"0.{name}": ColwiseParallel() for name in "qkv"} | {"0.o": RowwiseParallel()}
    if prepared:
        plan["0"] = PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Replicate())
    module = parallelize_module(nn.Sequential(Products()), mesh(tp=4).torch(), plan)
    x = torch.ones(4, 32, requires_grad=True)
    with CommDebugMode() as counted:
        y = module(x)
        forward = counted.get_total_counts()
        y.sum().backward()
    return counted.get_total_counts() - forward


def test_q_k_and_v_share_one_all_reduce_with_prepare_module_input(world, text):
    assert world.run(all_reduces_of_dtensors, False) == [3] * 4
    assert world.run(all_reduces_of_dtensors, True) == [1] * 4
    assert "`PrepareModuleInput`" in text


# --- the loss


def two_numbers(logits, targets):
    """Return the loss from one all_gather of log-sum-exp and the target's logit."""
    width = logits.shape[1]
    local = targets - dist.get_rank() * width
    inside = (local >= 0) & (local < width)
    of_target = logits.gather(1, local.clamp(0, width - 1)[:, None])[:, 0] * inside
    own = torch.stack([logits.logsumexp(1), of_target])
    parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, own)
    sums, logits_of_target = torch.stack(parts).unbind(1)
    return (sums.logsumexp(0) - logits_of_target.sum(0)).mean()


def losses_of_large_logits(loss):
    """Return `loss` of split logits that are as large as 400 deviations, and PyTorch's."""
    logits, targets = 400 * lessons.numbers(24, 256), 10 * torch.arange(24)
    return loss(lessons.own(logits, 1), targets).item(), cross_entropy(logits, targets).item()


def test_an_all_gather_needs_two_numbers_and_all_reduces_three(world, notebook, text):
    for own, whole in world.run(losses_of_large_logits, two_numbers):
        assert own == pytest.approx(whole, rel=1e-12)
    (cell,) = [c for c in notebook.cells if "def split_loss" in c.source]
    defined = {"torch": torch, "dist": dist}
    (operators,) = [c.source for c in notebook.cells if "class Sum(" in c.source]
    exec(operators.partition("world = World(4)")[2], defined)
    exec(cell.source.partition("whole_loss =")[0], defined)
    recorded = world.record(losses_of_large_logits, defined["split_loss"])
    for own, whole in recorded.results:
        assert own == pytest.approx(whole, rel=1e-12)
    rows = recorded.where(rank=0, lane="comm")
    assert {row.op for row in rows} == {"all_reduce"} and len(rows) == 2
    numbers = sum(row.bytes for row in rows) // 8 // 24
    assert f"It is {numbers} numbers." in shown(notebook, "def split_loss")
    assert "sends only all_reduces for it" in text and "An all_gather needs two" in text


def logits_are_kept(loss_of):
    """Say whether backward of a loss keeps the gathered logits themselves."""
    own = torch.randn(8, 16, requires_grad=True)
    full = torch.cat([own] * 4, 1)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: kept.append(t.data_ptr()) or t, lambda t: t
    ):
        loss_of(full, torch.arange(8))
    return full.data_ptr() in kept


def test_thirteen_times_the_logits_are_one_and_three_times_four(notebook, text):
    """PyTorch's loss keeps log-probabilities, and not the logits that it was given."""
    assert not logits_are_kept(cross_entropy)
    assert logits_are_kept(lambda logits, targets: logits.square().sum())
    assert "1 + 3 · 4 = 13" in text and "13.0 ×" in shown(notebook, "peaks_of_losses")


# --- what is hidden


def limit(bandwidth, itemsize, ranks=4, rate=989e12):
    """Return the outputs of a column layer from which on dW lasts as long as the all_reduce."""
    return (ranks - 1) * itemsize * rate / bandwidth


def test_the_width_from_which_on_the_all_reduce_is_hidden(text):
    assert f"{limit(450e9, 4):,.0f}"[:4] == "26,3" and "26,400 over NVLink 4" in text
    assert round(limit(50e9, 4), -3) == 237_000 and "the limit is 237,000" in text
    step = tensor_parallel_step(slow.LARGE, 4, 1, speeds("H100", "NVLink4")).where(rank=0)
    waits = backward_waits(step)
    outputs = 32_000, 32_768, 24_576  # head, up, qkv, in the order of backward
    assert [n < limit(450e9, 4) for n in outputs] == [False, False, True]
    assert [wait > 0 for wait in waits] == [n < limit(450e9, 4) for n in outputs]
    assert max(waits) < 3e-5, "a little"
    step = tensor_parallel_step(slow.LARGE, 4, 1, speeds("H100", "InfiniBand NDR")).where(rank=0)
    assert every(wait > 1e-3 for wait in backward_waits(step))


def backward_waits(step):
    """Return for how long the last three all_reduces of a predicted step expose themselves."""
    sums = sorted(step.where(lane="comm"), key=lambda row: row.start)[-3:]
    busy = step.where(lane="compute")
    return [
        max(0.0, one.seconds - sum(
            max(0.0, min(row.end, one.end) - max(row.start, one.start)) for row in busy
        ) - 1e-12)
        for one in sums
    ]  # fmt: skip


def test_in_bfloat16_less_is_exposed(text):
    shares = []
    for link in ("NVLink4", "InfiniBand NDR"):
        step = tensor_parallel_step(slow.LARGE, 4, 1, speeds("H100", link), itemsize=2)
        shares.append(round(100 * slow.exposed(slow.in_phases(step.where(rank=0)))))
    assert shares == [8, 57] and "8 % and 57 % of forward and backward are exposed" in text


def test_the_shares_are_those_of_what_is_drawn(notebook):
    shares = re.findall(r"(\d+)% exposed", shown(notebook, "slow.on"))
    assert shares == ["13", "70"]


# --- clipping


def norms_of_dtensors():
    """Return PyTorch's norm of the DTensors of a GPT, and its error for the whole model."""
    model = lessons.dtensor(lessons.gpt(SHAPE))
    lessons.forward_backward(model, *lessons.batch_of(SHAPE))
    split = [name for name, p in model.named_parameters() if isinstance(p, DTensor)]
    parameters = dict(model.named_parameters())
    norm = nn.utils.clip_grad_norm_([parameters[name] for name in split], 1e9)
    try:
        nn.utils.clip_grad_norm_(parameters.values(), 1e9)
    except RuntimeError as error:
        return split, norm.full_tensor().item(), str(error)


def test_pytorch_clips_dtensors_and_refuses_a_mixture(world, text):
    model = lessons.gpt(SHAPE)
    lessons.forward_backward(model, *lessons.batch_of(SHAPE))
    parameters = dict(model.named_parameters())
    for split, norm, error in world.run(norms_of_dtensors):
        plain = nn.utils.clip_grad_norm_([parameters[name] for name in split], 1e9)
        assert norm == pytest.approx(plain.item(), rel=1e-9)
        (told,) = re.findall(r"raises `RuntimeError: ([^`]+)`", text)
        assert error.startswith(told)


# --- the order of the text


def test_a_guess_is_not_answered_before_it(notebook):
    """The opening has the pictures and sharding lines, and no collective of a split."""
    opening = notebook.cells[0].source
    question = opening.index("**Guess.**")
    assert "all_reduce" not in opening[:question] and "+tp" not in opening[:question]
    assert "nothing is sent" not in opening[:question]


def test_every_world_of_going_further_is_closed(notebook):
    cells = [c.source for c in notebook.cells if c.cell_type == "code"]
    made = [line for source in cells for line in source.splitlines() if "World(" in line]
    assert [line for line in made if not line.startswith("with ")] == ["world = World(4)"]
    assert len(made) == 3
