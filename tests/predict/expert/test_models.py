"""Published counts of parameters follow from published shapes, where they do."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from lib.predict.expert import models
from lib.single.experts import MoE

BY_NAME = {model.name: model for model in models.MODELS}


@pytest.mark.parametrize(
    ("name", "within"),
    [
        ("Switch-Base", 0.07),  # printed in whole billions: 7
        ("Switch-Large", 0.05),
        ("Switch-C", 0.001),
        ("GShard", 0.035),  # printed in whole hundreds of billions: 600
        ("Mixtral 8x7B", 0.001),
        ("DeepSeek-V3", 0.001),
    ],
)
def test_all_parameters_are_those_that_were_printed(name, within):
    model = BY_NAME[name]
    assert model.total == pytest.approx(model.published[0], rel=within)
    assert set(BY_NAME) == {m.name for m in models.MODELS} and len(BY_NAME) == 6


# Experts, layers, weights as printed: Lepikhin et al. 2020 (arXiv 2006.16668), table 1.
GSHARD = [
    (2048, 36, 600e9), (2048, 12, 200e9), (512, 36, 150e9), (512, 12, 50e9), (128, 36, 37e9),
    (128, 12, 12.5e9), (2048, 60, 1e12),
]  # fmt: skip


@pytest.mark.parametrize(("experts", "layers", "printed"), GSHARD)
def test_all_sizes_of_gshard_are_near_those_that_were_printed(experts, layers, printed):
    assert models.gshard(experts, layers, printed).total == pytest.approx(printed, rel=0.08)


@pytest.mark.parametrize(("name", "within"), [("Mixtral 8x7B", 0.002), ("DeepSeek-V3", 0.016)])
def test_active_parameters_are_those_that_were_printed(name, within):
    model = BY_NAME[name]
    assert model.active == pytest.approx(model.published[1], rel=within)


def test_a_small_model_by_hand():
    model = models.ExpertModel("small", 4, 3, 2, 5, 2, 6, 8, 2, 100, 50, shared=1)
    expert = 2 * 4 * 6
    always = 2 * 4 * 8 + 2 * expert + 2 * 5 * 4 + 150
    assert (model.expert, model.always) == (expert, always)
    assert model.total == always + 2 * 5 * expert
    assert model.active == always + 2 * 2 * expert


@pytest.mark.parametrize(("k", "shared"), [(1, 0), (2, 0), (2, 3)])
def test_a_layer_holds_and_computes_what_is_counted(k, shared):
    layer, x = MoE(16, 24, 8, k, shared=shared).double(), torch.randn(1, 10, 16).double()
    counts = models.layer_counts(16, 24, 8, k, shared=shared)
    assert counts.parameters == sum(p.numel() for p in layer.parameters())
    with FlopCounterMode(display=False) as counted:
        layer(x)
    assert counted.get_total_flops() == 10 * counts.flop
    unused = (8 - k) * 2 * 16 * 24
    assert counts.active == counts.parameters - unused


def test_layers_of_a_published_model_add_up_to_it():
    mixtral = BY_NAME["Mixtral 8x7B"]
    counts = models.layer_counts(4096, 14_336, 8, 2, matrices=3)
    besides = mixtral.attention + mixtral.embeddings
    assert mixtral.total == 32 * counts.parameters + besides
    assert mixtral.active == 32 * counts.active + besides


def test_the_largest_switch_of_the_printed_shape_has_half_of_the_printed_size():
    """24 layers each, width 4,096, hidden 10,240, 64 experts in every second: not 395 billion."""
    options = {"every": 2, "matrices": 3}
    model = models.t5("Switch-XXL", 4096, 24, 64, 10_240, 64, 395e9, **options)
    assert 0.5 < model.total / 395e9 < 0.54
    assert 193 < model.expert_layers * model.experts * model.expert / 1e9 < 194
