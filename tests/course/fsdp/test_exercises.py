"""Chapter 3's checkers, from the start state over typical mistakes to the solution, on ranks."""

import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from PIL import Image
from torch.distributed import fsdp as pytorch
from torch.nn.functional import pad

from lib.course.fsdp import exercises as chapter
from lib.course.fsdp import lessons
from lib.course.fsdp.cover import IMAGE, without_and_with
from lib.course.narrow import WIDTH
from lib.predict.collectives.formulas import time_of
from lib.predict.larger import Larger
from lib.predict.sharded.fsdp_step import fsdp_step, hidden
from lib.predict.sharded.models import model
from lib.predict.sharded.prefetch import play_units
from lib.predict.sharded.traffic import across_hosts
from lib.predict.sharded.ultra_scale import figure
from lib.ranks.slow_motion import SlowMotion
from tests.course.stored_chapter import main_path, shown, stored_chapter

ROOT = Path(__file__).parents[3]


@pytest.fixture
def world(worlds):
    return worlds(4)


# --- predict


def test_the_predicted_numbers_are_those_of_a_closed_form():
    size = 405.8533888
    right = {
        "zero_2": (2 + 14 / 512) * size,
        "zero_3": 16 / 512 * size,
        "fewest": 47,
        "sent": 3 * 511 / 512 * 2 * size,
    }
    assert chapter.predict.check(**right).solved
    assert chapter.predict.answers == pytest.approx(right, rel=3e-3)
    four = chapter.predict.check(**right | {"sent": 3 * 511 / 512 * 4 * size})
    assert not four.solved and "sent: 4,860" in four.text and "is too much" in four.text
    assert not chapter.predict.check(**right | {"fewest": 16 * size / 141}).solved
    assert chapter.predict.check().text.startswith("Not solved yet")


# --- write


class Unbegun(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard): ...

    @staticmethod
    def backward(ctx, dy): ...


def gather(shard):
    whole = shard.new_empty(dist.get_world_size() * shard.shape[0], shard.shape[1])
    dist.all_gather_single(whole, shard.contiguous())
    return whole


class Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard):
        whole = gather(shard)
        ctx.save_for_backward(x, shard)
        ctx.kept = whole
        return x @ whole.T

    @staticmethod
    def backward(ctx, dy):
        x, shard = ctx.saved_tensors
        part = torch.empty_like(shard)
        dist.reduce_scatter_single(part, dy.T @ x / dist.get_world_size())
        return dy @ gather(shard), part


class Keeps(Linear):
    @staticmethod
    def backward(ctx, dy):
        x, shard = ctx.saved_tensors
        part = torch.empty_like(shard)
        dist.reduce_scatter_single(part, dy.T @ x / dist.get_world_size())
        return dy @ ctx.kept, part


class KeepsAndGathers(Linear):
    """Gathers twice in forward, and keeps the second whole."""

    @staticmethod
    def forward(ctx, x, shard):
        y = Linear.forward(ctx, x, shard)
        ctx.kept = gather(shard)
        return y

    backward = Keeps.backward


class GathersLate(Linear):
    """Gathers once more than is needed."""

    @staticmethod
    def backward(ctx, dy):
        gather(ctx.saved_tensors[1])
        return Linear.backward(ctx, dy)


class Sums(Linear):
    @staticmethod
    def backward(ctx, dy):
        x, shard = ctx.saved_tensors
        part = torch.empty_like(shard)
        dist.reduce_scatter_single(part, dy.T @ x)
        return dy @ gather(shard), part


def test_a_linear_layer_is_gathered_twice_and_reduced_once(world):
    assert chapter.write.check(Unbegun, world).text.startswith("Not solved yet")
    solved = chapter.write.check(Linear, world)
    assert solved.solved and solved.text == "Solved with two gathers and one reduce-scatter."


def test_weights_that_are_kept_and_a_forgotten_division_are_found(world):
    kept = chapter.write.check(Keeps, world)
    assert not kept.solved and "the whole weights were kept" in kept.text
    twice = chapter.write.check(KeepsAndGathers, world)
    assert not twice.solved and "the whole weights were kept" in twice.text
    late = chapter.write.check(GathersLate, world)
    assert not late.solved and "are enough" in late.text
    wrong = chapter.write.check(Sums, world)
    assert not wrong.solved and "entry 2 of what it returned" in wrong.text


