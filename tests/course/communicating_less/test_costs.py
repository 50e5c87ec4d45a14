"""Chapter 2's predicted bytes and times: against closed forms and published figures."""

import pytest

from lib.course.communicating_less import costs
from lib.course.data_parallel.lessons import step_seconds
from lib.parallel.data import PowerSGD, TopK
from lib.predict import hardware
from lib.predict.flops import flops
from tests.every import every


@pytest.mark.parametrize("name", costs.CURVES)
def test_what_adds_up_on_the_way_hardly_grows(name):
    """Gathered messages grow with every rank; sums stay below twice their size."""
    sent = [costs.gpt2_bytes(name, n) for n in (2, 4, 64, 1024)]
    if name in ("plain", "16 bits", "PowerSGD", costs.IN_PIECES):
        assert sent[-1] < 2 * sent[0]
    else:
        assert sent[-1] == pytest.approx(1023 * sent[0])


def test_the_ranks_from_which_gathering_sends_more_than_a_sum():
    def more(name, other="plain"):
        pairs = ((costs.gpt2_bytes(name, n), costs.gpt2_bytes(other, n)) for n in range(2, 200))
        return next(n for n, (ours, plain) in enumerate(pairs, 2) if ours > plain)

    # From 2S/P on: 8 bytes of each 400, 4 bits of each 32 with a scale, 1 bit of each 32.
    assert {name: more(name) for name in ("top 1 %", "4 bits", "sign")} == {
        "top 1 %": 100, "4 bits": 16, "sign": 64}  # fmt: skip
    # "Compared with an all-reduce in 16 bits, these limits halve"
    assert {name: more(name, "16 bits") for name in ("top 1 %", "4 bits", "sign")} == {
        "top 1 %": 50, "4 bits": 8, "sign": 32}  # fmt: skip


def test_codes_that_are_added_up_in_pieces_send_less_on_any_number_of_ranks():
    """An eighth of the plain bytes, and a scale for each 512 numbers; the gather has a limit."""
    for n in (2, 16, 1024):
        share = costs.gpt2_bytes(costs.IN_PIECES, n) / costs.gpt2_bytes("plain", n)
        assert share == pytest.approx(4 / 32 + 1 / 512, rel=1e-4)
    assert costs.gpt2_bytes(costs.IN_PIECES, 2) == costs.gpt2_bytes("4 bits", 2)
    assert costs.gpt2_bytes("4 bits", 16) > costs.gpt2_bytes("plain", 16)


def test_the_first_cells_times_are_arithmetic():
    wire, size = hardware.link("Ethernet 100"), costs.GPT2.nbytes()
    expected = 14 * wire.alpha + 14 / 8 * size / wire.bandwidth
    assert costs.gpt2_moving("plain", "Ethernet 100", 8) == pytest.approx(expected)
    # The step is that of chapter 1: its products at the peak, and what only moves memory.
    for ranks in (1, 8, 16):
        computing, *_ = step_seconds(costs.GPT2, "NVLink4", 32, ranks)
        assert costs.gpt2_computing(ranks) == computing
    products, peak = flops(costs.GPT2, 32).total, hardware.gpu("H100").peak["bf16"]
    assert 1.6 < costs.gpt2_computing(1) / (products / peak) < 2


def test_a_published_time_stands_beside_the_prediction():
    published = hardware.sweep("H100 2-node all-reduce")
    line = costs.beside_published(published, 2**29)
    assert line.split() == ["512", "2,559", "2,163", "-15%"]
    assert costs.published_seconds(published, 2**29) == pytest.approx(2559.2e-6)


def test_a_rank_that_gathers_decodes_a_message_of_every_rank(worlds):
    few, many, more = worlds(2).run(costs.gpt2_compressing, TopK(0.01), (2, 4, 6))[0]
    assert 0 < few < many and more - many == pytest.approx(many - few)
    alike = worlds(2).run(costs.gpt2_compressing, PowerSGD(2), (2, 64))[0]
    assert alike[0] == alike[1] > 0
    (four,) = worlds(4).run(costs.gpt2_compressing, TopK(0.01), (4,))[0]
    assert four == pytest.approx(many, rel=0.02)


def test_rows_cross_where_they_are_predicted_to():
    lines = costs.rows_sent(1000, 100, range(2, 41))
    (_, ours), (_, dense) = lines.values()
    assert every(a < b for a, b in zip(ours[:17], dense)) and ours[-1] > dense[-1]


def test_a_fused_kernel_of_4_bits_moves_what_the_text_says():
    numbers = costs.GPT2.nbytes() / 4
    message = numbers / 2 + numbers / 512 * 4
    assert round(message / 1e6) == 63
    moved = {n: 2 * 4 * numbers + (n + 1) * message for n in (4, 64)}
    assert {n: round(one / 3350e9 * 1e3, 1) for n, one in moved.items()} == {4: 0.4, 64: 1.5}
