"""A measured machine as numbers: the fits find what was put in, and every prediction takes it."""

import random

import pytest

from lib.draw import curve
from lib.predict.calibration import Curve, MeasuredSweep
from lib.predict.collectives.formulas import collective, time_of
from lib.predict.data.ddp_step import data_parallel_step
from tests.every import every
from tests.predict.calibrations import OPS, SIZES, calibration, swept

WIDTHS, BATCHES = [64, 128, 64], [32, 32]


# --- collectives


def test_a_fit_finds_the_latency_and_the_bandwidth_that_were_put_in():
    sweep = swept(latency=2e-4, bandwidth=1.5e9)
    assert sweep.fit.alpha == pytest.approx(2e-4)
    assert 1 / sweep.fit.beta == pytest.approx(1.5e9)
    assert sweep.fit.worst < 1e-9


def test_the_band_is_the_range_of_the_sweeps_fitted_alone():
    sweep = swept(latency=2e-4, bandwidth=1.5e9, factors=(0.9, 1.0, 1.2))
    assert sweep.latency == pytest.approx((0.9 * 2e-4, 2e-4, 1.2 * 2e-4))
    assert sweep.bandwidth == pytest.approx((1.5e9 / 1.2, 1.5e9, 1.5e9 / 0.9))


def test_the_worst_error_is_that_of_the_median_farthest_from_the_line():
    """One size is off by a half in most sweeps: the line cannot hide it."""
    bent = [1e-4 + size / 1e9 for size in SIZES]
    bent[3] *= 1.5
    sweep = MeasuredSweep("all_reduce", 2, SIZES, (tuple(bent),) * 3)
    distances = [abs(sweep.fit.seconds(s) / t - 1) for s, t in zip(SIZES, bent)]
    assert sweep.fit.worst == pytest.approx(max(distances)) and sweep.fit.worst > 0.15


def test_noise_is_found_again_within_the_band():
    """In 20 draws of noise of 10 %, the band holds the true values nearly always."""
    held = 0
    for seed in range(20):
        noise = random.Random(seed)
        rounds = tuple(
            tuple((1e-4 + s / 1e9) * noise.uniform(0.9, 1.1) for s in SIZES) for _ in range(5)
        )
        sweep = MeasuredSweep("all_reduce", 2, SIZES, rounds)
        assert sweep.fit.alpha == pytest.approx(1e-4, rel=0.1)
        assert 1 / sweep.fit.beta == pytest.approx(1e9, rel=0.1)
        held += sweep.latency.low <= 1e-4 <= sweep.latency.high
    assert held >= 17


def test_one_slow_sweep_moves_the_band_and_not_the_line():
    usual, slow = swept(factors=(1, 1, 1, 1)), swept(factors=(1, 1, 1, 8))
    assert slow.fit.alpha == pytest.approx(usual.fit.alpha)
    assert slow.latency.high == pytest.approx(8 * usual.latency.high)


@pytest.mark.parametrize("op", OPS)
def test_a_collective_takes_what_its_line_says(op):
    assert calibration().moving(op, 2, 10**6) == pytest.approx(1.1e-3)


def test_what_was_not_measured_is_scaled_as_a_ring():
    this = calibration()
    two, four = (collective("all_gather", n, 10**6) for n in (2, 4))
    line = this.sweep("all_gather").fit
    expected = line.alpha * four.rounds / two.rounds
    expected += line.beta * 10**6 * four.factor / two.factor
    assert this.moving("all_gather", 4, 10**6) == pytest.approx(expected)
    alpha, bandwidth = this.ring("all_reduce", 2)
    ring = time_of("reduce", 2, 10**6, alpha=alpha, beta=1 / bandwidth)
    assert this.moving("reduce", 2, 10**6) == pytest.approx(ring)


def test_a_message_takes_the_same_among_any_number_of_ranks():
    this = calibration([swept("send", latency=1e-5)])
    assert this.moving("recv", 8, 10**6) == this.moving("send", 2, 10**6)
    assert this.moving("send", 2, 10**6) == pytest.approx(1.01e-3)


def test_one_rank_waits_for_nobody_and_a_barrier_has_no_bytes():
    this = calibration()
    assert this.moving("all_reduce", 1, 10**6) == 0
    assert this.moving("barrier", 2, 10**6) == this.moving("all_reduce", 2, 0) > 0


