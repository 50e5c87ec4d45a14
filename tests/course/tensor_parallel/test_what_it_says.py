"""Chapter 4's claims: each is computed here from its own definition, and stands in the text."""

import re
from dataclasses import replace

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
from torch.utils.checkpoint import checkpoint

from lib.course.tensor_parallel import lessons, slow
from lib.course.tensor_parallel.stranger import Stranger
from lib.parallel.tensor import copy_to_group, tensor_parallel
from lib.predict.roofline import speeds
from lib.predict.shape import GPTShape
from lib.predict.tensor.memory import published_layer
from lib.predict.tensor.products import split_steps
from lib.predict.tensor.step import SUM, passes, tensor_parallel_step
from lib.ranks.mesh import mesh
from tests.course.stored_chapter import chapter_fixtures, shown
from tests.every import every

SHAPE = GPTShape(width=32, heads=4, layers=2, sequence=16)
WIDTH, LAYERS = 25_600, 128  # Megatron-LM's largest


notebook, text = chapter_fixtures("04-tensor-parallel")


@pytest.fixture
def world(worlds):
    return worlds(4)


def test_a_ranks_peak_is_the_share_of_the_plain_one_that_the_text_says(world, notebook, text):
    """The cell prints rounded MB; here are the bytes."""
    plain = lessons.peak(SHAPE, lambda model: model)
    ours = max(world.run(lessons.peak, SHAPE, tensor_parallel))
    assert f"Our peak is {100 * ours / plain:.0f} % of the plain model's" in text
    printed = re.findall(r"peak: ([\d.]+) MB", shown(notebook, "lessons.StepOf"))
    assert printed[:2] == [f"{nbytes / 1e6:.3f}" for nbytes in (plain, ours)]


# --- the problem and the ways to split a product


def test_fsdp_with_recomputation_does_not_fit(text):
    """Two whole units, every layer's input, one layer's activations, and a rank's own shard."""
    units = 8 * (12 * WIDTH**2 + 13 * WIDTH)
    inputs = LAYERS * 2048 * WIDTH * 2
    one = published_layer(WIDTH, 160, 2048, batch=1, ranks=1, scores=False)
    assert f"128 · 2,048 · 25,600 · 2 bytes = {inputs / 1e9:.1f} GB" in text
    assert f"and {one / 1e9:.2f} GB of one layer's activations" in text
    shard = 16 * 1_008e9 / 3_072
    assert f"16 · 1,008·10⁹ / 3,072 bytes = {shard / 1e9:.2f} GB" in text
    whole = units + inputs + one
    assert f"Together this is {whole / 1e9:.1f} GB" in text and whole < 80e9 < whole + shard
    assert f"it is {(whole + shard) / 1e9:.1f} GB, so little is left" in text
    assert f"on the paper's 3,072 GPUs add {(inputs + one + shard) / 1e9:.1f} GB" in text
    device = 81_559 * 2**20
    assert f"an H100 has 81,559 MiB, or {device / 1e9:.1f} GB" in text
    assert 0 < device - whole - shard < 3e9
    assert f"a rank holds {(whole + shard) / 1e9:.1f} of {device / 1e9:.1f} GB" in text
    smaller = 4 * 12 * WIDTH**2 + inputs + one  # attention and MLP, with gradients
    assert smaller + shard < 80e9 and "Units smaller than a layer need less" in text


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
    assert "in the *second* picture" in text and "F = 4·D" in text


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


def all_reduces_of_a_recomputed_layer(reentrant):
    """Count a layer's all_reduces in forward and backward; with None, nothing is recomputed."""
    layer = tensor_parallel(lessons.gpt(SHAPE)).blocks[str(lessons.LAYER)]
    x = lessons.numbers(2, 16, 32).requires_grad_()
    calls, real = [], dist.all_reduce
    dist.all_reduce = lambda *args, **kwargs: calls.append(1) or real(*args, **kwargs)
    try:
        if reentrant is None:
            y = layer(x)
        else:
            y = checkpoint(layer, x, use_reentrant=reentrant)
        y.sum().backward()
    finally:
        dist.all_reduce = real
    return len(calls)


