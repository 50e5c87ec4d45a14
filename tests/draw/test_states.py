"""States of a model by stage: bars to the byte, the device's line, and what fits in words."""

import re

import pytest

from lib.draw import states
from lib.draw.parts import style
from lib.predict.hardware import gpus
from lib.predict.sharded.states import STAGES, held, keeping
from tests.draw.marks import boxes, swatch, texts
from tests.every import every

KINDS = ("parameters", "gradients", "optimizer")


def bar(picture, stage):
    return boxes(picture, f"stage {stage}: ")


@pytest.mark.parametrize("size", ["GPT-2", "Llama 3 405B", 7_500_000_001])
@pytest.mark.parametrize("ranks", [1, 48, 4096])
def test_every_bar_says_the_predicted_bytes(size, ranks):
    picture = states(size, ranks=ranks, optimizer="momentum", precision="fp32")
    numel = {"GPT-2": 1557611200, "Llama 3 405B": 405853388800}.get(size, size)
    for stage in STAGES:
        wanted = held(numel, ranks, stage, keeping("momentum", "fp32"))
        told = [f"stage {stage}: {kind} {getattr(wanted, kind):,} bytes" for kind in KINDS]
        shown = [mark.about for mark in bar(picture, stage)]
        assert shown == told[: len(shown)] and (len(shown) == 3 or stage < 3 or ranks < 48)
        parts = f"parameters {wanted.parameters:,}, gradients {wanted.gradients:,}, optimizer "
        assert f"  stage {stage}: {parts}{wanted.optimizer:,}: {wanted.total:,} bytes, fits" in (
            picture.summary.replace("does not fit", "fits")
        )


def test_bars_stand_on_one_scale_in_the_colours_of_memory():
    picture = states(10**9, ranks=4, precision="mixed", gpu="H100")
    widths = {
        (stage, mark.about.split()[2]): mark.w for stage in STAGES for mark in bar(picture, stage)
    }
    whole, share = widths[0, "optimizer"], widths[1, "optimizer"]
    assert whole == pytest.approx(4 * share) and whole == pytest.approx(6 * widths[0, "gradients"])
    assert [mark.fill for mark in bar(picture, 3)] == [style.memory(kind) for kind in KINDS]
    assert swatch(picture, "gradients").fill == style.memory("gradients")


def test_the_device_is_a_line_where_its_memory_ends():
    picture = states(10**9, ranks=1, gpu="V100")
    lines = [m for m in picture.marks if m.kind == "line" and m.edge == style.INK and m.thick == 2]
    assert len(lines) == 4 and len({mark.points[0][0] for mark in lines}) == 1
    left = min(mark.x for mark in bar(picture, 0))
    end = max(mark.x + mark.w for mark in bar(picture, 0))
    at = lines[0].points[0][0]
    assert (at - left) / (end - left) == pytest.approx(32 / 16)
    assert "V100, 32 GB" in texts(picture)


def test_a_bar_far_beyond_the_device_is_cut_off_at_the_edge():
    picture = states("Llama 3 405B", ranks=8)
    assert max(m.x + m.w for m in picture.marks if m.kind == "box") <= style.WIDTH
    tears = [
        m for m in picture.marks if m.kind == "line" and m.edge == style.PAPER and m.thick == 3
    ]
    assert len(tears) == 4 and "is cut off" in picture.caption
    small = states("GPT-2", ranks=8)
    assert not [
        m for m in small.marks if m.kind == "line" and m.edge == style.PAPER and m.thick == 3
    ]


def verdict(*more, **settings):
    return " ".join(texts(states(*more, **settings)))


def test_what_fits_is_said_in_words():
    said = verdict("Llama 3 70B", ranks=16)
    assert "Llama 3 70B fits with stage 3 on 16 ranks with 80 GB each." in said
    assert "With stage 3, up to 80 billion parameters would fit." in said
    assert "fits with stages 1, 2, 3 on 8 ranks" in verdict("Llama 3 8B")
    assert "fits with no stage on 64 ranks" in verdict("Llama 3 405B", ranks=64)
    assert "GPT-2 fits with every stage on 1 rank with" in verdict("GPT-2", ranks=1)
    assert "A model fits with every stage" in verdict(10**6)
    assert "stage 0: 1.13 TB, does not fit" in verdict("Llama 3 70B")


def test_activations_are_on_top_of_every_stage():
    picture = states("GPT-2", activations=10**10)
    assert [mark.about for mark in boxes(picture, "stage 3: activations")] == [
        "stage 3: activations 10,000,000,000 bytes"
    ]
    assert swatch(picture, "activations").fill == style.memory("activations")
    assert "activations 10,000,000,000: " in picture.summary
    assert "activations" not in texts(states("GPT-2"))


def test_real_models_devices_and_what_was_asked_for_can_be_chosen():
    data = states(123_456_789, ranks=48, optimizer="adam").live[1]
    named = [entry["name"] for entry in data["sizes"] if entry["name"]]
    assert named == ["GPT-2", "Llama 3 8B", "Llama 3 70B", "Llama 3 405B"]
    sizes = [entry["numel"] for entry in data["sizes"]]
    assert sizes == sorted(set(sizes)) and 123_456_789 in sizes
    assert [gpu["name"] for gpu in data["gpus"]] == gpus()
    start = data["start"]
    assert data["ranks"][start["ranks"]] == 48 and sizes[start["size"]] == 123_456_789
    assert data["kept"][start["kept"]]["name"] == "adam, mixed"
    assert every(re.fullmatch(r"\w+, (fp32|mixed|bf16)", one["name"]) for one in data["kept"])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: states("GPT-5"), "None of the models is called 'GPT-5'"),
        (lambda: states(0), "The number of parameters must be a whole number of at least 1"),
        (lambda: states(ranks=0), "ranks must be a whole number of at least 1"),
        (lambda: states(gpu="Z80"), "No GPU here is called 'Z80'"),
        (lambda: states(optimizer="lion"), "Nothing is known of 'lion'"),
    ],
)
def test_bad_input_is_told_in_a_sentence(call, words):
    with pytest.raises(ValueError, match=words):
        call()
