"""Bytes of optimizers beside their losses: bars to the byte, the device's line, points by seed."""

import pytest

from lib.draw import optimizers
from lib.draw.optimizers import OPTIMIZERS
from lib.draw.parts import style
from lib.predict.optimizers import state_bytes
from lib.predict.shape import GPTShape
from lib.predict.sharded.models import model, models
from tests.draw.marks import box, boxes, swatch, texts

LOSSES = {"adamw": [2.5, 2.6, 2.7], "adafactor": [2.4, 2.5, 2.6], "sm3": [3.0, float("nan"), 3.1]}
SHAPE = GPTShape()


def lines_of_the_mean(picture):
    """The upright lines in the rows of losses: axes lie, and have upright ticks of at most 5 px."""
    lines = [m for m in picture.marks if m.kind == "line" and m.points[0][0] == m.points[1][0]]
    return [m for m in lines if m.points[1][1] - m.points[0][1] > 5 and m.thick == 1.5]


def about(picture, name, kind):
    return box(picture, f"{name}: {kind} ").about


@pytest.mark.parametrize("size", [*models(), SHAPE])
@pytest.mark.parametrize(("precision", "itemsize"), [("fp32", 4), ("mixed", 4), ("bf16", 2)])
def test_every_bar_says_the_predicted_bytes(size, precision, itemsize):
    picture = optimizers(size, precision=precision)
    shape = model(size) if isinstance(size, str) else size
    for name, (known, options) in OPTIMIZERS.items():
        kept = state_bytes(known, shape, itemsize, **options)
        weights = {"fp32": 8, "mixed": 8, "bf16": 4}[precision] * shape.numel
        assert f"  {name}: optimizer {kept:,}, all {weights + kept:,} bytes" in picture.summary
        if name != "sgd" and kept * 1e5 > weights:
            told = about(picture, name, "optimizer's states")
            assert told.startswith(f"{name}: optimizer's states {kept:,} bytes, ")
    assert f"parameters {shape.numel * (4 if precision == 'fp32' else 2):,} bytes" in about(
        picture, "adamw", "parameters"
    )
    assert bool(boxes(picture, "adamw: fp32 copy")) == (precision == "mixed")


def test_shapes_alone_are_enough():
    picture = optimizers([(4096, 1024), (4096,)], precision="fp32")
    numel = 4096 * 1024 + 4096
    assert f"the given model, {numel:,} parameters" in picture.summary
    assert f"  adafactor: optimizer {4 * (4096 + 1024 + 4096) + 8:,}, " in picture.summary
    sums = 4 * (4096 + 1024 + 4096)
    assert f"  sm3: optimizer {sums + 4 * numel:,}, " in picture.summary
    assert f"  sm3 without momentum: optimizer {sums:,}, " in picture.summary
    named = [entry["name"] for entry in picture.live[1]["models"]]
    assert named == ["the given model", *models()]


def test_bars_begin_with_the_states_on_one_scale():
    picture = optimizers("Llama 3 405B", precision="fp32", gpu="V100")
    first = {name: boxes(picture, f"{name}: ")[0] for name in OPTIMIZERS}
    assert {mark.x for mark in first.values()} == {first["sgd"].x}
    assert first["adamw"].w == pytest.approx(2 * first["momentum"].w)
    assert first["adamw"].w == pytest.approx(2 * box(picture, "adamw: parameters").w)
    assert (
        first["adamw"].fill
        == style.memory("optimizer")
        == swatch(picture, "optimizer's states").fill
    )
    end = max(mark.x + mark.w for mark in boxes(picture, "adamw: "))
    assert end == pytest.approx(style.WIDTH - 14)  # the longest bar is whole, as long as the axis


def test_the_device_is_a_line_where_its_memory_ends():
    picture = optimizers("Llama 3 8B", gpu="H100", names=["adamw", "adafactor"])
    lines = [m for m in picture.marks if m.kind == "line" and m.edge == style.INK and m.thick == 2]
    assert len(lines) == 2 and len({line.points[0][0] for line in lines}) == 1
    bar = boxes(picture, "adamw: ")
    left, end = bar[0].x, max(mark.x + mark.w for mark in bar)
    share = (lines[0].points[0][0] - left) / (end - left)
    numel = model("Llama 3 8B").numel
    assert share == pytest.approx(80e9 / (8 * numel + state_bytes("adamw", model("Llama 3 8B"))))
    assert "H100, 80 GB" in texts(picture)


