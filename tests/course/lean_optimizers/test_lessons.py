"""Chapter 11's lessons: each table says what its tensors, its formula or its ranks say."""

import math
import re

import pytest
import torch

from lib.course.lean_optimizers import (
    cover,
    fsdp2,
    lessons,
    lost_moments,
    published,
    represented,
    sharded,
    training,
    wall_clock,
)
from lib.predict.optimizers import state_bytes
from lib.predict.sharded.models import model
from lib.single.optimizers import AdamW
from lib.single.optimizers.code_maps import dynamic_values
from tests.every import every


def numbers(line: str) -> list[float]:
    return [float(found) for found in re.findall(r"\d+\.?\d*", line.replace(",", ""))]


def llama_gb(name: str, **options) -> float:
    return state_bytes(name, model("Llama 3 8B"), **options) / 1e9


# --- what Adam keeps


def test_llama_needs_64_gb_of_states():
    assert llama_gb("adamw") == pytest.approx(8 * 8.030261248, abs=1e-5)
    inner = 8_030_261_248 - 2 * 525_336_576
    assert llama_gb("muon") == pytest.approx((4 * inner + 16 * 525_336_576) / 1e9, abs=2e-3)
    assert llama_gb("sm3", momentum=False) < 0.013


def test_the_recorded_states_are_those_of_the_formula(worlds):
    run = worlds(1).record(lessons.with_memory)
    rows = run.where(lane="memory", op="optimizer")
    kept = max(row.bytes for row in rows)
    counters = 4 * len(lessons.RECORDED.parameters)  # in the host's memory on a GPU
    assert 0 <= state_bytes("adamw", lessons.RECORDED) - kept <= counters
    assert run.results[0] > 4 * lessons.RECORDED.nbytes()


@pytest.mark.parametrize("name", training.LEAN)
def test_what_is_kept_is_what_is_predicted(name):
    assert lessons.kept(name) == state_bytes(name, training.SHAPE)


# --- factors, covers, blocks


def test_moments_and_gradients_are_real():
    assert {name: tuple(v.shape) for name, (_, v) in represented.moments().items()} == {
        "tokens": (256, 64), "qkv": (192, 64), "up": (256, 64), "down": (64, 256),
    }  # fmt: skip
    assert every(bool((v >= 0).all()) and bool(m.any()) for m, v in represented.moments().values())
    first, *others = represented.gradients()
    assert len(others) == 19 and not any(torch.equal(first, other) for other in others)


def test_percentiles_by_hand():
    assert represented.percentiles(torch.arange(101.0)) == [5, 50, 95]


def test_bounds_are_above_the_sums_and_exact_in_the_first_step():
    total, rows, columns = torch.zeros(256, 64), torch.zeros(256), torch.zeros(64)
    for step, g in enumerate(represented.gradients(), 1):
        total += g**2
        nu, rows, columns = represented.sm3_ii(rows, columns, g)
        assert bool((nu >= total * (1 - 1e-5)).all()) and (step > 1 or torch.equal(nu, total))


# --- PyTorch's own, and what breaks


def test_adam_and_muon_have_pytorchs_bits():
    options = {
        "AdamW": {"foreach": True}, "Adafactor": {"eps": (1e-18, 1e-3)}, "Muon": {},
    }  # fmt: skip
    table = lessons.pytorchs_table(options, 2)
    rows = dict(line.rsplit(None, 1) for line in table.splitlines()[1:])
    assert rows == {"AdamW": "none", "Adafactor": "rounding", "Muon": "none"}
    assert lessons.pytorchs_table({"AdamW": {"fused": True}}, 2).split()[-1] == "rounding"
    assert lessons.pytorchs_table({"Adafactor": {}}, 2).split()[-1] == "rounding"
    assert [lessons.difference(far) for far in (0.0, 1e-6, 0.03)] == ["none", "rounding", "3e-02"]


def test_without_the_correction_the_first_step_is_three_times_as_long():
    assert lessons.longer_without_correction(1) == pytest.approx(0.1 / math.sqrt(0.001))


def test_the_linear_map_moves_a_weight_without_gradient():
    """Its token is in the first batch and not in the second; so Adam divides by ε alone."""
    for name in ("linear, blocks", "linear, one maximum"):
        _, moves = lost_moments.training_of(name, steps=2)
        far, gradient = moves[1]
        assert far > 100 and gradient == 0 and moves[0][0] < 0.01
    _, moves = lost_moments.training_of("AdamW", steps=2)
    assert moves[1][0] < 1.02 * lost_moments.RATE and moves[1][1] != 0


