"""What chapter 3 says: its numbers are what its cells print and what can be computed."""

import inspect
import re
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch.distributed import fsdp as pytorch
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

from lib.course.fsdp import lessons, published, slow_chain
from lib.course.fsdp.cover import IMAGE, without_and_with
from lib.course.fsdp.exercises import choose
from lib.course.fsdp.repair import BUGS
from lib.course.narrow import WIDTH
from lib.predict.collectives.formulas import time_of
from lib.predict.hardware import gpu, link
from lib.predict.sharded.fsdp_step import fsdp_step, hidden
from lib.predict.sharded.models import model
from lib.predict.sharded.prefetch import play_units
from lib.predict.sharded.states import held
from lib.predict.sharded.traffic import across_hosts
from lib.ranks.slow_motion import SlowMotion
from tests.course.stored_chapter import main_path, shown, stored_chapter, text_of
from tests.every import every

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def notebook():
    return stored_chapter("03-fsdp")


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
    both = shown(notebook, "beside_ddp.reveal")
    assert "\nall_reduce + all_gather: 1.5 × DDP, True" in both
    assert "\nreduce_scatter + all_gather: 1.0 × DDP, True" in both
    units = shown(notebook, "zero_3 = world")
    assert re.search(r"all_gather +42 .*\nreduce_scatter +18 +1,626,624", units)
    assert "66048 are out of bounds" in shown(notebook, "class Forgets")
    assert "It is 2 gathers." in shown(notebook, "waiting.reveal")
    whole, single = (slow_chain.cut(layers).held for layers in (8, 1))
    assert whole / single == pytest.approx(6, rel=1e-3)
    assert "3 × 8 layers instead of 4, six times as much" in text_of(notebook)
    assert "the factor is four, as in the charts, which count no copy" in text_of(notebook)
    theirs = inspect.getsource(FSDPParamGroup.post_backward)
    assert theirs.index("self.reshard()") < theirs.index("foreach_reduce(")
    link = {"ranks": 4, "alpha": 0.0, "bandwidth": 1e9}
    held = [max(whole + gradients for _, whole, gradients in play_units(*sizes, **link).held)
            for sizes in ([[1] * 8] * 3, [[8]] * 3)]  # fmt: skip
    assert held[1] / held[0] == 4
    chain = lessons.LARGE
    step = fsdp_step(chain, [lessons.ROWS] * slow_chain.RANKS, slow_chain.speeds())
    usual = 1e6 * slow_chain.unit_times(step)[1][3]
    relu = 1e6 * 3 * 4096**2 * 4 / 3.35e12  # reads dy and y, writes dx
    cat, div = (1e6 * n * 4096**2 * 4 / 3.35e12 for n in (2, 2 / 4))  # of a quarter: the shard
    assert usual == pytest.approx(278 + relu + cat + div, abs=1)
    parts = f"two products (278 µs), ReLU ({relu:.0f}), copying the gradients ({cat:.0f})"
    parts += f" and dividing the reduced shard ({div:.0f})"
    assert f"computes for {usual:.0f} µs: {parts}." in text_of(notebook)
    logits = 8_192 * 128_256 * 4 / 1e9
    assert f"Logits in float32 add {logits:.1f} GB, and their gradient as much" in text_of(notebook)
    assert 30.1 + 44 < 80 < 30.1 + 44 + 2 * logits, "stage 2 is too much with them"
    own = shown(notebook, "same gradients")
    in_turn = re.findall(r"all_gather|reduce_scatter", own.split("66,048 × 2")[1])
    assert in_turn == ["all_gather", "reduce_scatter"] * 5 + ["reduce_scatter"]
    assert (
        "launch the next unit's all_gather before each reduce_scatter except the last"
        in text_of(notebook)
    )
    assert "same order: True" in own and "same gradients: True" in own
    late = shown(notebook, "lessons.late_optimizer").split()
    said = [word for word in late if word in ("True", "False")]
    assert said == ["False", "True", "True", "True", "True", "False"]
    on_meta = shown(notebook, "lessons.built_on_meta")
    assert re.findall(r"(True|False) .*: ([\d.]+)", on_meta) == [
        ("False", "1.24"),
        ("True", "0.36"),
    ]
    held = re.search(r"scattered: ([\d,]+) .* block with ([\d,]+)", shown(notebook, "replayed"))
    free, largest = (int(n.replace(",", "")) / 1e6 for n in held.groups())
    assert f"{free:.2f} MB are free, of which {largest:.2f} MB form one block" in text_of(notebook)
    assert f"The other {free - largest:.2f} MB lie in holes" in text_of(notebook)
    mixed = shown(notebook, "torch.bfloat16")
    assert re.search(r"all_gather +12 +271,104\nreduce_scatter +6 +271,104", mixed)
    assert "It is 8 bytes." in mixed and "2 + 2 + 4 = 8" in text_of(notebook)
    gains = re.findall(r"(\d+)%   18%", shown(notebook, "published.table"))
    assert gains == ["17", "9"]