def words(*more, **settings):
    return " ".join(texts(optimizers(*more, **settings)))


def test_what_fits_is_said_in_words():
    few = {"names": ["adamw", "adafactor", "adam8bit"]}
    assert "Llama 3 8B in mixed precision fits with adafactor on one device with 80 GB." in words(
        **few
    )
    assert "in bf16 fits with every optimizer on one device" in words(precision="bf16", **few)
    assert "in fp32 fits with none of these optimizers on" in words(
        "Llama 3 70B", precision="fp32", **few
    )
    assert "adamw 64.2 GB, 8 B each" in words(**few)


def test_each_seed_is_a_point_and_the_plain_mean_a_line():
    picture = optimizers("GPT-2", LOSSES)
    points = {name: boxes(picture, f"{name}, seed ") for name in LOSSES}
    assert [len(own) for own in points.values()] == [3, 3, 3]
    x = lambda name, seed: points[name][seed].x
    assert x("adamw", 1) - x("adamw", 0) == pytest.approx(x("adamw", 2) - x("adamw", 1))
    assert x("adafactor", 1) == pytest.approx(x("adamw", 0))  # both are 2.5
    assert len({mark.y for mark in points["adamw"]}) == 3
    lines = lines_of_the_mean(picture)
    assert len(lines) == len(OPTIMIZERS) and not any(line.dash for line in lines)
    middle = x("adamw", 1) + points["adamw"][1].w / 2
    assert [line.points[0][0] for line in lines] == pytest.approx([middle] * len(lines))
    told = points["adafactor"][0].about
    assert told == "adafactor, seed 0: 2.400\nmean 2.500, 0.100 below adamw"
    assert {"mean 2.600", "mean 2.500", "diverged", "line: the mean of adamw"} <= {*texts(picture)}


def test_a_seed_that_diverged_is_an_empty_point_at_the_edge():
    points = boxes(optimizers("GPT-2", LOSSES), "sm3, seed ")
    assert [bool(mark.fill) for mark in points] == [True, False, True]
    assert points[1].about == "sm3, seed 1: diverged"
    assert points[1].x > max(points[0].x, points[2].x)


def test_losses_are_not_in_the_summary_and_the_caption_says_whose_they_are():
    picture = optimizers("GPT-2", LOSSES)
    assert "2.5" not in picture.summary and "sm3: optimizer" in picture.summary
    assert "losses of 3 seeds" in picture.summary and "one for each seed" in picture.caption
    without = optimizers("GPT-2")
    assert "seed" not in without.summary + without.caption + " ".join(texts(without))
    own = optimizers("GPT-2", LOSSES, losses_are="Points: read from a table", caption="One more")
    assert own.caption.endswith("for each parameter. Points: read from a table. One more.")


def test_without_the_plain_optimizer_there_is_no_line_of_its_mean():
    picture = optimizers("GPT-2", {"sm3": [3.0, 3.1]})
    assert not lines_of_the_mean(picture)
    assert boxes(picture, "sm3, seed 0")[0].about == "sm3, seed 0: 3.000"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: optimizers("GPT-5"), "None of the models is called 'GPT-5'"),
        (lambda: optimizers(gpu="Z80"), "No GPU here is called 'Z80'"),
        (lambda: optimizers(precision="fp8"), "`precision` is one of fp32, mixed, bf16"),
        (lambda: optimizers(names=["lion"]), "No optimizer here is called 'lion'"),
        (lambda: optimizers(names=[]), "one or more optimizers, each of them once"),
        (lambda: optimizers(names=["sgd", "sgd"]), "one or more optimizers, each of them once"),
        (lambda: optimizers(losses={"lion": [1.0]}), "No optimizer here is called 'lion'"),
        (lambda: optimizers(losses=LOSSES, names=["adamw", "sm3"]), "There are losses of 'adafac"),
        (lambda: optimizers([]), "There are no shapes"),
        (lambda: optimizers([(4, 0)]), "A size of a shape must be a whole number"),
    ],
)
def test_bad_input_is_told_in_a_sentence(call, words):
    with pytest.raises(ValueError, match=words):
        call()