# --- repair


def local(shards, limit):
    norm = torch.stack([g.square().sum() for g in shards]).sum().sqrt()
    scale = (limit / norm).clamp(max=1.0)
    return [g * scale for g in shards]


def repaired(shards, limit):
    total = torch.stack([g.square().sum() for g in shards]).sum()
    dist.all_reduce(total)
    scale = (limit / total.sqrt()).clamp(max=1.0)
    return [g * scale for g in shards]


def norms_added(shards, limit):
    """Add up norms in place of squares."""
    total = torch.stack([g.square().sum() for g in shards]).sum().sqrt()
    dist.all_reduce(total)
    scale = (limit / total).clamp(max=1.0)
    return [g * scale for g in shards]


def test_clipping_takes_the_norm_of_all_ranks(world):
    start = chapter.repair.check(local, world)
    assert not start.solved and "launched no collective" in start.text
    assert not chapter.repair.check(norms_added, world).solved
    assert chapter.repair.check(repaired, world).solved
    shards = [[torch.tensor([x])] for x in (3.0, 0.0, 4.0, 0.0)]
    clipped = world.map(_clip_one, shards)
    assert [round(x, 6) for x in clipped] == [0.6, 0, 0.8, 0]


def _clip_one(shards):
    return repaired(shards, 1.0)[0].item()


# --- reshard and choose


def unbegun(shards, numel, ranks): ...


def resharded(shards, numel, ranks):
    flat = torch.cat(shards)[:numel]
    return list(pad(flat, (0, -numel % ranks)).chunk(ranks))


def with_old_padding(shards, numel, ranks):
    flat = torch.cat(shards)
    return list(pad(flat, (0, -len(flat) % ranks)).chunk(ranks))


def test_shards_are_cut_anew_without_the_old_padding():
    assert chapter.reshard.check(unbegun).text.startswith("Not solved yet")
    assert chapter.reshard.check(resharded).solved
    wrong = chapter.reshard.check(with_old_padding)
    assert not wrong.solved and "elements" in wrong.text
    example = resharded([torch.tensor([1.0, 2.0]), torch.tensor([3.0, 0.0])], 3, 3)
    assert [part.tolist() for part in example] == [[1.0], [2.0], [3.0]]


def test_units_must_be_fast_enough_and_fit():
    check = chapter.choose.check
    assert check().text.startswith("Not solved yet")
    assert "fit, but the step is too slow" in check([1] * 16, 1).text
    assert "do not fit" in check([4] * 4, 1).text and "do not fit" in check([2] * 8, 2).text
    assert check([2] * 8, 1).solved
    assert "do not hold 16 blocks" in check([4, 4], 1).text


# --- what the chapter says


@pytest.fixture(scope="module")
def notebook():
    return stored_chapter("03-fsdp")


def prose(notebook):
    return "\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")


def test_the_first_picture_is_what_the_script_draws(notebook):
    (name,) = re.findall(r"!\[[^\]]+\]\((images/[\w-]+\.png)\)", notebook.cells[0].source)
    assert name.endswith(IMAGE) and Image.open(ROOT / "chapters" / name).size[0] == 2 * WIDTH
    without, prefetching = without_and_with()
    ends = [max(r.end for r in step.where(lane="compute")) for step in (without, prefetching)]
    assert 0.6 < ends[1] / ends[0] < 0.7  # "after two thirds of the time"


