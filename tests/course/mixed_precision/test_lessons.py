"""What the cells of chapter 10 call says what it should, and can say something else."""

import pytest
import torch

from lib.course.mixed_precision import cover, lessons, wall_clock
from lib.course.mixed_precision.fp8_runs import nearest
from lib.course.mixed_precision.networks import REGRESSION
from lib.ledger import Ledger, Row
from lib.single.precision import LossScaler
from tests.every import every


def test_the_scales_of_both_scalers_follow_the_overflows():
    scales = lessons.scales(LossScaler(2.0**16, interval=20))
    assert len(scales) == 200 and scales[18:20] == [2.0**16, 2.0**17]
    falls = [n for n, pair in enumerate(zip(scales, scales[1:]), 1) if pair[1] < pair[0]]
    assert falls == [50, 51, 120, 121, 122]
    assert scales != lessons.scales(LossScaler(2.0**16, interval=21))
    assert lessons.scales(LossScaler(8.0), ()) == [8.0] * 200
    theirs = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=20)
    assert scales == lessons.scales(theirs)


def test_losses_beside_fp32s():
    lines = lessons.compare(REGRESSION, ("bf16", "bf16, masters"), steps=40).splitlines()
    ratios = [[float(number) for number in line[20:].split()] for line in lines[1:]]
    assert lines[1].startswith("bf16 ") and len(ratios[0]) == 3
    assert every(ratio > 1.02 for ratio in ratios[0])
    assert every(abs(ratio - 1) <= 0.01 for ratio in ratios[1])


def test_errors_of_sums_grow_where_partial_sums_are_small_formats():
    few, many = (lessons.products(terms).splitlines()[1:] for terms in (128, 1024))
    of = lambda lines: {line[:16].strip(): float(line.split()[-2]) for line in lines}
    assert of(many)["bf16"] > 2 * of(few)["bf16"]
    assert of(many)["14 bits"] > 1.5 * of(many)["14 bits, blocks"]
    assert of(many)["cut off"] > 5 * of(many)["cut off, blocks"] > 0
    ring, tree = (float(n) for n in lessons.reduced([64]).splitlines()[1].split()[1::2])
    assert ring > 2 * tree


def test_sent_bytes_are_those_of_rings():
    def row(op, nbytes, start):
        return Row(0, "comm", op, start, start + 1, start, "world", (0, 1), 0, nbytes)

    rows = [row("barrier", 0, 0.0), row("all_gather", 400, 2.0), row("reduce_scatter", 200, 4.0)]
    run = Ledger([row("all_gather", 32, -2.0), *rows], source="measured")
    table = lessons.sent_table({"one": run, "again": run})
    assert table.splitlines()[1].split() == ["one", "200", "100", "100%"]


def test_the_losses_are_drawn_by_tens():
    picture = lessons.draw_losses(a=[1.0] * 10 + [3.0] * 10)
    assert "a measured line, from 10 to 20" in repr(picture)


def test_the_cover_shows_what_fp16_makes_of_a_small_number():
    assert "1e-8 in FP16 is 0 00000 0000000000" in repr(cover.picture())


def test_a_step_by_the_clock_has_a_prediction_for_each_format():
    class Machine:
        def compute(self, flop, nbytes, dtype):
            return flop / {"fp32": 1e9, "bf16": 2e9}[dtype]

    predicted = wall_clock.predicted(Machine())
    assert predicted["fp32"] == pytest.approx(2 * predicted["bf16"])
    assert set(wall_clock.steps(repeats=1)) == {"fp32", "bf16"}


def test_a_prediction_of_a_disturbed_machine_is_told_apart():
    measured = {"fp32": 1.0, "bf16": 2.0}
    assert not wall_clock.disturbed({"fp32": 0.5, "bf16": 5.0}, measured)
    assert wall_clock.disturbed({"fp32": 0.3, "bf16": 2.0}, measured)
    assert wall_clock.disturbed({"fp32": 1.0, "bf16": 7.0}, measured)


def test_sums_that_are_cut_off_err_towards_zero():
    a, b = torch.full((1, 3), 1.0), torch.tensor([[1.0], [2.0**-4], [2.0**-4]])
    assert lessons.cut_off(a, b, 4).item() == 1.0  # 4 bits hold 1 and 1.125, not 1.0625
    assert lessons.cut_off(-a, b, 4).item() == -1.0
    assert lessons.cut_off(a, b, 5).item() == 1.125


def test_errors_are_drawn_in_percent():
    points = {"ring": ([2, 4], [0.01, 0.02])}
    assert "0.02" not in repr(lessons.draw_errors(points, points))
    assert "ring: 2 points and a predicted line, from 2 to 4" in repr(
        lessons.draw_errors(points, points)
    )


def test_one_digit_of_a_loss():
    found = [nearest(loss) for loss in (0.0099, -0.003, 0.016, 0.051, 0.16, 1.02, -0.03)]
    assert found == [
        "under 0.01", "under 0.01", "about 0.02", "about 0.05", "about 0.2", "about 1",
        "-about 0.02",
    ]  # fmt: skip
