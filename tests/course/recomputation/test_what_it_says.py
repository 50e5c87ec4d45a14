"""What chapter 9 says of its numbers is what its cells printed, and what is computed here."""

import math
import re
from collections import Counter
from contextlib import nullcontext
from functools import partial, reduce
from statistics import linear_regression, mean

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint as pytorchs
from torch.utils.checkpoint import create_selective_checkpoint_contexts, set_checkpoint_early_stop
from torch.utils.flop_counter import FlopCounterMode

from lib.course.recomputation import gist, lessons
from lib.draw import keep
from lib.predict.recompute import best, every, none, square_root, use_of
from lib.predict.recompute.budget import smallest_peak
from lib.predict.recompute.costs import backward_of
from lib.predict.recompute.published import FIGURE_7, TABLE_5
from lib.predict.roofline import speeds
from lib.predict.sequence.published_times import TABLE_4
from lib.predict.shape import GPTShape
from lib.predict.sharded.offload import host_speeds
from lib.single import GPT, Batches, next_token_loss
from lib.single import recompute as recompute_package
from lib.single.recompute import kept_bytes, recompute
from tests.course.stored_chapter import chapter_fixtures, limit_tests, shown
from tests.every import every as every_one

notebook, text = chapter_fixtures("09-recomputation")


test_the_main_path, test_the_minutes, test_what_it_prints = limit_tests()


def test_the_memory_of_the_recorded_steps(notebook, text):
    activations = r"rank 0: peak .*activations ([\d,]+)"
    everything, forgotten = re.findall(activations, shown(notebook, '"each block recomputed"'))
    megabytes = [int(n.replace(",", "")) / 1e6 for n in (everything, forgotten)]
    assert list(map(round, megabytes)) == [39, 4]
    assert "climb to 39 of 42.5 MB" in text and "peak of 9 MB only 4 MB are activations" in text
    recorded = shown(notebook, "everything = one.record")
    parts = re.findall(r"parameters ([\d,]+), gradients ([\d,]+)", recorded)
    ((weights, gradients),) = [[int(n.replace(",", "")) for n in pair] for pair in parts]
    mostly = f"mostly {weights / 1e6:.1f} MB of weights and {gradients / 1e6:.1f} MB of gradients"
    assert mostly in text and gradients > 0.85 * weights, "the peak comes near the end"
    x = 4 * 128 * 64 * 4
    layer = (38_310_912 - 1_703_936) / 12 + x
    assert f"{x:,} bytes instead of about {layer / 1e6:.0f} MB" in text
    assert "kept after forward: 38,310,912 bytes" in shown(notebook, "kept after forward")
    printed = "bytes kept: 1703936\nby the library: 1703936"
    assert printed in shown(notebook, "by_pytorch =")
    assert "all 14 blocks of the GPT (embedding, 12 layers, head)" in text
    assert len(lessons.gpt().blocks) == 14 and lessons.SHAPE.layers == 12


def test_the_published_layer(text):
    forward, backward = TABLE_4["tensor parallel"]
    assert f"took {forward} ms in forward and {backward} ms in backward" in text
    assert round(backward / forward, 1) == 1.5
    large = 34 * 2048 * 12_288, 5 * 96 * 2048**2
    assert [f"{nbytes / 1e9:.2f} GB" for nbytes in large] == ["0.86 GB", "2.01 GB"]
    assert "= 0.86 GB" in text and "= 2.01 GB" in text


