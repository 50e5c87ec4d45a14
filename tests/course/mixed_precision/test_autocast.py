"""What chapter 10 says of autocast: bf16 needs no scaled loss, fp16 does, and who runs in what."""

import torch

from lib.course.mixed_precision.gradients import gradients
from lib.course.mixed_precision.networks import DETECTOR
from lib.course.mixed_precision.training import SEEDS
from tests.course.stored_chapter import chapter_fixtures, shown
from tests.every import every

notebook, text = chapter_fixtures("10-mixed-precision")


def test_bf16_needs_no_scaler_and_fp16_does(notebook, text):
    lines = shown(notebook, "def train_autocast").splitlines()
    ratios = {line[:4]: [float(n) for n in line.partition(":")[2].split()] for line in lines}
    assert set(ratios) == {"fp16", "bf16"}
    assert len(ratios["bf16"]) == len(SEEDS) and every(n == 1.0 for n in ratios["bf16"])
    assert [min(ratios["fp16"]), max(ratios["fp16"])] == [3.5, 7.2]
    assert "ends where fp32 does" in text and "its loss ends 3.5 to 7.2 times as high" in text


def test_no_gradient_of_the_detector_underflows_in_bf16():
    numbers = torch.cat([g[g != 0] for g in gradients(DETECTOR).all])
    assert (numbers.bfloat16() != 0).all() and (numbers.half() == 0).any()


def test_under_autocast_products_have_16_bits_and_loss_weights_and_states_32(text):
    model = DETECTOR.model(0)
    adam = DETECTOR.optimizer(model.parameters())
    inputs, targets = DETECTOR.batch(0, 0)
    with torch.autocast(inputs.device.type, dtype=torch.bfloat16):
        outputs = model(inputs)
        loss = DETECTOR.loss(outputs, targets)
    loss.backward()
    adam.step()
    assert outputs.dtype == torch.bfloat16 and loss.dtype == torch.float32
    assert every(p.dtype == p.grad.dtype == torch.float32 for p in model.parameters())
    assert every(state["exp_avg"].dtype == torch.float32 for state in adam.state.values())
    assert "products run in 16 bits, and losses in fp32" in text
    assert "weights and Adam's states stay in fp32, so the weights are their own masters" in text


def test_the_scales_of_the_rule(notebook):
    """They double after 20 good steps and halve at each overflow, as they are printed."""
    powers, good, printed = 16, 0, []
    for step in range(200):
        finite = step not in (50, 51, 120, 121, 122)
        powers, good = (powers, good + 1) if finite else (powers - 1, 0)
        if good == 20:
            powers, good = powers + 1, 0
        if step % 20 == 19:
            printed.append(str(powers))
    line = shown(notebook, "def next_scale").splitlines()[-1]
    assert line == "powers of two: " + " ".join(printed)