def test_a_recomputed_layer_has_five_or_six_all_reduces(world, text):
    """PyTorch's checkpoint stops before the last sum, unless it is reentrant as Megatron-LM's."""
    for reentrant, count in ((None, 4), (False, 5), (True, 6)):
        assert world.run(all_reduces_of_a_recomputed_layer, reentrant) == [count] * 4
    assert "four per layer (five or six if recomputed)" in text


def gain_without_copy(copies):
    """Return a replicated norm's gradient before a column layer with and without its Copy."""
    norm, x = nn.LayerNorm(32).double(), lessons.numbers(2, 16, 32).to("cpu")
    x = norm.to(x.device)(x)
    x = copy_to_group(x) if copies else x
    weight = lessons.own(lessons.numbers(128, 32).to("cpu"), 0)
    nn.functional.gelu(x @ weight.T).sum().backward()
    return norm.weight.grad


def test_without_copy_replicated_parameters_drift_apart(world, text):
    for copies in (True, False):
        first, *others = world.run(gain_without_copy, copies)
        assert all(torch.allclose(first, other) == copies for other in others)
    assert "Copies of earlier parameters then drift apart" in text


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
    (places,) = [c.source for c in notebook.cells if "def locate" in c.source]
    exec(operators.partition("world = World(4)")[2], defined)
    exec(places.partition("def split_embedding")[0], defined)
    exec(cell.source.partition("whole_loss =")[0], defined)
    recorded = world.record(losses_of_large_logits, defined["split_loss"])
    for own, whole in recorded.results:
        assert own == pytest.approx(whole, rel=1e-12)
    rows = recorded.where(rank=0, lane="comm")
    assert {row.op for row in rows} == {"all_reduce"} and len(rows) == 2
    numbers = sum(row.bytes for row in rows) // 8 // 24
    assert f"It is {numbers} numbers." in shown(notebook, "def split_loss")
    assert "Megatron-LM computes this loss with all_reduces alone" in text
    assert "instead gather two numbers" in text


def test_a_vocabulary_that_does_not_divide_gives_wrong_rows_and_no_error(world, notebook, text):
    (cell,) = [c for c in notebook.cells if "def split_embedding" in c.source]
    (operators,) = [c.source for c in notebook.cells if "class Sum(" in c.source]
    defined = {"torch": torch, "dist": dist, "own": lessons.own}
    exec(operators.partition("world = World(4)")[2], defined)
    exec(cell.source.partition("tokens = lessons")[0], defined)
    for words, wrong in ((256, False), (258, True)):
        rows, tokens = torch.arange(1.0, words + 1)[:, None], torch.arange(words)[None]
        for answer in world.run(defined["split_embedding"], tokens, rows):
            assert torch.equal(answer["x"], rows[tokens]) != wrong
    assert 50_257 % 4 and "GPT-2's 50,257 is not divisible, so real code pads" in text


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


def step_on(link):
    """Return rank 0's rows of the step in slow motion, as predicted for a link."""
    step = tensor_parallel_step(slow.LARGE, 4, 1, speeds("H100", link), itemsize=2)
    return step.where(rank=0)


def test_the_width_from_which_on_the_all_reduce_is_hidden(text):
    assert round(limit(450e9, 2), -2) == 13_200 and "this is 13,200 over NVLink 4" in text
    assert round(limit(50e9, 2), -2) == 118_700 and "the limit is 118,700" in text
    outputs = 32_000, 32_768, 24_576  # head, up, qkv
    assert min(outputs) > limit(450e9, 2) and max(outputs) < limit(50e9, 2)
    assert max(backward_waits(step_on("NVLink4"))) == 0 and "both are hidden" in text
    assert every(wait > 1e-3 for wait in backward_waits(step_on("InfiniBand NDR")))


