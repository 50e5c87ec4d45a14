"""What chapter 10 claims beside its cells: of ZeRO-1, of recipes, of the estimate, of the card."""

import pytest
import torch

from lib.course.mixed_precision.networks import DETECTOR, HEAD
from lib.course.mixed_precision.training import RECIPES, SUMS
from lib.predict.sharded.states import bytes_per_parameter, keeping
from lib.single.formats import MXFP8, NVFP4
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
    assert needs.endswith("| the same without loss scaling |")


def test_sums_that_are_cut_off(notebook, text):
    lines = shown(notebook, "lessons.products(2048)").splitlines()
    (cut,) = [line for line in lines if line.startswith("cut off  ")]
    assert f"{float(cut.split()[-2]):.1f}" == "4.9"
    assert "cut off to 14 bits after each term, the error is 4.9 %" in text


def test_mxfp8_has_nearly_twice_the_bits_of_nvfp4(text):
    bits = [form.bits for form in (MXFP8, NVFP4)]
    assert bits == [8.25, 4.5] and 1.8 < bits[0] / bits[1] < 2
    assert "although it has nearly twice the bits" in text