def test_the_answers_to_the_controls(text):
    costs = lessons.large_costs()
    peak = lambda plan: use_of(plan, costs).peak / 1e9
    assert f"{peak(none(34)):.1f} GB" == "32.0 GB" and "forward pass, 32.0 GB" in text
    assert f"k = 2 needs {peak(every(34, 2)):.2f} GB" in text
    assert f"k = 1 hardly more, {peak(every(34, 1)):.2f} GB" in text
    assert len(square_root(34)[0]) == 5
    assert f"chooses k = 5, √34 rounded down, and needs {peak(square_root(34)):.2f} GB" in text
    logits = 8192 * lessons.LARGE.vocabulary * 2
    assert f"128,256 · 2 bytes = {logits / 1e9:.1f} GB" in text and 2 * logits > 4e9
    held = 1 + costs[1].inside / costs[1].input
    assert f"h = {held:.1f} inputs" in text and f"= {math.sqrt(34 / held):.1f}" in text
    assert round(34 / 2 + 5 * 96 * 2048 / 12_288 / 2) == 57 and "15 (here) to 57 times" in text


def test_each_gigabyte_of_the_frontier_saves_about_as_much(text):
    costs = lessons.large_costs()
    budgets = [4 + n / 4 for n in range(81)]  # GB
    times = [1e3 * use_of(best(costs, gb * 1e9), costs).again for gb in budgets]
    saved = (times[0] - times[-1]) / 20
    assert saved == pytest.approx(-linear_regression(budgets, times).slope, rel=0.02)
    assert f"From 4 to 24 GB each further gigabyte saves about {saved:.1f} ms" in text
    layers = (times[0] - times[-1]) / (1e3 * costs[1].forward) / 20  # kept for each gigabyte
    assert 0.95 < layers < 1.1 and "because about one more layer is kept" in text


@pytest.mark.parametrize("budget", [3e9, 10e9, 28e9])
def test_the_plan_for_a_budget_is_the_best_one(text, budget):
    """Finer steps find nothing better."""
    costs = lessons.large_costs()
    assert use_of(best(costs, budget), costs) == use_of(best(costs, budget, 10**6), costs)
    assert "it finds the best of all plans that run each block again at most once" in text


def test_a_plan_needs_less_than_any_k_even_if_everything_runs_again(text):
    costs = lessons.large_costs()
    least = smallest_peak(costs)
    assert f"but the head runs again in {least / 1e9:.2f} GB, less than with any k" in text
    *checkpoints, head = best(costs, least)
    assert head == len(costs) - 1 and every_one(isinstance(part, tuple) for part in checkpoints)
    assert len(checkpoints[0]) > len(checkpoints[-1])
    every_k = [use_of(every(len(costs), k), costs).peak for k in range(1, 35)]
    assert least < 0.9 * min(every_k)


