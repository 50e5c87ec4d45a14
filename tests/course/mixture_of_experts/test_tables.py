"""Chapter 8's tables say what the predictions do, and fit a phone."""

from statistics import mean, pstdev

import pytest

from lib.course.mixture_of_experts import further, tables
from lib.course.mixture_of_experts.training import LAST, WAYS, Run, trained
from lib.predict import hardware
from lib.predict.expert.load import dropped, nodes_reached
from lib.predict.expert.models import MODELS
from lib.predict.expert.seconds import exchange, hidden_size_that_covers
from lib.predict.roofline import speeds
from tests.course.stored_chapter import stored_chapter


@pytest.fixture(scope="module")
def text():
    notebook = stored_chapter("08-mixture-of-experts")
    return "\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")


ALL = [
    tables.published_models, tables.drops, tables.shrinking_batch, tables.hops,
    tables.hidden_sizes, tables.straight, tables.deep_ep, tables.reached, further.two_levels,
    further.ties,
]  # fmt: skip


def cells(text: str, after: int = 1) -> list[list[str]]:
    return [line.split() for line in text.splitlines()[after:]]


@pytest.mark.parametrize("table", ALL, ids=lambda table: table.__name__)
def test_a_table_fits_a_phone(table):
    assert max(map(len, table().splitlines())) <= 49


def test_the_parameters_are_those_of_the_models(text):
    last = {line[:14].strip(): line.split()[-2:] for line in
            tables.published_models().splitlines()[2:]}  # fmt: skip
    shown = [model for model in MODELS if model.name in tables.COMPARED]
    assert list(last) == [model.name for model in shown] and len(shown) == 3
    for model in shown:
        if model.published[1]:
            assert last[model.name] == [f"{model.published[1] / 1e9:.1f}",
                                        f"{model.active / 1e9:.1f}"]  # fmt: skip
    ratios = [model.total / model.published[0] for model in shown]
    assert max(abs(ratio - 1) for ratio in ratios) < 0.001
    assert "the totals from the shapes are within 0.1 % of the printed ones" in text
    (deepseek,) = (model for model in MODELS if model.name == "DeepSeek-V3")
    embedding = 129_280 * 7168
    all_, rest = deepseek.active / 1e9, (deepseek.active - embedding) / 1e9
    assert f"DeepSeek-V3's {all_:.2f} includes {embedding / 1e9:.2f} for the input" in text
    assert f"without it, {rest:.2f} work on a token" in text
    assert tables.active("Mixtral 8x7B") == pytest.approx(12.88, abs=0.01)


def test_drops_are_predicted_for_each_size_and_factor():
    for n, *shares in cells(tables.drops(), 2):
        n = int(n.replace(",", ""))
        assert shares == [f"{dropped(n, 8, 1, factor):.2%}" for factor in (1, 1.25, 2)]


def test_an_expert_reaches_the_peak_with_the_tokens_of_eight_gpus():
    rows = cells(tables.shrinking_batch(), 2)
    assert [row[1] for row in rows] == ["128", "1,024", "8,192"]
    assert [row[3] for row in rows] == ["40%", "100%", "100%"]
    h100 = hardware.gpu("H100")
    ridge = float(h100.peak["bf16"].value) / float(h100.memory_bandwidth.value)
    assert round(ridge) == 295 and int(rows[0][2]) < ridge < int(rows[1][2])


def test_two_hops_win_with_few_rows_and_with_many_if_a_token_crosses_once():
    device = speeds("H100", "NVLink4", node=8, between="InfiniBand NDR")
    ratios = []
    for n, *printed in cells(tables.hops(), 3):
        tokens = int(n.replace(",", ""))
        nbytes = tokens * 8 * 7168 * 2
        flat, two = (exchange(way, 64, nbytes, device) for way in ("flat", "two hops"))
        inside = 7 * 3.4e-6 + nbytes * 7 / 8 / 450e9
        once = inside + 7 * 14e-6 + nbytes / 8 * nodes_reached(256, 8, 8) * 7 / 8 / 50e9
        assert printed == [f"{1e6 * time:,.0f}µs" for time in (flat, two, once)]
        ratios.append((f"{two / flat:.2f}", f"{once / flat:.2f}"))
    assert [row for row, _ in ratios] == ["0.16", "0.39", "0.85", "1.03"]
    assert ratios[-1][1] == "0.72"


