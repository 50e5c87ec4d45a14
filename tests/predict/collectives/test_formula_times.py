"""Formulas in seconds: costs, fits, and the time that a training takes."""

import numpy as np
import pytest

from lib.predict.collectives import formulas
from lib.predict.collectives.formulas import all_reduce, collective, cost, fit, time_of
from lib.predict.flops import flops, training_flop
from lib.predict.hardware import sweep
from lib.predict.shape import GPTShape
from tests.every import every

# --- seconds


def test_seconds_of_a_round_is_its_longest_message():
    """Five elements on two ranks: pieces of 3 and 2; each of the two rounds lasts for the 3."""
    counted = all_reduce("ring", 2, 5, itemsize=1)
    assert counted.sent == (5, 5)
    assert formulas.seconds(counted, alpha=10.0, beta=0.5) == 2 * 10.0 + (3 + 3) * 0.5


@pytest.mark.parametrize("ranks", range(1, 9))
def test_time_of_an_all_reduce_is_the_counted_ring_where_the_ranks_divide(ranks):
    counted = all_reduce("ring", ranks, 840, itemsize=4)
    expected = formulas.seconds(counted, 2e-6, 1e-9)
    assert time_of("all_reduce", ranks, 3360, alpha=2e-6, beta=1e-9) == pytest.approx(expected)


def test_a_reduce_scatter_and_an_all_gather_are_an_all_reduce():
    for ranks in (1, 2, 5, 8):
        halves = [
            time_of(op, ranks, 4000, alpha=3.0, beta=0.1) for op in ("reduce_scatter", "all_gather")
        ]
        assert sum(halves) == pytest.approx(time_of("all_reduce", ranks, 4000, alpha=3.0, beta=0.1))


def test_factors_are_those_of_nccl_tests():
    """Case 16: scatter and gather had 1, and a source that does not list them.

    nccl-tests, doc/PERFORMANCE.md: AR 2(n-1)/n; RS, AG, A2A (n-1)/n; broadcast, reduce 1. Scatter
    and gather in src/scatter.cu and src/gather.cu, ScatterGetBw and GatherGetBw: (n-1)/n.
    """
    for op, factor in {
        "all_reduce": 1.75, "reduce_scatter": 0.875, "all_gather": 0.875, "all_to_all": 0.875,
        "broadcast": 1, "reduce": 1, "scatter": 0.875, "gather": 0.875, "send": 1, "recv": 1,
    }.items():  # fmt: skip
        assert collective(op, 8, 1000).factor == factor
        assert collective(op, 8, 1000).bytes == factor * 1000
    assert collective("all_reduce", 8, 1000).rounds == 14
    assert {collective(op, 8, 0).rounds for op in ("all_gather", "all_to_all", "gather")} == {7}
    assert collective("send", 2, 1000).rounds == 1
    assert collective("barrier", 8, 1000)[:2] == (14, 0.0)
    for op in ("all_reduce", "all_gather", "broadcast", "gather", "barrier"):
        assert collective(op, 1, 1000)[:2] == (0, 0), "alone, nobody waits for anybody"


def test_bus_bandwidth_recomputes_from_published_times():
    """The A100 table prints time and bus bandwidth: each from the other, to its rounding."""
    published = {1048576: 18.00, 8388608: 109.93, 536870912: 222.72, 17179869184: 234.89}
    measured = sweep("A100 8-GPU all-reduce")
    times = dict(zip(measured.nbytes, measured.seconds))
    for nbytes, busbw in published.items():
        found = collective("all_reduce", 8, nbytes).bytes / times[nbytes] / 1e9
        assert found == pytest.approx(busbw, rel=2e-3)


def test_three_cost_models_grow_as_they_are_called():
    def at(model, ranks, alpha=0.0):
        return cost(model, ranks, 1000, alpha, 1.0)

    assert [at("central", n) for n in (2, 4, 8)] == [2000, 6000, 14000]
    assert [at("tree", n) for n in (2, 4, 8, 9)] == [2000, 4000, 6000, 8000]
    assert [at("bytes", n) for n in (2, 4, 8)] == [1000, 1500, 1750]
    assert at("bytes", 10**6) < 2000, "a ring's bytes stay under 2 S however many ranks"
    assert at("central", 8, alpha=5.0) == 14000 + 14 * 5.0
    assert at("tree", 8, alpha=5.0) == 6000 + 6 * 5.0
    assert at("bytes", 8, alpha=5.0) == 1750, "blind to latency, and that is its mistake"


# --- fits


def test_fit_finds_the_line_it_was_given():
    sizes = [2.0**k for k in range(10, 30)]
    found = fit(sizes, [20e-6 + 3e-12 * s for s in sizes])
    assert (found.alpha, found.beta) == pytest.approx((20e-6, 3e-12))
    assert found.worst < 1e-9
    assert str(found) == "20 µs + bytes at 333.3 GB/s, off by at most 0%"