def test_a_kept_bmm_keeps_the_scores_and_kept_bytes_does_not_see_it(text):
    aten, inputs = torch.ops.aten, lessons.batch()[0]
    made = []

    class Products(TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
            result = operation(*args, **kwargs or {})
            if operation is aten.bmm.default:
                made.append(result.shape[-2:])
            return result

    def kept(operations):
        contexts = partial(create_selective_checkpoint_contexts, operations)
        model, x = lessons.gpt(), inputs
        options = {"use_reentrant": False, "context_fn": contexts}
        chain = nn.Sequential(*model.blocks.values())
        chain.forward = lambda x: reduce(lambda x, block: pytorchs(block, x, **options), chain, x)
        return kept_bytes(chain, x)

    with Products():
        lessons.gpt()(inputs)
    assert (inputs.shape[1],) * 2 in made  # a head's scores [S, S]
    few = [aten.mm.default, aten.addmm.default]
    assert kept(few) == kept([*few, aten.bmm.default])
    assert "`kept_bytes` does not count them" in text
    warning = "Leave out `bmm` if attention is not one kernel, because it would keep the scores"
    assert warning in text


def test_a_pipelines_checkpoints(text):
    """h = 0.995 GB of a layer, i = 0.067 of these its input: the first stage of eight, 4 layers."""
    h, i = 0.995, 0.067
    peak = lambda microbatches, k: (microbatches * 4 // k - 1) * i + k * h
    for kind, many in (("GPipe", 32), ("1F1B", 8)):
        least = min((1, 2, 4), key=lambda k: peak(many, k))
        assert least == {"GPipe": 4, "1F1B": 2}[kind]
    for many, k in ((32, 2), (8, 2), (32, 4), (8, 4)):
        assert f"{many * 4 // k - 1} · 0.067 + {k} · 0.995 = {peak(many, k):.2f}" in text
    assert "around all four layers are best for GPipe, and around two (or one) for 1F1B" in text


def test_the_picture_takes_backward_from_the_roofline_as_the_cover_does():
    data = keep(lessons.LARGE, "all", itemsize=2).live[1]
    backward = backward_of(lessons.LARGE, 1, speeds("H100"), itemsize=2)
    assert data["backward"] == pytest.approx(backward)


def test_the_times_of_offloading(text):
    cost, host = lessons.large_costs()[1], host_speeds("H100", "PCIe5")
    backward = backward_of(lessons.LARGE, 1, speeds("H100"), itemsize=2)[1]
    assert f"A layer keeps {round(cost.kept / 1e6)} MB" in text
    assert f"its copy takes {1e3 * cost.kept / host.bandwidth:.1f} ms" in text
    assert f"its forward takes {1e3 * cost.forward:.1f} ms" in text
    assert f"its backward {1e3 * backward:.1f}" in text
    assert f"which is {cost.input / 1e6:.0f} MB here" in text


def test_eight_bits_change_a_loss_less_than_a_seed_does(notebook, text):
    rows = {}
    for line in shown(notebook, "further.encodings()").splitlines()[1:]:
        name, rest = line[:9].strip(), line[9:].split()
        rows[name] = rest[3:]
        assert name != "all, fp8" or f"the {rest[2][:-1]} of our small VGG, whose" in text
    plain = rows["plain"]
    assert len(plain) == len(gist.SEEDS) == 3
    assert rows["lossless"] == rows["binarise"] == rows["sparse"] == plain
    means = [rows[name][-1] for name in ("fp8", "all, fp8")]
    means.append(f"{mean(map(float, plain)):.1f}")
    assert "are {} and {}, against *plain*'s {}".format(*means) in text


def test_what_selective_adds_to_the_operations(text):
    from lib.predict.recompute.published import MODELS, Large, operations_added

    assert f"{operations_added(MODELS['22B']):.1%}" == "1.8%" and "1.8 % for this model" in text
    opening = operations_added(Large(4096, 32, 8192, 1, 1))
    assert round(100 * opening) == 8 and "8 % for the S and D of the opening picture" in text
    plain = sum(TABLE_4["tensor parallel"])
    added = lambda name: round(100 * (sum(TABLE_4[name]) / plain - 1))
    assert (added("all recomputed"), added("selective")) == (39, 7)
    assert "*all* added 39 % to the layer, and *selective* only 7 %" in text


def test_an_early_stop_leaves_out_the_last_product_of_each_block(text):
    """Of 72 parts of a step's products 24 run again, or 16: an MLP's second matrix has 8."""
    shape = GPTShape(width=256, heads=4, layers=6, sequence=32)
    inputs, targets = Batches(4, shape.sequence)[0]
    counts = {}
    for early in (None, True, False):
        model = GPT(shape)
        run = nullcontext() if early is None else set_checkpoint_early_stop(early)
        with FlopCounterMode(display=False) as counter, run:
            x = inputs
            for block in model.blocks.values():
                x = block(x) if early is None else pytorchs(block, x, use_reentrant=False)
            next_token_loss(x, targets).backward()
        counts[early] = counter.get_total_flops()
    library = recompute(GPT(shape), "all")
    with FlopCounterMode(display=False) as counter:
        next_token_loss(library(inputs), targets).backward()
    assert counts[False] == pytest.approx(4 / 3 * counts[None], rel=0.005)
    assert counts[True] == counter.get_total_flops()
    assert counts[True] == pytest.approx((1 + 16 / 72) * counts[None], rel=0.005)
    assert 16 / 72 == 2 / 9 and "the operations grow by 2/3 · 1/3 = 2/9 = 22 %" in text
    assert "If the scores cost little, this product is a third of a layer's forward" in text
    assert 16 / 24 == 2 / 3 and "So the second run repeats two thirds of forward" in text


def test_the_selective_checkpoint_of_the_chapter_is_the_librarys(notebook):
    (cell,) = [c for c in notebook.cells if "def selective" in c.source]
    space = {"library": recompute_package, "partial": partial}
    exec(cell.source.split("\n\n\nprint")[0], space)
    inputs, _ = lessons.batch()
    ours = kept_bytes(space["selective"](lessons.gpt()), inputs)
    assert ours == kept_bytes(recompute(lessons.gpt(), "selective"), inputs)
    assert ours < kept_bytes(lessons.gpt(), inputs)


def test_pytorchs_checkpoint_in_the_chapter_changes_no_gradient(notebook):
    space = {"torch": torch, "lessons": lessons}
    for words in ("def checkpoint(function", "class Checkpointed", "class PyTorchCheckpointed"):
        (cell,) = [c for c in notebook.cells if words in c.source]
        exec(re.split(r"\n\n\n(?=print|by_pytorch)", cell.source)[0], space)
    inputs, targets = lessons.batch()
    plain, ours = lessons.gpt(), recompute(lessons.gpt(), "all")
    theirs, built = (
        space["PyTorchCheckpointed"](lessons.gpt()),
        space["Checkpointed"](lessons.gpt()),
    )
    assert kept_bytes(theirs, inputs) == kept_bytes(ours, inputs)
    for model in (plain, theirs, built):
        next_token_loss(model(inputs), targets).backward()
    for model in (theirs, built):
        both = zip(model.parameters(), plain.parameters(), strict=True)
        assert every_one(torch.equal(a.grad, b.grad) for a, b in both)


class Counted(TorchDispatchMode):
    """Counts the operations that are computed."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, operation, types, args=(), options=None):
        self.counts[operation] += 1
        return operation(*args, **options or {})


def test_the_products_in_the_list_are_computed_once(text):
    code = re.search(r"```python\n(from torch.utils.checkpoint import .*?)```", text, re.S)[1]
    block, x = list(lessons.gpt().blocks.values())[1], torch.ones(2, 16, 64, requires_grad=True)
    space = {
        "torch": torch,
        "partial": partial,
        "torch_checkpoint": pytorchs,
        "block": block,
        "x": x,
    }
    with Counted() as selective:
        exec(code, space)
        space["y"].sum().backward()
    gradients = [p.grad for p in block.parameters()]
    block.zero_grad()
    with Counted() as full:
        pytorchs(block, x, use_reentrant=False).sum().backward()
    assert every_one(torch.equal(a, p.grad) for a, p in zip(gradients, block.parameters()))
    product, norm = torch.ops.aten.addmm.default, torch.ops.aten.native_layer_norm.default
    assert full.counts[product] > 4 == selective.counts[product]
    assert full.counts[norm] == selective.counts[norm] == 4  # so the rest is computed again


def test_a_layer_keeps_the_published_bars(notebook):
    rows = shown(notebook, "kept_on_a_rank").split("\n\n")[0].splitlines()[1:]
    assert [row.split()[0] for row in rows] == ["22B", "175B", "530B"]
    for row in rows:
        name, *printed = row.split()
        bars = zip(printed, FIGURE_7[name], strict=True)
        assert every_one(abs(float(a.rstrip("%")) - b) <= 0.1 for a, b in bars)


def test_the_published_iterations(text):
    everything, both = TABLE_5["22B"]
    took = f"{both:.2f} s with *both* and {everything:.2f} s with *all*"
    assert f"Iterations of 22B took {took}" in text
    assert round(100 * (everything / both - 1)) == 29
    assert "*both* ran 29 % more steps an hour" in text


def test_the_compilers_budget_is_off_by_default(text):
    """That a smaller share keeps less is tested in tests/single/recompute."""
    config = pytest.importorskip("torch._functorch.config")
    assert config.activation_memory_budget == 1.0
    assert "a share below 1.0, its default" in text


def test_the_example_of_the_checkpoint_is_told_in_its_order(notebook, text):
    """The numbers 0 and 1 are saved, and 1 is asked for first, while the function ran once."""
    space, events = {"torch": torch}, []
    (cell,) = [c for c in notebook.cells if "def checkpoint(function, x)" in c.source]
    exec(cell.source, space)
    real = space["saved_tensors_hooks"]

    def noted(pack, unpack):
        def note(name, hook):
            return lambda value: events.append((name, hook.__name__)) or hook(value)

        return real(note("pack", pack), note("unpack", unpack))

    space["saved_tensors_hooks"] = noted
    x = torch.ones(3, requires_grad=True)
    space["checkpoint"](lambda x: x.sin().exp(), x).sum().backward()
    names = [name for _, name in events]
    assert names == ["forget", "forget", "remember", "catch", "catch", "remember"]
    assert torch.equal(x.grad, x.detach().sin().exp() * x.detach().cos())
    assert "asks for 1, so the function runs again, and both tensors are collected" in text


def test_a_stage_holds_less_with_checkpoints(text):
    costs = lessons.large_costs()[1:5]
    assert [round(b / 1e9, 3) for b in (costs[0].kept, costs[0].input)] == [0.995, 0.067]
    plans = {"nothing": none(4), "each layer": every(4, 1), "all four layers": every(4, 4)}
    for name, plan in plans.items():
        (row,) = re.findall(rf"^\| {name} \|.*= ([\d.]+) \|.*= ([\d.]+) \|$", text, re.M)
        held = [use_of(plan, costs).in_flight(n) / 1e9 for n in (32, 8)]
        decimals = [len(told.split(".")[1]) for told in row]
        assert [f"{gb:.{n}f}" for gb, n in zip(held, decimals)] == list(row)


def test_the_chapters_own_checkpoint_serves_two_backward_passes_and_misses_a_change(notebook):
    """As the text says of x; the library's and PyTorch's raise an error there, as plain does."""
    space = {"torch": torch}
    exec(next(c.source for c in notebook.cells if "def checkpoint(function, x)" in c.source), space)
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4), nn.GELU())
    x, found = torch.randn(3, 4, requires_grad=True), []
    theirs = partial(pytorchs, use_reentrant=False)
    for call in (lambda f, x: f(x), space["checkpoint"], recompute_package.checkpoint, theirs):
        y = call(block, x).sum()
        torch.autograd.grad(y, block[2].weight, retain_graph=True)
        found.append(torch.autograd.grad(y, x)[0])
        h = 1 * x
        y = call(block, h).sum()
        h += 1
        with nullcontext() if call is space["checkpoint"] else pytest.raises(RuntimeError):
            y.backward()
    assert every_one(torch.equal(found[0], other) for other in found[1:])


def test_how_much_more_is_kept_when_the_sequence_doubles(text):
    kept = []
    for tokens in (64, 128, 256):
        shape = GPTShape(width=64, heads=4, layers=12, sequence=tokens)
        kept.append(kept_bytes(lessons.gpt(shape), lessons.batch(1, tokens)[0]))
    assert [f"{b / a:.1f}" for a, b in zip(kept, kept[1:])] == ["2.4", "2.7"]
    assert "*none* keeps 2.4 and then 2.7 times as much" in text


def test_a_plan_by_hand_follows_its_hints(text):
    from lib.course.recomputation.exercises import BUDGET, UNEQUAL, by_hand

    plan = eval(re.search(r"by_hand\.check\((\(.*?\))\)+$", text, re.M)[1])
    assert by_hand.check(plan).solved
    assert use_of(plan, UNEQUAL).peak <= BUDGET < use_of(none(8), UNEQUAL).peak
