"""Chapter 4's small experiments: what each shows on real ranks."""

import pytest
import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from lib.course.tensor_parallel import lessons, slow, wall_clock
from lib.course.tensor_parallel.stranger import Stranger
from lib.parallel.tensor import (
    gather_from_group,
    reduce_from_group,
    tensor_parallel,
    vocab_parallel_cross_entropy,
)
from lib.predict.collectives.formulas import mean_sent
from lib.predict.roofline import speeds
from lib.predict.shape import GPTShape
from lib.predict.tensor.step import SUM, WAIT, passes, tensor_parallel_step
from lib.ranks.memory import Memory
from lib.ranks.mesh import mesh
from lib.single import GPT, models
from tests.course.machine import Machine
from tests.course.stored_chapter import stored_chapter, text_of

SHAPE = GPTShape(width=32, heads=4, layers=2, sequence=16)
NOISY = GPTShape(width=16, heads=4, layers=1, sequence=8, dropout=0.1)
PHASES = ["forward"] * 6 + ["backward"] * 4  # what is computed between two waits


@pytest.fixture
def world(worlds):
    return worlds(4)


@pytest.mark.parametrize("split", [tensor_parallel, lessons.dtensor])
def test_a_step_equals_the_plain_one(world, split):
    plain = lessons.plain_step(SHAPE)
    results = world.run(lessons.one_step, SHAPE, split)
    assert lessons.same(results, plain) and len(plain) == len(list(SHAPE.parameters)) + 1


def test_what_differs_is_not_the_same():
    whole = {"a": torch.arange(8.0).double(), "b": torch.ones(2, 2).double()}
    halves = [{"a": whole["a"][:4], "b": whole["b"]}, {"a": whole["a"][4:], "b": whole["b"]}]
    assert lessons.same(halves, whole)
    assert not lessons.same(halves[::-1], whole)
    halves[1] = {"a": whole["a"][4:], "b": whole["b"] + 1e-6}  # one rank's copy alone
    assert not lessons.same(halves, whole)


def test_what_a_step_launches_is_predicted_and_dtensor_launches_one_more(world):
    ours, theirs = (lessons.StepOf(world, SHAPE, s) for s in (tensor_parallel, lessons.dtensor))
    assert ours.calls == lessons.predicted_calls(SHAPE, 4)
    assert ours.all_reduces(8192) == theirs.all_reduces(8192) == 4 * SHAPE.layers + 2
    rows = [len(one.ledger.where(rank=0, lane="comm", op="all_reduce")) for one in (ours, theirs)]
    assert rows == [12, 13] and ours.equal and theirs.equal
    assert ours.peak <= theirs.peak and "equal: True" in str(ours)


def test_the_split_loss_needs_fewer_bytes_than_gathered_logits(world):
    losses = {"gathered": lessons.gathered_loss, "split": vocab_parallel_cross_entropy}
    lines = lessons.peaks_of_losses(world, losses, vocabulary=1024, tokens=8).splitlines()
    gathered, split = (float(line.split()[-4]) for line in lines)
    assert gathered > 3 * split > 3


def test_one_step_with_other_seeds_is_enough_to_diverge(world):
    assert world.run(lessons.diverged, NOISY, 0) == ["equal"] * 4
    for message in world.run(lessons.diverged, NOISY, 1):
        assert "is not replicated any more: on rank 1" in message


def after_columns():
    """Return what dropout keeps of this rank's part of an output of PyTorch's column layer."""
    layer = parallelize_module(torch.nn.Linear(8, 64), mesh(tp=4).torch(), ColwiseParallel())
    part = layer(torch.ones(1, 8))
    torch.manual_seed(7)
    return type(part) is torch.Tensor, torch.nn.functional.dropout(torch.ones_like(part)) > 0


def test_pytorchs_parts_get_equal_masks_from_equal_seeds(world):
    plain, masks = zip(*world.run(after_columns), strict=True)
    assert plain == (True,) * 4 and masks[0].shape == (1, 16)
    assert [torch.equal(mask, masks[0]) for mask in masks] == [True] * 4
    text = text_of(stored_chapter("04-tensor-parallel"))
    assert "so with equal seeds the parts of a split tensor get equal masks" in text


def rows_then_gelu(sum_first):
    """Return gelu(x · W) of a row layer, with its all_reduce before or after the GELU."""
    x, weight = lessons.numbers(4, 32), lessons.numbers(32, 128, seed=1)
    y = lessons.own(x, 1) @ lessons.own(weight, 0)
    gelu = torch.nn.functional.gelu
    z = gelu(reduce_from_group(y)) if sum_first else reduce_from_group(gelu(y))
    return torch.allclose(z, gelu(x @ weight))


