"""The playbook's figures recompute to the last digit, and one that does not is said not to."""

import dataclasses

import pytest

from lib.predict.sharded.models import LlamaShape, model
from lib.predict.sharded.published import tables
from lib.predict.sharded.states import convention, held
from lib.predict.sharded.ultra_scale import (
    GIB,
    activations_with_scores,
    figure,
    matrices,
    parameters_of_a_gpt,
)

TABLE = tables()["ultra_scale"]
SCORES = TABLE["with_scores"]


def shape_of(name, vocabulary=128256):
    return dataclasses.replace(model(f"Llama 3 {name}"), vocabulary=vocabulary)


@pytest.mark.parametrize("case", TABLE["figures"], ids=lambda c: f"{c['model']} {c['setup']}")
def test_a_figure_recomputes_to_the_last_digit(case):
    shape = shape_of(case["model"], case["vocabulary"])
    for sequence, activations in zip(TABLE["sequences"], case["activations"], strict=True):
        found = figure(shape, sequence, **case["setup"])
        assert found.activations / GIB == activations
        for kind in ("parameters", "gradients", "optimizer"):
            assert getattr(found, kind) / GIB == case[kind], kind


def test_the_figures_do_not_agree_on_the_size_of_the_vocabulary():
    """15.0 and 14.957 GiB are both called 8B, and the table says which vocabulary each has."""
    plain = [case for case in TABLE["figures"] if case["model"] == "8B" and not case["setup"]]
    assert plain[0]["parameters"] != TABLE["figures"][0]["parameters"]
    assert "131,072" in TABLE["note"] and "128,256" in TABLE["note"]
    norms = 8030261248 - matrices(model("Llama 3 8B"))
    assert norms == (2 * 32 + 1) * 4096


@pytest.mark.parametrize("name", SCORES["activations"])
def test_activations_with_scores_recompute_and_parameters_are_those_of_another_model(name):
    shape = shape_of(name)
    for n, sequence in enumerate(SCORES["sequences"]):
        assert activations_with_scores(shape, sequence) / GIB == SCORES["activations"][name][n]
        counted = parameters_of_a_gpt(shape, sequence)
        assert 4 * counted / GIB == SCORES["parameters"][name][n]
        assert counted < 0.99 * shape.numel or name == "405B"
    assert "6.97" in SCORES["note"] and "13 %" in SCORES["note"]


def test_how_far_the_parameters_of_8b_are_off():
    eight = model("Llama 3 8B")
    counted = parameters_of_a_gpt(eight, 1024)
    assert f"{counted / 1e9:.2f}" == "6.97" and round(100 * (1 - counted / eight.numel)) == 13


def test_the_measured_memory_of_data_parallelism_is_constant_and_does_not_recompute():
    measured = TABLE["data_parallel"]
    shape = LlamaShape(**measured["shape"])
    numel = shape.numel - shape.vocabulary * shape.width  # the head is the embedding
    assert f"{numel / 1e9:.2f}" == "1.34"
    states = {held(numel, n, 0, convention("Megatron-LM")).total for n in measured["gpus"]}
    (states,) = states  # DDP's do not depend on the ranks
    left = measured["memory_gb"] - states / 1e9
    activations = 2 * figure(shape, measured["sequence"]).activations
    assert (f"{states / 1e9:.1f}", f"{left:.1f}") == ("24.2", "12.5")
    assert f"{activations / 1e9:.1f}" == "9.1" and "It does not recompute" in measured["note"]
    for word in ("24.2", "12.5", "9.1"):
        assert word in measured["note"]