def lost_by_the_dynamic_map(steps: int) -> int:
    """Give how many v of the embedding that are not 0 become 0 in blocks of 256."""
    kept = []

    def make(model, rate):
        (weight,) = (p for name, p in model.named_parameters() if name.endswith("tokens.weight"))
        kept.extend((weight, AdamW(model.parameters(), lr=rate)))
        return kept[1:]

    training.trained(make, 0, training.RATES["adamw"], steps)
    weight, optimizer = kept
    v, values = optimizer.state[weight]["exp_avg_sq"].view(-1, 256), dynamic_values(signed=False)
    quotients = v / v.amax(1, keepdim=True).clamp(min=1e-38)
    codes = (quotients.unsqueeze(-1) - values.float()).abs().argmin(-1)
    return int(((values[codes] == 0) & (v > 0)).sum())


def test_the_dynamic_map_loses_second_moments_of_the_first_step():
    assert 1 < lost_by_the_dynamic_map(1) < 10 and lost_by_the_dynamic_map(100) == 0


def test_8_bit_adam_with_embeddings_in_32_bits_moves_as_adamw_does():
    plain, dynamic, whole = (lost_moments.training_of(name, 1, 8) for name in
                             ("AdamW", "dynamic, embeddings fp32", "dynamic, blocks"))  # fmt: skip
    assert abs(plain[0][-1] - dynamic[0][-1]) < 0.02
    assert dynamic[1][1][0] < 2 * plain[1][1][0] < whole[1][1][0] / 100


def test_losses_that_exploded_are_rounded_down():
    assert [lost_moments.in_words(loss) for loss in (2.345, 10.5, 99.0, 4e4)] == [
        "2.35", "> 10", "> 10", "> 1,000",
    ]  # fmt: skip
    moves = [lost_moments.move_in_words(move) for move in (0.0022, 0.22, 2.9, 40, 488)]
    assert moves == ["0.002", "> 0.1", "> 1", "> 10", "> 100"]
    assert len(lost_moments.table(steps=3).splitlines()) == 3 + len(lost_moments.CASES)


# --- on ranks


@pytest.mark.parametrize("method", sharded.METHODS)
def test_sharded_optimizers_are_those_of_one_device(worlds, method):
    names = ("adafactor", "sm3", "muon, owners")
    rows = sharded.table(worlds(2), method, names).splitlines()[1:]
    assert [row[:13].strip() for row in rows] == list(names)
    for row in rows:
        alone, together, buffers, right = row[13:].split()
        assert together == "equal" and right == "equal" and int(buffers.replace(",", "")) > 0
        refused = method == "FSDP" and row.startswith("muon")
        assert alone == "refused" if refused else float(alone.rstrip("%")) > 0.1


def test_a_flat_piece_alone_is_a_vector_for_adafactor(worlds):
    alone, together = sharded.kept_alone(worlds(2))
    assert alone > 20 * together > 0


def test_pytorchs_optimizers_under_fsdp2(worlds, monkeypatch):
    """Muon rounds to bfloat16 in its iteration; with all of it in float64 nothing is left."""
    rows = dict(line.split(None, 1) for line in fsdp2.table(worlds(2)).splitlines()[1:])
    assert rows == {
        "AdamW": "equal", "Adafactor": "RuntimeError", "Muon": "equal within 2 %"
    }  # fmt: skip
    assert fsdp2.in_words(0.03) == "3e-02"
    weights = worlds(2).run(_muon_in_float64)[0]
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.double)
    assert sharded.apart(weights, fsdp2.weights_of("Muon", sharded=False)) < 1e-12


def _muon_in_float64():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "bfloat16", torch.Tensor.double)
        return fsdp2.weights_of("Muon", sharded=True)


# --- published


def test_the_shapes_of_t5_3b_add_up_to_the_published_number():
    assert sum(math.prod(shape) for shape in published.t5_3b()) == published.T5_3B_NUMEL


def test_published_and_predicted_stand_side_by_side():
    rows = {line[:20].strip(): numbers(line[20:]) for line in published.table().splitlines()[1:]}
    assert rows["T5-3B, AdamW"] == [24, 22.813] and rows["T5-3B, 8-bit Adam"] == [6, 5.793]
    assert rows["T5-3B, Adafactor"] == [12, 0.013] and rows["with momentum"] == [11.42]
    assert rows["GPT-2, AdamW, all"] == [24, 24.922]


# --- by the clock, and the cover


def test_the_clock_has_a_row_for_each_optimizer(worlds):
    fastest = worlds(1).run(wall_clock.steps, 1)[0]
    assert list(fastest) == list(wall_clock.OPTIMIZERS) and min(fastest.values()) > 0


def test_the_prediction_is_the_time_to_move_the_bytes():
    class Machine:
        def compute(self, flop, nbytes):
            return nbytes / 1e9

    ms = wall_clock.predicted("AdamW", Machine())
    assert ms == pytest.approx(28 * wall_clock.SHAPE.numel / 1e9)


def test_the_cover_is_written(tmp_path):
    cover.write(tmp_path / "cover.png")
    assert (tmp_path / "cover.png").stat().st_size > 5000