def columns_then_gelu():
    """Say whether gelu of this rank's columns is its part of the gelu of all."""
    x, weight = lessons.numbers(4, 32), lessons.numbers(32, 128, seed=1)
    gelu = torch.nn.functional.gelu
    return torch.allclose(gelu(x @ lessons.own(weight, 1)), lessons.own(gelu(x @ weight), 1))


def test_a_gelu_works_on_columns_and_not_on_partial_sums(world):
    assert world.run(columns_then_gelu) == [True] * 4
    assert world.run(rows_then_gelu, True) == [True] * 4
    assert world.run(rows_then_gelu, False) == [False] * 4
    text = text_of(stored_chapter("04-tensor-parallel"))
    assert "gelu(a + b) is not gelu(a) + gelu(b), so an all_reduce would be needed before" in text


def tensors_of_logits_size(loss_of):
    """Return how many new tensors as large as the logits a loss keeps for backward."""
    logits = torch.randn(8, 16, requires_grad=True)
    kept = set()
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: kept.add(t.data_ptr()) or t if t.numel() == 128 else t, lambda t: t
    ):
        loss_of(logits, torch.arange(8))
    return len(kept - {logits.data_ptr()})


def test_the_librarys_loss_keeps_the_probabilities_alone(world):
    """With the logits and their gradient they are three."""
    assert world.run(tensors_of_logits_size, vocab_parallel_cross_entropy) == [1] * 4
    text = text_of(stored_chapter("04-tensor-parallel"))
    assert "the library's 3 are logits, probabilities and gradient" in text


def clipped_in_two_groups():
    """Clip PyTorch's split GPT as the chapter says; return its norm before and after."""
    model = lessons.dtensor(lessons.gpt(SHAPE))
    lessons.forward_backward(model, *lessons.batch_of(SHAPE))
    groups = {True: [], False: []}
    for parameter in model.parameters():
        groups[isinstance(parameter, DTensor)].append(parameter)

    def norm_of_all():
        split, whole = (get_total_norm([p.grad for p in groups[kind]]) for kind in (True, False))
        return (split.full_tensor() ** 2 + whole**2).sqrt()

    norm = norm_of_all()
    for parameters in groups.values():
        clip_grads_with_norm_(parameters, 0.5, norm)
    return norm.item(), norm_of_all().item()


def test_a_mixture_is_clipped_in_two_groups(world):
    model = lessons.gpt(SHAPE)
    lessons.forward_backward(model, *lessons.batch_of(SHAPE))
    plain = get_total_norm([p.grad for p in model.parameters()]).item()
    for before, after in world.run(clipped_in_two_groups):
        assert before == pytest.approx(plain, rel=1e-9) and plain > 1
        assert after == pytest.approx(0.5, rel=1e-5)
    text = text_of(stored_chapter("04-tensor-parallel"))
    assert "`get_total_norm`" in text and "`clip_grads_with_norm_` twice" in text


def test_masks_repeat_with_equal_seeds_only(world):
    assert len(set(world.run(lessons.mask, 0))) == 1
    assert len(set(world.run(lessons.mask, 1))) == 4


def test_equal_masks_make_the_share_kept_vary_more():
    """Four equal parts of 32 numbers are 32 independent choices, four different ones 128."""
    draw = torch.Generator("cpu").manual_seed(0)
    masks = torch.rand(10_000, 4, 32, generator=draw, device="cpu") < 0.5
    equal, different = (
        kept.float().mean((1, 2)).std().item() for kept in (masks[:, :1].expand_as(masks), masks)
    )
    assert equal == pytest.approx(0.5 / 32**0.5, rel=0.02)
    assert different == pytest.approx(0.5 / 128**0.5, rel=0.02)
    assert equal / different == pytest.approx(4**0.5, rel=0.03)
    text = text_of(stored_chapter("04-tensor-parallel"))
    assert "its standard deviation is √tp times as large" in text


def logits_with_dropout(shape, split):
    """Return the logits of a GPT with dropout, in training, from one seed; whole on every rank."""
    model = GPT(shape).double()
    if split:
        model = tensor_parallel(model)
    torch.manual_seed(4)
    logits = model.to(torch.get_default_device())(lessons.batch_of(shape)[0])
    return gather_from_group(logits).detach() if split else logits.detach()


def test_dropout_on_the_cpu_is_that_of_the_plain_model(worlds):
    plain = {"y": logits_with_dropout(NOISY, False)}
    results = worlds(2).run(logits_with_dropout, NOISY, True)
    assert lessons.same([{"y": z} for z in results], plain)
    text = text_of(stored_chapter("04-tensor-parallel"))
    assert "on the CPU a GPT in training gives the logits of the plain GPT" in text


