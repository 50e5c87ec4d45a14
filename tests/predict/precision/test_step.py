"""A step in several number formats: by hand, and what becomes faster by how much."""

import pytest

from lib.predict import step
from lib.predict.precision.step import IN_FP32, PRECISIONS, UPDATE_BYTES, of_step, operations
from lib.predict.roofline import speeds
from lib.predict.shape import GPTShape, MLPShape
from lib.predict.sharded.states import convention, keeping

LARGE = GPTShape(vocabulary=50_304, sequence=1024, width=2048, heads=16, layers=4)


def test_fp32_is_the_step_that_all_predictions_have():
    times, cost = speeds("A100", dtype="fp32"), of_step(LARGE, 8, "A100", "fp32")
    assert cost.forward == pytest.approx(step.seconds(step.forward(LARGE, 8), times))
    assert cost.backward == pytest.approx(step.seconds(step.backward(LARGE, 8), times))
    assert cost.update == UPDATE_BYTES * LARGE.numel / times.memory_bandwidth
    assert (cost.exchange, cost.sent) == (0, 0)


def test_a_layer_by_hand():
    """x [1024, 4096] · W [4096, 4096]: three products, of 2·1024·4096² operations each."""
    shape = MLPShape((4096, 4096, 4096), bias=False)
    cost = of_step(shape, 1024, "H100", "bf16")
    product = 2 * 1024 * 4096**2 / 989e12
    relu = 2 * 1024 * 4096 * 2 / 3350e9
    assert cost.forward == pytest.approx(2 * product + relu)
    assert cost.backward == pytest.approx(3 * product + 1.5 * relu)
    assert of_step(shape, 1024, "H100", "fp8").backward < 0.6 * cost.backward


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_half_the_bytes_and_twice_the_peak_are_less_than_twice_as_fast(precision):
    wide, half = (of_step(LARGE, 8, "A100", kind) for kind in ("tf32", precision))
    ratio = (wide.forward + wide.backward) / (half.forward + half.backward)
    assert 1.8 < ratio < 2.0
    assert wide.update == half.update
    moved = [cost.moved - UPDATE_BYTES * LARGE.numel for cost in (half, wide)]
    assert 0.5 < moved[0] / moved[1] < 0.6


def test_norms_and_softmax_stay_in_fp32():
    """The bite: with their bytes halved too, the ratio would be exactly 2."""
    shape = GPTShape(layers=1, dropout=0.1)
    half, wide = (operations(shape, 2, size, backward=True) for size in (2, 4))
    kept = {a.name for a, b in zip(half, wide) if a.bytes == b.bytes}
    assert kept == {"native_layer_norm_backward", "_softmax_backward_data"} and kept < IN_FP32
    others = [sum(op.bytes for op in ops if op.name not in IN_FP32) for ops in (half, wide)]
    assert 0.5 <= others[0] / others[1] < 0.55  # indices of 8 bytes stay as they are


def test_fp8_speeds_up_linear_layers_alone():
    costs = {kind: of_step(LARGE, 8, "H100", kind) for kind in PRECISIONS if kind != "fp16"}
    seconds = {kind: cost.seconds for kind, cost in costs.items()}
    assert seconds["fp32"] > seconds["tf32"] > seconds["bf16"] > seconds["fp8"]
    assert 1.2 < seconds["bf16"] / seconds["fp8"] < 1979 / 989
    assert costs["bf16"].moved == costs["fp8"].moved


def test_half_the_bytes_are_sent():
    wide, half = (of_step(LARGE, 8, "H100", kind, ranks=8) for kind in ("fp32", "bf16"))
    assert wide.sent == 2 * half.sent == 4 * LARGE.numel * 2 * 7 / 8
    assert wide.exchange - half.exchange == pytest.approx(half.sent / 450e9)
    slow = of_step(LARGE, 8, "H100", "bf16", ranks=8, link="PCIe5")
    assert slow.exchange > half.exchange and slow.forward == half.forward


def test_microbatches_share_one_update():
    one, four = (of_step(LARGE, 8, "H100", microbatches=n) for n in (1, 4))
    assert four.forward == 4 * one.forward and four.update == one.update
    assert four.moved - one.moved == 3 * (one.moved - UPDATE_BYTES * LARGE.numel)


def test_mixed_precision_keeps_zeros_16_bytes_a_parameter():
    """2 for the weight, 2 for its gradient, 4 each for its copy and for Adam's two moments."""
    counted = keeping("adamw", "mixed")
    assert counted.total == convention("ZeRO").total == 2 + 2 + 4 + 4 + 4 == 16
    assert keeping("adamw", "fp32").total == 16, "as much as without mixed precision"
    assert keeping("adamw", "bf16").total == 8


def test_what_is_not_known_is_refused():
    with pytest.raises(ValueError, match="'fp64'. Choose one of fp32, tf32, fp16, bf16, fp8."):
        of_step(LARGE, 8, "H100", "fp64")
    with pytest.raises(ValueError, match="This GPU has no figure for 'fp8'"):
        of_step(LARGE, 8, "A100", "fp8")