def test_no_line_near_the_fitted_one_has_smaller_relative_errors():
    measured = sweep("H200 8-GPU all-reduce")
    size, time = np.array(measured.nbytes, float), np.array(measured.seconds)

    def error(alpha, beta):
        return (((alpha + beta * size) / time - 1) ** 2).sum()

    found = fit(size, time)
    best = error(found.alpha, found.beta)
    for a in (0.98, 1.0, 1.02):
        for b in (0.98, 1.0, 1.02):
            assert error(a * found.alpha, b * found.beta) >= best


def test_fit_never_gives_a_time_below_zero():
    falling = fit([1, 2, 3], [3.0, 2.0, 1.0])  # larger is faster: only noise, or a switch
    assert falling.beta == 0 and falling.alpha > 0
    late = fit([1, 2, 4], [0.1, 1.1, 3.1])  # a line that would start below 0
    assert late.alpha == 0 and late.beta > 0
    assert "GB/s" in str(late) and "no measurable time a byte" in str(falling)


@pytest.mark.parametrize(
    ("name", "alpha", "busbw", "worst"),
    [
        ("A100 8-GPU all-reduce", 56, 211, 0.36),
        ("H200 8-GPU all-reduce", 41, 444, 0.21),
        ("B200 8-GPU all-reduce", 53, 718, 0.37),
    ],
)
def test_fits_of_published_sweeps_recompute(name, alpha, busbw, worst):
    measured = sweep(name)
    found = fit(measured.nbytes, measured.seconds)
    factor = collective("all_reduce", measured.ranks, 1).factor
    assert round(found.alpha * 1e6) == alpha
    assert round(factor / found.beta / 1e9) == busbw
    assert round(found.worst, 2) == worst


def test_one_line_is_off_by_a_fifth_and_more_wherever_nccl_switches_algorithms():
    """Over PCIe nothing switches between 256 KiB and 1 GiB, and there one line is good to 3 %."""
    worst = {}
    for name in ("A100 8-GPU", "H200 8-GPU", "B200 8-GPU", "B200 32-GPU", "PCIe 4-GPU"):
        measured = sweep(f"{name} all-reduce")
        worst[name] = fit(measured.nbytes, measured.seconds).worst
    assert worst.pop("PCIe 4-GPU") < 0.04
    assert every(error > 0.20 for error in worst.values())


# --- training time


def test_narayanan_34_and_84_days():
    """arXiv 2104.04473, section 5.1, equation 4: 8 operations (recomputation), X as measured."""
    gpt3 = formulas.training_days(175e9, 300e9, 1024, 140e12, 1.0, factor=8)
    trillion = formulas.training_days(1008e9, 450e9, 3072, 163e12, 1.0, factor=8)
    assert gpt3 == pytest.approx(33.9, abs=0.05)
    assert trillion == pytest.approx(83.9, abs=0.05)
    assert (round(gpt3), round(trillion)) == (34, 84)
    share = formulas.training_days(175e9, 300e9, 1024, 312e12, 140 / 312, factor=8)
    assert share == pytest.approx(gpt3), "rate × efficiency is the measured rate"


TABLE_1 = [  # Narayanan et al. 2021, arXiv 2104.04473, table 1: l, h, heads, GPUs, batch, TFLOP/s
    (24, 2304, 24, 32, 512, 137, 3.53),  # and the seconds of an iteration, by their equation 3
    (30, 3072, 32, 64, 512, 138, 3.70),
    (36, 4096, 32, 128, 512, 142, 3.70),
    (40, 6144, 48, 256, 1024, 135, 9.40),
    (48, 8192, 64, 512, 1536, 138, 14.45),
    (60, 10240, 80, 1024, 1792, 140, 16.06),
    (80, 12288, 96, 1536, 2304, 148, 24.82),
    (96, 16384, 128, 1920, 2160, 155, 37.61),
    (105, 20480, 128, 2520, 2520, 163, 54.09),
    (128, 25600, 160, 3072, 3072, 163, 102.6),
]


def megatron(layers, width, heads):
    return GPTShape(51200, sequence=2048, width=width, heads=heads, layers=layers)


