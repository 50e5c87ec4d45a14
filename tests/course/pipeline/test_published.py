"""Published bubbles and throughput of zero-bubble pipelines, as chapter 6 states them."""

from lib.course.pipeline.published import MODELS, bubbles, compare, throughputs
from tests.every import every


def test_bubbles_of_1f1b_and_zb_1p_are_the_printed_ones():
    for model in MODELS.values():
        plain, zb_1p, interleaved = compare(model)
        for row in (plain, zb_1p):
            assert round(row.bubble, 4) == row.printed_bubble
        assert 0 < interleaved.bubble - interleaved.printed_bubble < 0.0036


def test_every_prediction_is_faster_than_what_was_measured():
    errors = {
        (name, row.schedule): row.throughput / row.measured - 1
        for name, model in MODELS.items()
        for row in compare(model)
    }
    assert every(error > 0.03 for error in errors.values())
    thin = [error for (_, schedule), error in errors.items() if "interleaved" in schedule]
    thick = [error for (_, schedule), error in errors.items() if "interleaved" not in schedule]
    assert max(thick) < 0.09 and max(thin) < 0.18 and len(thin) == 3


def test_gains_over_1f1b_are_those_that_the_chapter_states():
    plain, zb_1p, interleaved = compare(MODELS["1.5B"])
    for row, predicted, measured in ((zb_1p, "11.2%", "9.3%"), (interleaved, "17.7%", "11.0%")):
        assert f"{row.throughput / plain.throughput - 1:.1%}" == predicted
        assert f"{row.measured / plain.measured - 1:.1%}" == measured
    plain, zb_1p, interleaved = compare(MODELS["14.6B"])
    assert interleaved.throughput > zb_1p.throughput and interleaved.measured < zb_1p.measured


def test_a_line_for_each_model_and_each_measured_schedule():
    for text, head in ((bubbles(), 1), (throughputs(), 2)):
        lines = text.splitlines()
        assert len(lines) == head + 3 + 9 and max(map(len, lines)) <= 47
        first = lines[head + 1 : head + 4]
        assert [line.split()[0] for line in first] == ["1F1B", "ZB-1p", "interleaved"]
