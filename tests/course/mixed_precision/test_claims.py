"""What chapter 10 claims beside its cells: of ZeRO-1, of recipes, of the estimate, of the card."""

import inspect
import re

import pytest
import torch

from lib.course.mixed_precision import sums_over_ranks as sums
from lib.course.mixed_precision.networks import DETECTOR, HEAD
from lib.course.mixed_precision.training import RECIPES, SUMS
from lib.predict.roofline import speeds
from lib.predict.sharded.states import bytes_per_parameter, keeping
from lib.single.formats import MXFP8, NVFP4
from lib.single.precision import LossScaler
from tests.course.stored_chapter import chapter_fixtures, shown
from tests.every import every

notebook, text = chapter_fixtures("10-mixed-precision")


@pytest.mark.parametrize("ranks", (1, 2, 8, 64))
def test_with_zero_1_mixed_precision_saves_what_is_not_sharded(text, ranks):
    mixed, fp32 = (
        bytes_per_parameter(ranks, 1, keeping("adamw", way)) for way in ("mixed", "fp32")
    )
    assert (mixed, fp32) == (4 + 12 / ranks, 8 + 8 / ranks)
    assert (mixed < fp32) == (ranks > 1)
    assert "With ZeRO-1 each of n ranks keeps 4 + 12/n bytes, not 8 + 8/n" in text
    assert "On one device only what is kept for backward gets smaller" in text


def test_the_recipes_of_the_sums_have_master_weights_and_differ_in_their_sums_alone(text):
    recipes = [RECIPES[name] for name in SUMS]
    alike = {(recipe.format, recipe.weights, recipe.scale) for recipe in recipes}
    assert alike == {(torch.float16, "master", None)}
    assert len({(recipe.accumulator, recipe.block) for recipe in recipes}) == 3
    assert "trains it with master weights, and changes only the format of its partial sums" in text


def test_the_last_layers_weights_start_near_a_thousandth(text):
    last = dict(DETECTOR.model(0).named_parameters())["blocks.1.linear.weight"]
    assert HEAD == 0.001 and last.std().item() == pytest.approx(HEAD, rel=0.3)
    assert "by the last layer's weights, which here start near ±0.001" in text


def test_only_the_loss_of_the_plain_training_is_in_fp32(notebook, text):
    """Weights, outputs, gradients and Adam's states are in fp16, and the loss is not."""
    (cell,) = [c.source for c in notebook.cells if "def train(network, format" in c.source]
    assert "network.loss(model(inputs.to(format)).float(), targets)" in cell
    model = DETECTOR.model(0).half()
    adam = DETECTOR.optimizer(model.parameters())
    inputs, targets = DETECTOR.batch(0, 0)
    outputs = model(inputs.half())
    loss = DETECTOR.loss(outputs.float(), targets)
    loss.backward()
    adam.step()
    assert outputs.dtype == torch.float16 and loss.dtype == torch.float32
    assert every(p.dtype == p.grad.dtype == torch.float16 for p in model.parameters())
    assert every(state["exp_avg"].dtype == torch.float16 for state in adam.state.values())
    assert "Only the loss is computed in fp32 (`.float()`)" in text


def test_the_card_asks_for_adams_states_in_fp32(text):
    (needs,) = [line for line in text.splitlines() if line.startswith("| needs | |")]
    assert "loss scaling; sums and Adam's states in fp32; fp32 weights or stochastic" in needs
    assert needs.endswith("| the same without loss scaling (DeepSeek-V3: Adam's states in bf16) |")


def test_sums_that_are_cut_off(notebook, text):
    lines = shown(notebook, "lessons.products(2048)").splitlines()
    (cut,) = [line for line in lines if line.startswith("cut off  ")]
    assert f"{float(cut.split()[-2]):.1f}" == "4.9"
    assert "cut off to 14 bits after each term, the error is 4.9 %" in text