def test_what_the_text_says_of_its_numbers_is_what_the_cells_printed(notebook):
    stages = shown(notebook, "GB on each GPU")
    assert (
        "128.5   44.2   30.1   16.1" in stages and "17.6" in stages and "It is 44.2 GB." in stages
    )
    both = shown(notebook, "times.reveal")
    assert "\nall_reduce + all_gather: 1.5 × DDP, True" in both
    assert "\nreduce_scatter + all_gather: 1.0 × DDP, True" in both
    units = shown(notebook, "zero_3 = world")
    assert re.search(r"all_gather +42 .*\nreduce_scatter +18 +1,626,624", units)
    assert "66048 are out of bounds" in shown(notebook, "class Forgets")
    assert "It is 2 gathers." in shown(notebook, "waiting.reveal")
    assert "It is 4 times." in shown(notebook, "coarse.reveal")
    own = shown(notebook, "same gradients")
    assert "same order: True" in own and "same gradients: True" in own
    late = shown(notebook, "lessons.late_optimizer").split()
    assert [word for word in late if word in ("True", "False")] == ["False", "True", "True", "True"]
    assert "1.24 without meta, 0.36 with" in shown(notebook, "lessons.built_on_meta")
    held = re.search(r"scattered: ([\d,]+) .* block with ([\d,]+)", shown(notebook, "replayed"))
    free, largest = (int(n.replace(",", "")) / 1e6 for n in held.groups())
    assert f"{free:.2f} MB are free, of which {largest:.2f} MB form one block" in prose(notebook)
    assert f"The other {free - largest:.2f} MB lie in holes" in prose(notebook)
    mixed = shown(notebook, "torch.bfloat16")
    assert re.search(r"all_gather +12 +271,104\n.* reduce_scatter +6 +271,104", mixed)
    gains = re.findall(r"(\d+)%   18%", shown(notebook, "published.table"))
    assert gains == ["17", "9"]


def test_the_peaks_in_the_text_are_those_of_the_recorded_steps(notebook):
    kept = shown(notebook, "lessons.kept")
    peaks = [int(n.replace(",", "")) / 1e6 for n in re.findall(r"peak ([\d,]+) bytes", kept)]
    assert kept.count("True") == 4 and peaks == sorted(peaks, reverse=True) and len(peaks) == 4
    assert f"falls from {peaks[0]:.2f} MB to {peaks[3]:.2f} MB" in prose(notebook)


def test_one_unit_and_the_fewest_rows_that_hide_a_gather(notebook):
    """`fully_shard(model)` alone gathers once; a gather is hidden by a product and its ReLU."""
    rows = lessons.ROWS
    stands = Larger(lessons.SMALL, lessons.LARGE, batch=(lessons.FEW, rows), shared_by=(4,))
    speeds = SlowMotion("H100", link="NVLink4", factor=300, stands_for=stands)
    root = fsdp_step(lessons.LARGE, [rows] * 4, speeds, blocks=[8], resharded=False)
    assert f"gathers once ({1e3 * lessons.until_update(root):.2f} ms)" in prose(notebook)
    exposed = {n: 1 - hidden(fsdp_step(lessons.LARGE, [n] * 4, speeds), speeds)
               for n in (2600, 2800, 3600)}  # fmt: skip
    assert exposed[2800] == pytest.approx(exposed[3600]) == pytest.approx(2 / 16)
    assert exposed[2600] > 1.1 * 2 / 16 and "2,800 rows a rank" in prose(notebook)
    spans = [fsdp_step(lessons.LARGE, [rows] * 4, speeds, prefetch=n).makespan for n in range(1, 6)]
    assert spans[0] == spans[3] < spans[4]
    assert "A very high one (5 or more in the chain above) also delays" in prose(notebook)