def test_a_head_whose_size_is_written_cannot_be_cut():
    """The chapter's -1 lets PyTorch infer 2 numbers a head; 8 would have raised."""
    own = torch.zeros(2, 16, 8)
    assert own.unflatten(-1, (4, -1)).shape == (2, 16, 4, 2)
    with pytest.raises(RuntimeError):
        own.unflatten(-1, (4, 8))
    text = text_of(stored_chapter("04-tensor-parallel"))
    assert "Write the head's size instead of -1, and PyTorch raises an error" in text


def test_a_state_of_four_ranks_is_read_by_two(world, worlds):
    state = world.run(lessons.written, SHAPE)[0]
    plain = lessons.gpt(SHAPE).state_dict()
    for loaded in worlds(2).run(lessons.read, SHAPE, state):
        assert lessons.same([loaded], plain) and loaded.keys() == plain.keys()


def test_a_step_in_slow_motion_has_the_order_and_bytes_of_the_prediction(capsys):
    recorded, predicted = slow.on("NVLink4")
    said = capsys.readouterr().out
    assert "NVLink4: 8% exposed" in said and "same bytes: True" in said
    for lane, ops in (("comm", ["all_reduce"] * 8), ("compute", PHASES)):
        for ledger in (recorded, predicted):
            rows = sorted(ledger.where(lane=lane), key=lambda row: row.start)
            assert [row.op for row in rows] == ops
    assert list(recorded.ranks) == [0]
    wide, thin = 6 * 4096 * 8192 * 2, 4096 * (2 + 2 * 4)  # bfloat16, but the loss's sums
    assert sum(row.bytes for row in recorded.where(lane="comm")) == wide + thin


def test_what_the_sums_of_a_layers_forward_are_to_its_other_operations():
    text, rates = text_of(stored_chapter("04-tensor-parallel")), speeds("H100", "NVLink4")
    _, layer, *_ = passes(slow.LARGE, slow.RANKS, 1, itemsize=slow.BFLOAT16)
    sums, without_latency, products, computed = 0.0, 0.0, 0.0, 0.0
    for name, flop, numbers, _ in layer.forward:
        nbytes = round(numbers * slow.BFLOAT16)
        if name == SUM:
            sums += rates.moving("all_reduce", slow.RANKS, nbytes)
            without_latency += mean_sent("all_reduce", slow.RANKS, nbytes) / 450e9
        elif name != WAIT:
            computed += rates.compute(flop, nbytes)
            products += rates.compute(flop, 0) if name in ("mm", "addmm") else 0
    formula, waits = round(100 * without_latency / products), round(100 * sums / computed)
    assert f"Why 8 %, if the formula gives {formula} %?" in text
    assert f"a layer's forward waits for {waits} % of its computing time" in text
    assert sums > without_latency and computed > products


def test_the_share_of_both_passes_in_which_a_layer_waits():
    """A layer waits for its two sums of forward; the whole model also for three others."""
    text = text_of(stored_chapter("04-tensor-parallel"))
    step = tensor_parallel_step(
        slow.LARGE, slow.RANKS, 1, speeds("H100", "NVLink4"), itemsize=slow.BFLOAT16
    ).where(rank=0)
    parts = passes(slow.LARGE, slow.RANKS, 1, itemsize=slow.BFLOAT16)
    times = iter(
        [row.seconds for row in sorted(step, key=lambda r: r.start) if row.lane == "compute"]
    )
    orders = [*((n, part.forward) for n, part in enumerate(parts))]
    orders += [(n, parts[n].backward) for n in reversed(range(len(parts)))]
    computed = [0.0] * len(parts)
    for n, operations in orders:
        computed[n] += sum(next(times) for op in operations if op.name not in (SUM, WAIT))
    waits = sorted(step.where(lane="wait"), key=lambda row: row.start)
    assert len(waits) == 5  # embedding, the layer's two, the loss's two; none in backward
    assert [sum(op.name == SUM for op in part.forward) for part in parts] == [1, 2, 0, 2]
    layer = sum(row.seconds for row in waits[1:3])
    share = 100 * layer / (layer + computed[1])
    assert f"so the layer alone waits for {share:.0f} % of the time of both passes" in text
    total = sum(row.seconds for row in waits)
    share = 100 * total / (total + sum(computed))
    assert share == pytest.approx(100 * slow.exposed(slow.in_phases(step)))
    assert f"it is {share:.0f} % for the whole model" in text