def test_the_peaks_in_the_text_are_those_of_the_recorded_steps(notebook):
    kept = shown(notebook, "lessons.kept")
    peaks = [int(n.replace(",", "")) / 1e6 for n in re.findall(r"peak ([\d,]+) bytes", kept)]
    assert kept.count("True") == 4 and peaks == sorted(peaks, reverse=True) and len(peaks) == 5
    recorded, predicted = re.findall(r"peak .*\), made by", kept)[-2:]
    assert recorded == predicted, "the predicted peak has as much of each kind"
    assert f"falls from {peaks[0]:.2f} MB to {peaks[3]:.2f} MB" in text_of(notebook)


def test_the_bugs_to_choose_from_are_those_that_can_be_checked(notebook):
    assert re.findall(r'^\| `"(\w+)"` \|', text_of(notebook), re.M) == list(BUGS)
    assert BUGS["gather"].program.__name__ == "my_gradient" in text_of(notebook)


def test_one_unit_and_the_fewest_rows_that_hide_a_gather(notebook):
    """`fully_shard(model)` alone gathers once; a gather is hidden by a product and its ReLU."""
    rows, speeds = lessons.ROWS, slow_chain.speeds()
    root = fsdp_step(lessons.LARGE, [rows] * 4, speeds, blocks=[8], resharded=False)
    assert f"gathers once ({1e3 * lessons.until_update(root):.2f} ms)" in text_of(notebook)
    exposed = {n: 1 - hidden(fsdp_step(lessons.LARGE, [n] * 4, speeds), speeds)
               for n in (2600, 2800, 3600)}  # fmt: skip
    assert exposed[2800] == pytest.approx(exposed[3600]) == pytest.approx(2 / 16)
    assert exposed[2600] > 1.1 * 2 / 16 and "4,096 = 2,800" in text_of(notebook)
    spans = [fsdp_step(lessons.LARGE, [rows] * 4, speeds, prefetch=n).makespan for n in range(1, 6)]
    assert spans[0] == spans[3] < spans[4]
    assert "a very high one (5 or more in the chain above) delays" in text_of(notebook)
    # A weight takes 2 bytes of the link, and 2 operations for each row.
    rows_in_16_bits = gpu("H100").peak["bf16"] / link("NVLink4").bandwidth
    assert f"989 TFLOP/s ÷ 450 GB/s = {round(rows_in_16_bits, -2):,.0f}" in text_of(notebook)
    host, each = (gpu("H100").peak["bf16"] / (n * 50e9) for n in (1, 8))
    words = f"({round(host, -3):,.0f} if a whole host has only 50 GB/s, and {round(each, -2):,.0f}"
    assert f"{words} if each of its 8 GPUs has)" in text_of(notebook)


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
    assert f"(below, {1e3 * ends[True, 1]:.2f} ms)" in text_of(notebook)
    without = fsdp_step(lessons.LARGE, [lessons.ROWS] * 4, speeds, prefetch=0)
    assert f"(above, {1e3 * lessons.until_update(without):.2f} ms)" in text_of(notebook)
    assert f"{1e3 * ends[True, 1]:.2f} ms\n2 " in shown(notebook, "slow_chain.cut")
    assert ends[True, 1] == ends[True, 2] == ends[True, 4] < ends[True, 5]
    peaks = [round(played[kind, 1].peak / 1e6) for kind in (True, False)]
    words = (
        f"the step takes {1e3 * ends[False, 1]:.2f} ms instead of {1e3 * ends[True, 1]:.2f}. "
        f"But it holds all units, {peaks[1]} MB instead of {peaks[0]}."
    )
    assert words in text_of(notebook)