def test_the_picture_of_units_takes_as_long_as_the_step_without_its_update(notebook):
    """One model of time: the units' times are those of the step, so both give the same answers."""
    speeds = SlowMotion("H100", link="NVLink4")
    step = fsdp_step(lessons.LARGE, [lessons.ROWS] * 4, speeds, prefetch=1)
    times = lessons.times_of_units(step, lessons.LARGE)
    played = {}
    for resharded in (True, False):
        for limit in range(1, 6):
            played[resharded, limit] = play_units(
                [lessons.LARGE.nbytes() // 8] * 8, *times, prefetch=limit, resharded=resharded,
                ranks=4, alpha=speeds.alpha, bandwidth=speeds.bandwidth,
            )  # fmt: skip
    ends = {at: max(bar.end for bar in run.bars) for at, run in played.items()}
    updates = sum(row.seconds for row in list(step.where(rank=0, lane="compute"))[-8:])
    assert ends[True, 1] == pytest.approx(step.makespan - updates, abs=1e-6)
    assert lessons.until_update(step) == pytest.approx(step.makespan - updates)
    assert f"the step takes {1e3 * ends[True, 1]:.2f} ms" in prose(notebook)
    without = fsdp_step(lessons.LARGE, [lessons.ROWS] * 4, speeds, prefetch=0)
    assert f"the step takes {1e3 * lessons.until_update(without):.2f} ms" in prose(notebook)
    assert f"{1e3 * ends[True, 1]:.2f} ms\n2 " in shown(notebook, "coarse.reveal")
    assert ends[True, 1] == ends[True, 2] == ends[True, 4] < ends[True, 5]
    peaks = [round(played[kind, 1].peak / 1e6) for kind in (True, False)]
    words = (
        f"the step takes {1e3 * ends[False, 1]:.2f} ms instead of {1e3 * ends[True, 1]:.2f}. "
        f"But it holds all units, {peaks[1]} MB instead of {peaks[0]}."
    )
    assert words in prose(notebook)


def test_over_a_slow_network_no_prefetch_limit_helps(notebook):
    """The answer to the second question under the sliders, at 20 GB/s."""
    speeds = SlowMotion("H100", link="NVLink4")
    step = fsdp_step(lessons.LARGE, [lessons.ROWS] * 4, speeds, prefetch=1)
    times, nbytes = lessons.times_of_units(step, lessons.LARGE), lessons.LARGE.nbytes() // 8
    link = {"ranks": 4, "alpha": speeds.alpha, "bandwidth": 20e9}
    spans = [play_units([nbytes] * 8, *times, prefetch=n, **link).end for n in range(1, 7)]
    assert max(spans) == pytest.approx(min(spans)) and "bandwidth to 20 GB/s" in prose(notebook)
    gather = time_of("all_gather", 4, nbytes, alpha=speeds.alpha, beta=1 / 20e9)
    assert f"20 GB/s = {1e3 * gather:.1f} ms" in prose(notebook) and gather > max(times[1])


def test_the_activations_in_the_text_are_those_of_the_8b_model(notebook):
    kept = figure(model("Llama 3 8B"), 8192, sp=True).activations / 1e9
    assert f"8,192 tokens × 4,096 × 32 layers = {kept:.0f} GB" in prose(notebook)


def test_hybrid_sharding_saves_what_the_text_says(notebook):
    full, hybrid = (across_hosts(way, 1.0, 64, 8) for way in ("full", "hybrid"))
    assert hybrid / full == pytest.approx(2 / 27) and full / hybrid == pytest.approx(13.5)
    assert "2/27" in prose(notebook) and "a factor of 13.5" in prose(notebook)


def test_a_parameter_keeps_its_own_version_counter():
    """Why autograd does not see that the storage behind `p.data` is filled again."""
    parameter, flat = torch.nn.Parameter(torch.ones(4)), torch.zeros(4)
    with torch.no_grad():
        parameter.add_(1)
    before = parameter._version
    parameter.data = flat.view_as(parameter)
    flat.add_(1)
    assert parameter._version == before == 1 and flat._version == 1
    flat.add_(1)
    assert parameter._version == 1 and flat._version == 2 and parameter.tolist() == [2.0] * 4


def test_no_answer_is_printed_before_its_reveal(notebook):
    """Where a guess is revealed, the covered answer is the first output of the cell."""
    revealing = [c for c in notebook.cells if c.cell_type == "code" and ".reveal(" in c.source]
    assert len(revealing) == 5
    for cell in revealing:
        assert "Show the answer" in cell.outputs[0].get("data", {}).get("text/html", "")


def test_the_names_in_the_table_are_pytorchs():
    for name in ("fully_shard", "FullyShardedDataParallel", "MixedPrecisionPolicy"):
        assert hasattr(pytorch, name)
    for name in ("set_modules_to_forward_prefetch", "set_modules_to_backward_prefetch",
                 "set_requires_gradient_sync", "unshard"):  # fmt: skip
        assert hasattr(pytorch.FSDPModule, name)
    for name in ("no_sync", "clip_grad_norm_", "summon_full_params"):
        assert hasattr(pytorch.FullyShardedDataParallel, name)
    for name in ("FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD"):
        assert hasattr(pytorch.ShardingStrategy, name)


def test_the_conventions_in_the_text_are_those_of_the_table(notebook):
    from lib.predict.sharded.states import convention

    text = prose(notebook)
    for name in ("ZeRO", "FSDP", "Megatron-LM", "DeepSpeed stage 2"):
        each = convention(name)
        assert f"({each.parameters} + {each.gradients} + {each.optimizer})" in text
    assert convention("Checkpoint").total == 14


def test_the_main_path_is_short(notebook):
    """At most 3,000 words before Going further, without what is folded and without pictures."""
    cells, words = main_path(notebook)
    assert 0 < cells <= 45 and 0 < words <= 3000