def test_from_how_many_ranks_on_a_forward_sends_longer_than_it_computes():
    text = text_of(stored_chapter("04-tensor-parallel"))
    for link, ranks in (("NVLink4", "12.2 ranks over NVLink 4"), ("InfiniBand NDR", "2.2 over")):
        h100 = speeds("H100", link, "bf16")
        bandwidth = mean_sent("all_reduce", 2, 10**15) / h100.moving("all_reduce", 2, 10**15)
        most = 1 + 6 * 8192 * bandwidth / (2 * h100.peak)
        assert f"from {ranks}" in text and ranks.startswith(f"{most:.1f} ")


def test_more_is_exposed_on_a_slower_link():
    """The share is that of forward and backward, which are drawn; an update would lower it."""
    links = ("NVLink4", "InfiniBand NDR")
    steps = [
        tensor_parallel_step(slow.LARGE, 4, 1, speeds("H100", link), itemsize=2).where(rank=0)
        for link in links
    ]
    drawn = [slow.exposed(slow.in_phases(step)) for step in steps]
    assert [round(share, 2) for share in drawn] == [0.08, 0.56]
    assert [slow.exposed(step) < share for step, share in zip(steps, drawn)] == [True, True]


def test_the_table_of_heads():
    shape = GPTShape(width=16_384, heads=128, kv_heads=8)
    rows = lessons.heads_by_ranks(shape, (4, 16)).splitlines()[1:]
    assert [row.split() for row in rows] == [["4", "32", "2", "1"], ["16", "8", "1", "2"]]


def test_the_strangers_gradients_are_all_there():
    model = Stranger()
    with Memory(model):
        model(torch.arange(8)[None]).square().sum().backward()
    assert all(p.grad.abs().sum() > 0 for p in model.parameters())


@pytest.mark.parametrize(("options", "sums"), [({}, 8), ({"kv_heads": 1, "dropout": 0.1}, 10)])
def test_a_step_is_timed_beside_its_prediction(worlds, options, sums):
    """Four of a layer, 2 of the vocabulary, 2 of the loss; of a shared key its bias and weight."""
    shape = GPTShape(vocabulary=32, sequence=4, width=8, heads=2, layers=1, **options)
    computing, moving, whole = wall_clock.compared(worlds(2), Machine(), shape, 2, repeats=3)
    assert moving[:2] == ("all-reduces", 10.0 * sums) and computing[2] is None
    assert computing[1] < whole[1] <= computing[1] + 10 * sums and 0 < whole[2] < 5


# --- what the card and the plan say


def whole_and_split(shape):
    """Return this rank's share of each parameter of a split GPT, by its name."""
    plain = dict(lessons.gpt(shape).named_parameters())
    split = tensor_parallel(lessons.gpt(shape)).named_parameters()
    return {name: p.numel() / plain[name].numel() for name, p in split}


def test_norms_positions_and_row_biases_stay_whole(worlds):
    text = text_of(stored_chapter("04-tensor-parallel"))
    shape = GPTShape(width=32, heads=4, layers=2, sequence=16)
    (shares, *_) = worlds(4).run(whole_and_split, shape)
    assert set(shares.values()) == {0.25, 1.0}
    kept = {name for name, share in shares.items() if share == 1}
    for name in shares:
        whole = "norm" in name or "positions" in name
        whole |= name.endswith(("proj.bias", "down.bias"))
        assert (name in kept) == whole, name
    assert "1/tp of the split matrices" in text
    assert "norms, positions, row biases and layers' inputs stay whole" in text


def what_dropout_gets(shape):
    """Say which tensors dropout gets under PyTorch's plan; return the masks of the split ones."""
    model, kinds, masks, real = lessons.dtensor(GPT(shape)), [], [], models.causal

    def core(q, k, v, dropout):
        kinds.append(type(q))
        state = torch.get_rng_state()
        masks.append(real(*map(torch.ones_like, (q, k, v)), dropout).tolist())
        torch.set_rng_state(state)
        return real(q, k, v, dropout)

    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.register_forward_pre_hook(lambda _, given: kinds.append(type(given[0])))
        if hasattr(module, "core"):
            module.core = core
    torch.manual_seed(7)
    model(lessons.batch_of(shape)[0])
    return sum(issubclass(kind, DTensor) for kind in kinds), len(kinds), masks


def test_under_the_plan_dropout_gets_plain_tensors_and_equal_masks(worlds):
    text = text_of(stored_chapter("04-tensor-parallel"))
    shape = GPTShape(width=32, heads=4, layers=2, sequence=16, dropout=0.5)
    first, *others = worlds(4).run(what_dropout_gets, shape)
    dtensors, calls, masks = first
    assert dtensors == 0 and calls == 7  # the embedding's, and of two layers three each
    assert len(masks) == 2 and torch.tensor(masks[0]).unique().numel() > 2
    for other in others:
        assert other == first
    assert "Under this plan dropout gets plain tensors" in text