def test_what_two_hops_save_and_pay_is_what_the_text_says(text):
    flat, two, once = tables.journeys(4096)
    saved, paid = 49 * 14e-6, 7 * 3.4e-6 + 4096 * 8 * 7168 * 2 * 7 / 8 / 450e9
    assert two - flat == pytest.approx(paid - saved)
    assert f"49 latencies ({1e6 * saved:.0f} µs) but pay {1e6 * paid:.0f} µs" in text
    assert f"{1e6 * once:,.0f} instead of {1e6 * flat:,.0f} µs" in text


def test_messages_that_start_together_are_faster_straight(text):
    """So the sequence of messages is why two hops win with one token, and not why they tie."""
    one, many = tables.together(1), tables.together(4096)
    assert one[0] < one[1] and many[0] < many[1]
    assert f"for one token ({1e6 * one[0]:.0f} against {1e6 * one[1]:.0f} µs)" in text
    assert f"({1e6 * many[0]:,.0f} against {1e6 * many[1]:,.0f} µs)" in text


def test_the_experts_weights_are_fewer_than_rows_only_with_very_many_tokens(text):
    rows = lambda tokens: 4 * 2 * tokens * 4096  # of Mixtral, k = 2, (P - 1)/P left out
    weights = 3 * 8 * 4096 * 14_336  # of each gather, and as many gradients
    assert rows(129_024) == 3 * weights and 2 * 129_024 == 2.25 * 8 * 14_336
    assert "k·N/P > 2.25·E·F, which for Mixtral is 129,024 tokens a rank" in text
    assert rows(86_016) == 2 * weights and "it is 1.5·E·F, or 86,016 tokens" in text


def test_one_token_in_the_flat_way_is_almost_only_latencies(text):
    """Those between nodes follow one another, and those inside the node go beside them."""
    flat, piece = tables.journeys(1)[0], 8 * 7168 * 2 / 64
    assert flat == pytest.approx(56 * (14e-6 + piece / 50e9))
    inside = lambda device: exchange("flat", 8, 8 * piece, device)
    assert inside(speeds("H100", "NVLink4")) == pytest.approx(7 * (3.4e-6 + piece / 450e9))
    assert "Those inside the node do so too, but at the same time as the others." in text
    assert 0.99 < 56 * 14e-6 / flat < 1 and "almost only its 56 latencies" in text


def test_a_rank_without_rows_is_charged_only_its_weights(text):
    """It does not matter for the step, which ends with the busiest rank."""
    shares = trained(*WAYS["no loss"], 0).shares()[-1]
    assert shares[:2] == [0, 0]
    run = tables.step_with(shares)
    reading = 2 * 4096 * 14_336 * 2 / float(hardware.gpu("H100").memory_bandwidth.value)
    bars = [row.seconds for row in run.where(rank=0, lane="compute", op="mm")]
    assert sum(t == pytest.approx(reading, rel=0.01) for t in bars) == 6
    work = [sum(r.seconds for r in run.where(rank=r, lane="compute")) for r in range(4)]
    assert max(work) == work[2] and work[2] > 2 * work[0]
    assert "at least the time to read its weights. A program can skip an empty" in text


def test_the_hidden_sizes_are_those_of_experts_with_three_matrices():
    nvlink, network = (int(row[-1].replace(",", "")) for row in cells(tables.hidden_sizes()))
    assert network == round(hidden_size_that_covers(989e12, 50e9, matrices=3), 0)
    assert 1 < 14_336 / network < 1.1 and 6 < network / 2048 < 7 and nvlink < 2048