def test_a_ring_takes_as_long_as_was_measured():
    this = calibration([swept("all_reduce", 4, latency=6e-4, bandwidth=1e9)])
    alpha, bandwidth = this.ring()
    assert alpha == pytest.approx(1e-4) and bandwidth == pytest.approx(1.5e9)
    again = time_of("all_reduce", 4, 10**7, alpha=alpha, beta=1 / bandwidth)
    assert again == pytest.approx(this.moving("all_reduce", 4, 10**7))


# --- operations


def test_between_two_sizes_a_curve_is_straight_and_beyond_the_last_its_rate_stays():
    curve = Curve((100.0, 200.0), (1.0, 3.0))
    assert [curve.at(x) for x in (0, 50, 100, 150, 200, 400)] == [0, 0.5, 1, 2, 3, 6]
    assert curve.best == 100


def test_an_operation_is_its_overhead_and_the_longer_of_arithmetic_and_memory():
    this = calibration()
    assert this.compute(1e9, 1e3) == pytest.approx(1e-5 + 1e-2)
    assert this.compute(1e9, 1e3, "bf16") == pytest.approx(1e-5 + 5e-3)
    assert this.compute(1e3, 1e8) == pytest.approx(1e-5 + 1e-2)
    assert this.compute(0, 4) == pytest.approx(1e-5, rel=1e-3)
    assert this.compute(0, 0) == 0


def test_on_a_gpu_the_overhead_lies_behind_the_operation_before():
    this = calibration(device="cuda")
    assert this.compute(1e9, 1e3) == pytest.approx(1e-2)
    assert this.compute(0, 4) == pytest.approx(1e-5)


def test_overlap_counts_as_far_as_it_was_measured():
    this = calibration()  # hides a quarter
    assert this.overlapped(apart=3.0, together=2.0) == 2.75


def test_a_predicted_step_takes_a_measured_machine():
    this = calibration()
    together, apart = (
        data_parallel_step(WIDTHS, BATCHES, this, buckets=[2], overlap=overlap)
        for overlap in (True, False)
    )
    (row,) = apart.where(lane="comm", rank=0)
    assert row.seconds == pytest.approx(this.moving("all_reduce", 2, row.bytes))
    operations = together.where(lane="compute", rank=0)
    assert every(operation.seconds >= this.overhead * (1 - 1e-9) for operation in operations)
    told = together.meta["speeds"]
    assert told["gpu"] == told["link"] == "this machine, 2 ranks" and "invented" not in told
    assert told["alpha"] == this.alpha and told["bandwidth"] == this.bandwidth
    assert together.makespan <= this.overlapped(apart.makespan, together.makespan)


# --- shown


def test_the_table_names_every_collective_with_its_band():
    this = calibration()
    text = str(this)
    for op in OPS:
        assert any(line.startswith(op) for line in text.splitlines())
    assert "0.1 ms (0.09 to 0.12)" in text and "1 GB/s (0.833 to 1.11)" in text
    assert "10 µs" in text and "10 GB/s" in text and "25%" in text


def test_a_cell_that_is_compared_can_show_it():
    """Its repr has no time in it, so two calibrations of one World read the same."""
    this, slower = calibration(), calibration([swept(op, latency=1e-3) for op in OPS])
    assert repr(this) == repr(slower) != str(this)
    assert repr(this) == (
        "Calibration of this machine, 2 ranks on the CPU, gloo: matrix products in fp32 and bf16, "
        "memory bandwidth, all_reduce, all_gather, reduce_scatter, broadcast, all_to_all, send of "
        "2 ranks."
    )


def test_a_picture_takes_points_and_fits():
    this = calibration()
    picture = curve(this.points("all_reduce", "send"), this.fits("all_reduce", "send"))
    assert "all_reduce, 2 ranks: 7 points and a predicted line" in repr(picture)
    assert list(this.fits()) == [f"{op}, 2 ranks" for op in OPS]


# --- refused


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda this: this.compute(1, 1, "fp8"), "was not measured in 'fp8', only in fp32, bf16."),
        (lambda this: this.compute(-1, 1), "flop must be finite and at least 0"),
        (lambda this: this.moving("all_gossip", 2, 1), "No collective is called 'all_gossip'."),
        (lambda this: this.fits("reduce"), "has no 'reduce': it measured all_reduce, all_gather"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(call, sentence):
    with pytest.raises(ValueError, match=sentence) as refusal:
        call(calibration())
    assert str(refusal.value).endswith(".")
