"""The networks: each fails in fp16 without its remedy, on every seed, and learns with it."""

import functools

import pytest
import torch

from lib.course.mixed_precision.networks import NETWORKS
from lib.course.mixed_precision.training import (
    RECIPES,
    SEEDS,
    final_loss,
    final_losses,
    losses,
    table,
)
from tests.every import every


@functools.cache
def final(name, recipe, seed):
    return final_loss(losses(NETWORKS[name], RECIPES[recipe], seed))


def ratios(name, recipe, seeds=SEEDS):
    """For each seed the final loss, as a multiple of that in fp32."""
    return [final(name, recipe, seed) / final(name, "fp32", seed) for seed in seeds]


def test_the_language_model_learns_in_fp16_as_it_is():
    assert every(0.97 < ratio < 1.03 for ratio in ratios("language", "fp16"))
    start, *_, end = losses(NETWORKS["language"], RECIPES["fp16"])
    assert end < 0.7 * start, "it has learned something"


def test_the_detector_stands_still_in_fp16_unless_its_loss_is_scaled():
    assert every(ratio > 5 for ratio in ratios("detector", "fp16"))
    assert every(0.95 < ratio < 1.05 for ratio in ratios("detector", "fp16, scaled"))


def test_master_weights_do_not_help_the_detector():
    (masters,), (both,) = (ratios("detector", f"fp16, {how}", (0,)) for how in ("masters", "both"))
    assert masters > 5 and 0.95 < both < 1.05


def test_the_regression_stalls_in_fp16_unless_it_has_master_weights():
    assert every(ratio > 1.4 for ratio in ratios("regression", "fp16"))
    assert every(0.99 < ratio < 1.01 for ratio in ratios("regression", "fp16, masters"))


@pytest.mark.parametrize(
    ("recipe", "lowest", "highest"),
    [
        ("fp16, scaled", 1.4, 3),
        ("bf16", 4, 20),
        ("bf16, stochastic", 0.9, 1.1),
        ("bf16, compensated", 0.98, 1.02),
    ],
)
def test_what_else_helps_the_regression_and_what_does_not(recipe, lowest, highest):
    (ratio,) = ratios("regression", recipe, seeds=(0,))
    assert lowest < ratio < highest


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("recipe", ["fp32", "fp16, both", "bf16, stochastic"])
def test_a_run_is_the_same_each_time_and_its_seed_counts(name, recipe):
    first, second, other = (
        losses(NETWORKS[name], RECIPES[recipe], seed, steps=4) for seed in (0, 0, 1)
    )
    assert first == second != other and len(first) == 4


def test_the_table_has_a_line_for_each_network(monkeypatch):
    import lib.course.mixed_precision.training as training

    monkeypatch.setattr(training, "losses", lambda network, recipe, seed: [1.0 + seed, 2.0])
    text = table(final_losses(("fp32", "fp16"), seeds=(0, 1)))
    assert text.splitlines() == [
        "loss / fp32's              fp16",
        "language           1.00 to 1.00",
        "detector           1.00 to 1.00",
        "regression         1.00 to 1.00",
        "average            1.00 to 1.00",
    ]


@pytest.mark.parametrize("recipe", RECIPES)
def test_each_recipe_keeps_the_model_in_its_format(recipe):
    chosen = RECIPES[recipe]
    seen = set()
    network = NETWORKS["regression"]
    watched = network.__class__(
        **{
            **vars(network),
            "loss": lambda outputs, targets: seen.add(outputs.dtype) or outputs.square().mean(),
            "model": lambda seed: _watched(network.model(seed), seen),
        }
    )
    losses(watched, chosen, steps=1)
    assert seen == {torch.float32, chosen.format}  # outputs for the loss, and inside


def _watched(model, seen):
    model.register_forward_hook(lambda module, inputs, output: seen.add(output.dtype))
    return model