def test_published_rates_are_below_what_the_links_carry():
    assert cells(tables.deep_ep(), 2) == [
        ["8", "×", "2", "100", "90", "+11%", "81", "+23%"],
        ["8", "×", "4", "67", "61", "+9%", "61", "+9%"],
    ]


def test_messages_at_once_take_nearly_what_is_published(text):
    *rows, last = cells(tables.straight(), 2)
    one_by_one = int(last[-1][:-2].replace(",", ""))
    error = {int(gpus): (int(printed[:-2]), int(off[:-1])) for gpus, printed, _, off in rows}
    published = {gpus: own for gpus, (own, _) in error.items()}
    assert published == {16: 195, 32: 273, 64: 314, 128: 369, 256: 360}
    least, most = sorted(-off for _, off in error.values())[:: len(error) - 1]
    assert (least, most) == (14, 22)
    assert f"one latency and the bytes are {least} to {most} % less than DeepEP's time" in text
    assert 3 < one_by_one / 314 < 3.5
    flat = next(row[1] for row in cells(tables.hops(), 3) if row[0] == "128")
    assert flat == f"{one_by_one:,}µs"


def test_rows_that_leave_once_for_each_node():
    first = cells(tables.reached(), 2)
    assert first == [["2", "4.0", "1.0"], ["4", "6.0", "2.7"], ["8", "7.0", "4.6"]]


def test_with_two_levels_a_token_leaves_once_at_most():
    flat, two = (list(map(int, row[1:])) for row in cells(further.two_levels(), 2))
    assert two[0] == 2 * two[1] and two[0] > flat[0] and two[1] < flat[1]


def test_bfloat16_ties_and_float32_does_not(text):
    single, half = cells(further.ties(), 2)
    assert single[1:] == ["0.0%", "0.0%"] and half[1:] == ["2.0%", "4.0%"]
    assert (
        "for 2.0 % of the tokens another set of 8 experts is chosen, and 4.0 % have a tie" in text
    )


def test_who_waits_has_the_mean_of_single_steps():
    even, odd = [[[4] * 8] * 4], [[[32, *[0] * 7]] * 4]
    lines = tables.who_waits({"turns": Run((even + odd) * (LAST // 2), [])}).splitlines()
    both = [1e3 * tables.step_with(shares).makespan for shares in ([1 / 8] * 8, [1, *[0] * 7])]
    assert lines[0] == "predicted (H100, NVLink 4)" and lines.pop(0)
    assert lines[1].split()[-1] == f"{both[0]:.1f}ms"
    expected = [f"{t:.1f}ms" for t in (sum(both) / 2, *both)]
    assert lines[4].split() == ["turns", *expected] and max(map(len, lines)) <= 49
    assert [line[:16].strip() for line in lines[2:4]] == ["16,384 by chance", "256 by chance"]


def test_few_tokens_that_choose_by_chance_make_a_step_longer_than_many():
    """So a part of what 256 tokens with a balance loss cost is not the price of that loss."""
    even = tables.step_with([1 / 8] * 8).makespan
    few, many = (
        mean(tables.step_with(shares).makespan for shares in tables.shares_by_chance(n))
        for n in (256, 16_384)
    )
    assert 1.1 < few / even < 1.15 and 1.01 < many / even < 1.03
    for shares in tables.shares_by_chance(64, experts=4, draws=3):
        assert len(shares) == 4 and sum(shares) == pytest.approx(1)
    spread = pstdev([shares[0] for shares in tables.shares_by_chance(256, draws=400)])
    assert spread == pytest.approx((7 / 64 / 256) ** 0.5, rel=0.1)


def test_a_collapsed_gate_makes_the_step_longer():
    even, shares = [1 / 8] * 8, [0, 0, 0.18, 0, 0.77, 0, 0, 0.05]
    crowded, balanced = tables.step_with(shares), tables.step_with(even)
    assert crowded.makespan > 2.5 * balanced.makespan
    computed = [sum(r.seconds for r in crowded.where(rank=rank, lane="compute"))
                for rank in range(4)]  # fmt: skip
    assert computed[2] > 4 * max(computed[0], computed[3])