@pytest.mark.parametrize("row", TABLE_1, ids=lambda row: f"{row[0]} x {row[1]}")
def test_exact_training_flop_are_equation_3(row):
    """Case 18: attention and vocabulary beside 8 operations for each parameter and token."""
    layers, h, heads, gpus, batch, rate, seconds = row
    s, v, shape = 2048, 51200, megatron(layers, h, heads)
    published = 96 * batch * s * layers * h * h * (1 + s / (6 * h) + v / (16 * layers * h))
    assert training_flop(shape, batch * s, "full") == pytest.approx(published, rel=1e-12)
    assert published / gpus / rate / 1e12 == pytest.approx(seconds, rel=2e-3)
    days = formulas.exact_days(shape, batch * s, gpus, rate * 1e12, 1.0)
    assert days * 86400 == pytest.approx(seconds, rel=2e-3)
    for name, attention, vocabulary in (("none", 6, 12), ("selective", 3, 12)):
        exact = 1 + s / (attention * h) + v / (vocabulary * layers * h)
        found = training_flop(shape, batch * s, name)
        assert found == pytest.approx(72 * batch * s * layers * h * h * exact, rel=1e-12)


def test_the_short_formula_is_a_few_per_cent_short():
    """Case 18: 34 days for GPT-3 and 84 for a trillion are the short formula's; exactly 35, 85."""
    gpt3, trillion = megatron(96, 12288, 96), megatron(128, 25600, 160)
    exact = formulas.exact_days(gpt3, 300e9, 1024, 140e12, 1.0)
    short = formulas.training_days(175e9, 300e9, 1024, 140e12, 1.0, factor=8)
    assert (round(short, 1), round(exact, 1)) == (33.9, 34.7)
    large = formulas.exact_days(trillion, 450e9, 3072, 163e12, 1.0)
    assert round(large, 1) == 85.0 and large / 83.9 == pytest.approx(1.013, abs=0.001)
    plain = formulas.exact_days(gpt3, 300e9, 1024, 140e12, 1.0, "none")
    selective = formulas.exact_days(gpt3, 300e9, 1024, 140e12, 1.0, "selective")
    assert round(100 * (selective / plain - 1), 2) == 2.69  # Korthikanti et al. print 2.7 %
    assert plain < selective < exact == pytest.approx(plain * 4 / 3, rel=0.01)


def test_model_and_hardware_flop_of_korthikanti():
    """Case 18: arXiv 2205.05198, table 5: MFU and HFU of 22B and 530B, from seconds and GPUs."""
    for layers, h, heads, gpus, batch, seconds, mfu, hfu in (
        (48, 6144, 64, 8, 4, 1.10, 41.7, 43.8),
        (105, 20480, 128, 280, 280, 37.83, 56.0, 57.0),
    ):
        shape, peak = megatron(layers, h, heads), gpus * seconds * 312e12
        model = training_flop(shape, batch * 2048, "none") / peak
        hardware = training_flop(shape, batch * 2048, "selective") / peak
        assert (round(100 * model, 1), round(100 * hardware, 1)) == (mfu, hfu)


def test_training_flop_without_recomputation_are_those_of_the_step():
    """Case 18: all but the product with which a fused attention makes its scores anew."""
    shape = GPTShape(vocabulary=50, sequence=12, width=24, heads=3, layers=3, hidden=40)
    again = shape.layers * 2 * 12 * 12 * 24
    assert training_flop(shape, 12) == flops(shape, 1).total - again


def test_palm_trains_a_day_of_tokens_in_a_day():
    """arXiv 2204.02311, table 3: 238.3K tokens/s, 6144 TPUv4 of 275 TFLOP/s, MFU 45.7, 46.2 %."""
    tokens = 238.3e3 * 86400
    attention = 12 * 118 * 48 * 256 * 2048 / 540.35e9
    bare = formulas.training_days(540.35e9, tokens, 6144, 275e12, 0.457)
    whole = formulas.training_days(540.35e9, tokens, 6144, 275e12, 0.462, factor=6 + attention)
    assert bare == pytest.approx(1.0, rel=2e-3)
    assert whole == pytest.approx(1.0, rel=2e-3)


def test_opt_33_days():
    """metaseq chronicles: 4.30e23 operations on 1024 A100 at 147 TFLOP/s, about 33 days."""
    days = formulas.training_days(175e9, 300e9, 1024, 147e12, 1.0, factor=4.30e23 / 175e9 / 300e9)
    assert days == pytest.approx(33, abs=0.1)


def test_deepseek_days_follow_from_its_hours():
    """DeepSeek-V3: 180K H800 hours for each trillion tokens are 3.7 days on 2048 (3.66)."""
    hours = 2664e3 / 14.8
    rate = 6 * 37e9 * 1e12 / (hours * 3600)  # what 37e9 active parameters make of those hours
    days = formulas.training_days(37e9, 1e12, 2048, rate, 1.0)
    assert hours == pytest.approx(180e3)
    assert days == pytest.approx(3.66, abs=0.005)
    assert rate / 989e12 == pytest.approx(0.346, abs=0.001), "of the dense bf16 peak of an H800"