@pytest.mark.parametrize(("ranks", "percent"), [(4, 27), (8, 63)])
def test_forward_waits_for_so_much_of_what_it_computes(text, ranks, percent):
    """The closed form is that of a layer's own products and sums."""
    forward = passes(slow.LARGE, ranks, 1, itemsize=2)[1].forward
    flop = sum(op.flop for op in forward if op.name in ("mm", "addmm"))
    sent = sum(2 * op.bytes for op in forward if op.name == SUM) * 2 * (ranks - 1) / ranks
    assert flop == 24 * 4096 * 8192**2 / ranks
    share = (sent / 450e9) / (flop / 989e12)
    assert share == pytest.approx((ranks - 1) * 2 * 989e12 / (6 * 8192 * 450e9))
    assert round(100 * share) == percent and f"{percent} % for tp = {ranks}" in text


def test_drawing_whole_masks_makes_a_step_longer(text):
    shape = replace(slow.LARGE, dropout=0.1)
    whole, own = (
        tensor_parallel_step(
            shape, 4, 1, speeds("H100", "NVLink4"), itemsize=2, whole_masks=masks
        ).makespan
        for masks in (True, False)
    )
    assert f"takes {round(100 * (whole / own - 1))} % longer than one with a seed" in text


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


def test_the_shares_are_those_of_what_is_drawn(notebook, text):
    shares = re.findall(r"(\d+)% exposed", shown(notebook, "slow.on"))
    steps = [slow.in_phases(step_on(link)) for link in ("NVLink4", "InfiniBand NDR")]
    assert shares == [f"{100 * slow.exposed(step):.0f}" for step in steps]
    assert f"would wait for {shares[0]} % of forward and backward over NVLink 4" in text
    assert f"and for {shares[1]} % over InfiniBand" in text


# --- random numbers


def test_equal_seeds_leave_a_quarter_of_the_numbers(notebook, text):
    equal, other = shown(notebook, "lessons.mask").split("apart=1")
    masks = [re.findall(r"^  ([01]{16})$", part, re.M) for part in (equal, other)]
    assert [len(part) for part in masks] == [4, 4] and len(set(masks[0])) == 1 < len(set(masks[1]))
    assert "the mask of a split tensor of 64 numbers repeats the same 16 four times" in text
    (cell,) = [cell.source for cell in notebook.cells if "lessons.mask, apart" in cell.source]
    assert "dropout=0.5)" in cell and "16 numbers for dropout 0.5" in text
    ones = torch.ones(16, device="cpu")  # lessons.mask draws with the same 0.5
    torch.manual_seed(7)
    kept = nn.functional.dropout(ones, 0.5) > 0
    assert masks[0][0] == "".join("01"[int(one)] for one in kept)


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


# --- somebody else's model


def test_the_modules_of_the_stranger_are_those_of_the_text(text):
    (told,) = re.findall(r"Its modules are ([^.]+)\.", text)
    names = [name.split(".")[-1] for name, _ in Stranger().named_modules() if name]
    assert set(re.findall(r"`(\w+)`", told)) == {name for name in names if not name.isdigit()}


# --- the order of the text


def test_a_guess_is_not_answered_before_it(notebook):
    """The opening has the pictures and sharding lines, and no collective of a split."""
    opening = "\n".join(cell.source for cell in notebook.cells[:5])
    before, _, _ = opening.partition("**Guess.**")
    assert before != opening and "all_reduce" not in before and "+tp" not in before
    drawn = shown(notebook, 'shards("column"')
    assert "sent by all ranks: 0 bytes" in drawn and "all_reduce" not in drawn


def test_every_world_of_going_further_is_closed(notebook):
    cells = [c.source for c in notebook.cells if c.cell_type == "code"]
    made = [line for source in cells for line in source.splitlines() if "World(" in line]
    assert [line for line in made if not line.startswith("with ")] == ["world = World(4)"]
    assert len(made) == 3