def test_mxfp8_has_nearly_twice_the_bits_of_nvfp4(text):
    bits = [form.bits for form in (MXFP8, NVFP4)]
    assert bits == [8.25, 4.5] and 1.8 < bits[0] / bits[1] < 2
    assert "although it has nearly twice the bits" in text


def test_correlated_gradients_lose_less_than_random_numbers(notebook, text):
    """Over 64 ranks, beside the table: the sum is larger, so its relative error is smaller."""
    rows = shown(notebook, "lessons.reduced").splitlines()
    (random,) = [re.findall(r"[\d.]+", line)[1:] for line in rows if line.startswith("64 ")]
    assert random == ["0.94", "0.43"]
    trained = sums.gradients_by_rank(64, 300)
    errors = sums.measured(trained, [64], ("ring", "tree"))
    ring, tree = (100 * errors[name][1][0] for name in ("ring", "tree"))
    assert (ring, tree) == (pytest.approx(0.79, abs=0.03), pytest.approx(0.32, abs=0.02))
    said = "for 64 ranks 0.79 %, not 0.94 %, in a ring, and 0.32 %, not 0.43 %, in a tree"
    assert said in text
    larger = trained.double().sum(0).square().sum() / trained.double().square().sum()
    assert larger == pytest.approx(1 + 63 * sums.in_common(trained)) and 4 < larger < 5


def test_positions_in_bf16_fall_together(text):
    assert len(torch.arange(4096, device="cpu").bfloat16().unique()) == 769
    assert "of 0 to 4,095 it keeps only 769 apart" in text


def test_microbatches_gradients_are_added_up_in_the_format_of_the_weight(text):
    weight = torch.ones(1, device="cpu", dtype=torch.bfloat16, requires_grad=True)
    for _ in range(300):
        weight.sum().backward()
    assert weight.grad.item() == 256
    assert "when gradients of microbatches are added up in bf16, and **between ranks**" in text


def test_the_step_in_pytorch_skips_nan_without_a_scaler(notebook, text):
    """In bf16 the norm decides; in fp16 the scaler does, and its scale falls."""
    (cell,) = [c.source for c in notebook.cells if "torch.amp.GradScaler(device," in c.source]
    code = cell.split("```python\n")[1].split("```")[0]
    for dtype in ("bfloat16", "float16"):
        model = torch.nn.Linear(4, 4, device="cpu")
        before = model.weight.detach().clone()
        names = {
            "torch": torch, "model": model, "device": "cpu", "batches": [(torch.ones(2, 4), None)],
            "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
            "loss_of": lambda y, _: y.float().mean() * float("nan"),
        }  # fmt: skip
        exec(code.replace("dtype = torch.bfloat16\n", f"dtype = torch.{dtype}\n"), names)
        assert torch.equal(model.weight, before)
        assert names["scaler"].get_scale() == (2.0**15 if dtype == "float16" else 1)
    assert "the norm of the gradients decides whether the step is skipped" in text


def test_the_lines_of_unscale_are_the_librarys(notebook):
    (cell,) = [c.source for c in notebook.cells if "self.found_anywhere(flag)" in c.source]
    lines = cell.split("```python\n")[2].split("```")[0].strip().splitlines()
    own = [line.strip() for line in inspect.getsource(LossScaler.unscale_).splitlines()]
    assert len(lines) == 8 and all(line.strip() in own for line in lines)


def test_a_v100_has_eight_times_the_peak_in_fp16(text):
    peaks = [speeds("V100", dtype=dtype).peak for dtype in ("fp16", "fp32")]
    assert round(peaks[0] / peaks[1]) == 8
    assert "On a V100, whose peak is eight times as high in fp16, NVIDIA trained" in text


def test_autocasts_share_of_the_bytes_for_backward(notebook, text):
    assert "It is 64 %" in shown(notebook, "kept = lessons.kept()")
    assert "of the bytes that autograd keeps for backward, how many percent remain" in text
