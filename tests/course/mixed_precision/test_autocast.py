"""What chapter 10 says of autocast: bf16 needs no scaled loss, fp16 does, and who runs in what."""

import pytest
import torch
import torch.nn.functional as F
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from lib.course.mixed_precision.gradients import gradients
from lib.course.mixed_precision.networks import DETECTOR
from lib.course.mixed_precision.training import SEEDS
from lib.single.formats import BF16
from lib.single.precision import sum_in
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
    assert "weights and Adam's states stay in fp32, so no master copy is needed" in text


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


def formats_in_fsdp2(output_dtype):
    """Return what a normalization layer takes and gives, the logits, and gradients, in FSDP2."""
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=output_dtype
    )
    model, seen = torch.nn.Sequential(torch.nn.LayerNorm(8), torch.nn.Linear(8, 8)), []
    model[0].register_forward_hook(
        lambda layer, inputs, output: seen.extend((inputs[0].dtype, output.dtype))
    )
    logits = fully_shard(model, mp_policy=policy)(torch.ones(2, 8))
    logits.float().square().mean().backward()
    return *seen, logits.dtype, {p.grad.dtype for p in model.parameters()}


def test_fsdp2_converts_whole_modules(worlds, text):
    bf16, fp32 = torch.bfloat16, torch.float32
    assert MixedPrecisionPolicy().output_dtype is MixedPrecisionPolicy().reduce_dtype is None
    for asked, logits in ((None, bf16), (fp32, fp32)):
        found = worlds(2).run(formats_in_fsdp2, asked)
        assert found == [(bf16, bf16, logits, {fp32})] * 2
    assert "Unlike autocast it converts whole modules, so normalization layers are in bf16" in text
    assert "with `output_dtype=torch.float32` for the outermost module" in text


@pytest.mark.parametrize("layer", (F.layer_norm, F.rms_norm))
def test_normalization_of_bf16_adds_up_in_fp32(layer, text):
    """It gives what fp32 gives, rounded once; one sum of 8,192 squares in bf16 would stall."""
    x = 0.5 + torch.rand(4, 8192, generator=torch.Generator("cpu").manual_seed(0), device="cpu")
    x = x.bfloat16()
    assert torch.equal(layer(x, (8192,)), layer(x.float(), (8192,)).bfloat16())
    assert sum_in(BF16, x.square()).lt(0.5 * x.float().square().sum(-1)).all()
    assert "normalization layers are in bf16 too (their inner sums stay in fp32)" in text


def test_without_autocast_the_loss_of_bf16_logits_is_in_bf16(text):
    x = torch.ones(2, 8, dtype=torch.float32)
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        y = torch.nn.Linear(8, 8)(torch.nn.LayerNorm(8)(x))
        loss = torch.nn.functional.cross_entropy(y, torch.tensor([0, 1]))
    assert y.dtype == torch.bfloat16 and loss.dtype == torch.float32
    assert torch.nn.functional.cross_entropy(y, torch.tensor([0, 1])).dtype == torch.bfloat16
    said = "The logits are in bf16 either way. Autocast converts them to fp32 for the loss"
    assert said in text