def test_in_bfloat16_a_gather_of_the_chain_takes_half_the_bytes(notebook):
    """The two times of the text after the step in mixed precision."""
    speeds, nbytes = SlowMotion("H100", link="NVLink4"), lessons.LARGE.nbytes() // 8
    in_32_bits, in_16_bits = (
        time_of("all_gather", 4, n, alpha=speeds.alpha, beta=1 / speeds.bandwidth)
        for n in (nbytes, nbytes // 2)
    )
    words = f"would take {1e6 * in_16_bits:.0f} µs in place of {1e6 * in_32_bits:.0f} µs"
    assert words in text_of(notebook)


def test_over_a_slow_network_no_prefetch_limit_helps(notebook):
    """The answer to the second question under the sliders, at 20 GB/s."""
    speeds = SlowMotion("H100", link="NVLink4")
    step = fsdp_step(lessons.LARGE, [lessons.ROWS] * 4, speeds, prefetch=1)
    times, nbytes = lessons.times_of_units(step, lessons.LARGE), lessons.LARGE.nbytes() // 8
    link = {"ranks": 4, "alpha": speeds.alpha, "bandwidth": 20e9}
    spans = [play_units([nbytes] * 8, *times, prefetch=n, **link).end for n in range(1, 7)]
    assert max(spans) == pytest.approx(min(spans)) and "bandwidth to 20 GB/s" in text_of(notebook)
    gather = time_of("all_gather", 4, nbytes, alpha=speeds.alpha, beta=1 / 20e9)
    assert f"20 GB/s = {1e3 * gather:.1f} ms" in text_of(notebook) and gather > max(times[1])


class FusedNorm(torch.autograd.Function):
    """RMSNorm as a fused kernel has it, which keeps its input alone."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x.square().mean(-1, keepdim=True).add(1e-5).rsqrt()


def kept_by_a_llama_layer(width, tokens, heads, kv_heads, feed_forward) -> tuple[float, float]:
    """Return the bytes that autograd keeps, for each token and unit of width: all, and the MLP's.

    Weights and the float32 logarithms of the attention's sums are not counted.
    """
    half = {"dtype": torch.bfloat16, "requires_grad": True}
    narrow = kv_heads * (width // heads)
    rows = {"q": width, "k": narrow, "v": narrow, "o": width, "gate": feed_forward}
    weights = {name: torch.randn(n, width, **half) for name, n in rows.items()}
    weights["up"] = torch.randn(feed_forward, width, **half)
    weights["down"] = torch.randn(width, feed_forward, **half)
    own = {w.untyped_storage().data_ptr() for w in weights.values()}
    kept = {}

    def keep(t):
        storage = t.untyped_storage()
        if storage.data_ptr() not in own and t.dtype == torch.bfloat16:
            kept[storage.data_ptr()] = storage
        return t

    def product(x, name):
        return torch.nn.functional.linear(x, weights[name])

    x = torch.randn(1, tokens, width, **half)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        normed = FusedNorm.apply(x)
        q, k, v = (
            product(normed, name).view(1, tokens, -1, width // heads).transpose(1, 2)
            for name in "qkv"
        )
        y = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=True
        )
        x = x + product(y.transpose(1, 2).reshape(1, tokens, width), "o")
        normed = FusedNorm.apply(x)
        gated = torch.nn.functional.silu(product(normed, "gate")) * product(normed, "up")
        x = x + product(gated, "down")
    sizes = [storage.nbytes() / (tokens * width) for storage in kept.values()]
    return sum(sizes), sum(s for s in sizes if s == 2 * feed_forward / width)


def test_the_activations_in_the_text_are_those_of_a_layer_of_the_8b_model(notebook):
    """Of a narrower layer with its proportions; GPT's 34 bytes would not do."""
    llama = model("Llama 3 8B")
    part = 8  # heads of the same width, and all other proportions
    each, of_mlp = kept_by_a_llama_layer(
        llama.width // part, 64, llama.heads // part, llama.kv_heads // part, llama.hidden // part
    )
    total = each * 8192 * llama.width * llama.layers / 1e9
    words = f"{each:.0f} bytes × 8,192 tokens × 4,096 × 32 layers = {total:.0f} GB"
    assert words in text_of(notebook) and round(each) != 34
    assert f"{of_mlp:.0f} of the {each:.0f} bytes belong to the MLP" in text_of(notebook)
    states = held(llama.numel, 8, 1).total / 1e9
    assert states < 80 < states + total
    assert f"As {states:.1f} GB and {total:.0f} GB are more than 80 GB" in text_of(notebook)


def test_hybrid_sharding_saves_what_the_text_says(notebook):
    full, hybrid = (across_hosts(way, 1.0, 64, 8) for way in ("full", "hybrid"))
    assert hybrid / full == pytest.approx(2 / 27) and full / hybrid == pytest.approx(13.5)
    assert "2/27" in text_of(notebook) and "a factor of 13.5" in text_of(notebook)


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
    assert len(revealing) == 4
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

    text = text_of(notebook)
    for name in ("ZeRO", "FSDP", "Megatron-LM", "DeepSpeed stage 2"):
        each = convention(name)
        assert f"({each.parameters} + {each.gradients} + {each.optimizer})" in text
    assert convention("Checkpoint").total == 14


def test_the_main_path_is_short(notebook):
    """At most 2,700 words before Going further, without what is folded and without pictures."""
    cells, words = main_path(notebook)
    assert 0 < cells <= 45 and 0 < words <= 2700


def test_the_minutes_of_the_headings_add_up_to_those_of_the_first_page(notebook):
    opening, text = notebook.cells[0].source, text_of(notebook)
    said = re.search(
        r"path takes (\d+) minutes \(this introduction (\d+)\), its three exercises (\d+) more",
        opening,
    )
    total, page, exercises = map(int, said.groups())
    minutes = {name: int(n) for name, n in re.findall(r"^## (.+) \((\d+) min\)$", text, re.M)}
    assert exercises == sum(n for name, n in minutes.items() if name.startswith("Exercise "))
    assert total == page + sum(minutes.values()) - exercises <= 50
    further = re.search(rf"exercises {exercises} more, and \*Going further\* (\d+)\.", opening)
    whole = total + exercises + int(further[1])
    assert f"minutes: {whole}\n" in (ROOT / "book.yml").read_text().split("03-fsdp")[1][:120]
    assert f"The main path without its exercises fills {total} minutes" in opening


def test_what_counts_as_solved_stands_before_the_folded_solution(notebook):
    exercises = [c.source for c in notebook.cells if re.search(r"^##+ Exercise ", c.source, re.M)]
    assert len(exercises) == 5
    for text in exercises:
        assert 0 < text.index("It is solved when") < text.index("<summary>Solution")


def test_the_examples_of_exercises_1_and_5_are_what_is_computed(notebook):
    text, numel = text_of(notebook), model("Llama 3 405B").numel
    zero_1 = held(numel, 64, 1).total
    assert f"(4 + 12/64) · {numel / 1e9:.2f} = {zero_1 / 1e9:,.0f} GB" in text
    answer = str(choose.check([1] * 16, 1))
    seconds, nbytes = choose.tried([1] * 16, 1)
    assert "These units fit, but the step is too slow." in answer
    told = f"it takes {1e3 * seconds:.2f} ms with the update and holds {nbytes:,} bytes beside the"
    assert told in text


def test_the_published_gather_in_the_text_is_that_of_the_predicted_runs(notebook):
    (ranks,) = inspect.signature(published.prefetch_of_gpt3).parameters.values()
    n, moved = ranks.default, 2 * published.GPT3.numel
    gather = (n - 1) / n * moved / published.HOST
    words = f"{moved / 1e9:.0f} GB · {n - 1}/{n} ÷ 250 GB/s = {gather:.1f} s"
    assert f"each of {published.GPT3.numel / 1e9:.1f} billion parameters" in text_of(notebook)
    assert words in text_of(notebook) and f"It assumes {n} GPUs" in text_of(notebook)
    assert n != 128  # with which the authors' step of batch 2 lost time in the allocator


def test_the_times_of_the_offloaded_step_in_the_text_are_predicted(notebook):
    step = lessons.offloaded(slow_chain.speeds())
    down, host, up = (sorted(step.where(rank=n), key=lambda r: r.end) for n in (1, 2, 3))
    assert up[-1].start >= host[-1].end - 1e-12  # the last copy up is exposed
    assert every(row.end <= host[-1].end for row in up[:-1])
    text = text_of(notebook)
    assert f"All copies but the last one up ({1e3 * up[-1].seconds:.1f} ms) hide" in text
    assert f"when backward is over, at {1e3 * host[0].start:.1f} ms" in text
    assert f"the first gradient arrives at {1e3 * down[0].end:.1f} ms" in text


def test_rows_that_hide_gradients_in_float32_are_half_as_many_again(notebook):
    """A row has 2 FLOP a weight in forward and 4 in backward; 2 bytes, then 2 + 4, are sent."""
    peak, bandwidth = gpu("H100").peak["bf16"], link("NVLink4").bandwidth
    forward, backward = 2 / bandwidth / (2 / peak), (2 + 4) / bandwidth / (4 / peak)
    text = text_of(notebook)
    assert round(forward, -2) == 2200 and "= 2,200 rows" in text
    assert backward == pytest.approx(1.5 * forward)
    assert "gradients are summed in float32, backward needs 1.5 times as many" in text


def test_the_embedding_and_the_head_are_an_eighth_of_llama(notebook):
    llama, text = model("Llama 3 8B"), text_of(notebook)
    both = 2 * llama.vocabulary * llama.width
    assert f"{both / 1e9:.2f} of {llama.numel / 1e9:.2f} billion parameters" in text
