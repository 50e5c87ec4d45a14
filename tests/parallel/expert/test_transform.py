"""A GPT whose experts are spread over ranks trains as the plain one, which sees the whole batch."""

from unittest import mock

import pytest
import torch

from lib.parallel.expert import expert_parallel, load_plain, to_plain, transform
from lib.single import GPT
from lib.single.experts import MoE
from tests.parallel.expert import models

EXACT = 1e-11


@pytest.mark.parametrize("name", models.OPTIONS)
def test_two_steps_are_those_of_the_plain_model(world, name):
    found = models.far(world.run(models.spread, name), models.plain(name))
    assert set(found) == {"losses", "logits", "kept", "gradients", "weights"}
    assert max(found.values()) < EXACT, found


@pytest.mark.parametrize("name", ["softmax", "one expert, capacity"])
@pytest.mark.parametrize("crowded", [0, 7])
def test_one_expert_has_all_tokens_and_some_ranks_none(worlds, name, crowded):
    found = models.far(worlds(4).run(models.spread, name, crowded), models.plain(name, crowded))
    assert max(found.values()) < EXACT, found


@pytest.mark.parametrize(
    "axes", [{"dp": 2, "ep": 2}, {"dp": 4, "ep": 1}, {"dp": 2, "ep": 4}], ids=str
)
@pytest.mark.parametrize("name", ["softmax", "noisy"])
def test_replicas_of_experts_learn_as_one(worlds, name, axes):
    ranks = axes["dp"] * axes["ep"]
    found = models.far(worlds(ranks).run(models.spread, name, None, axes), models.plain(name))
    assert max(found.values()) < EXACT, found


def divided_by_its_copies(name, axes):
    """A shipped bug: an expert's gradient is divided by the number of ranks that hold it."""
    real = transform.sum_gradient

    def wrong(parameter, groups, factor):
        copies = axes["dp"] if parameter.dim() == 3 else 1 / factor  # experts are [E/P, ..]
        real(parameter, groups, 1 / copies)

    with mock.patch.object(transform, "sum_gradient", wrong):
        return models.spread(name, None, axes)


def test_an_expert_divided_by_its_copies_learns_too_fast(worlds):
    axes, expected = {"dp": 2, "ep": 2}, models.plain("softmax")
    for found in worlds(4).run(divided_by_its_copies, "softmax", axes):
        for name, gradient in expected["gradients"][0].items():
            factor = 2.0 if ".experts." in name else 1.0
            torch.testing.assert_close(found["gradients"][0][name], factor * gradient)


def not_averaged(name):
    return models.spread(name, average=False)


def test_without_the_average_gradients_are_other(worlds):
    found = models.far(worlds(2).run(not_averaged, "softmax"), models.plain("softmax"))
    assert found["gradients"] > 1e-3


def test_ranks_that_decide_alone_are_another_model(worlds):
    name = "one expert, capacity"
    found = models.far(worlds(4).run(models.spread, name, decide="rank"), models.plain(name))
    assert found["kept"] >= 1 and found["losses"] > 1e-6


def saved(name):
    return to_plain(expert_parallel(models.gpt(name)))


def loaded(name, state):
    model = models.gpt(name)
    for parameter in model.parameters():
        parameter.data.zero_()
    load_plain(expert_parallel(model), state)
    return to_plain(model)


def test_weights_are_the_plain_models_on_any_number_of_ranks(worlds):
    plain = models.gpt("shared").state_dict()
    for state in worlds(2).run(saved, "shared"):
        assert state.keys() == plain.keys()
        assert all(torch.equal(state[key], plain[key]) for key in plain) and plain
    for state in worlds(4).run(loaded, "shared", plain):
        assert all(torch.equal(state[key], plain[key]) for key in plain) and plain


def refused(make, options):
    try:
        expert_parallel(make(), **options)
    except ValueError as error:
        return str(error)


def six_experts():
    return MoE(8, 8, 6, 2)


def choosing():
    return MoE(8, 8, 8, 2, "expert choice", capacity=1.0)


def twice():
    return expert_parallel(models.gpt("softmax"))


@pytest.mark.parametrize(
    ("make", "options", "words"),
    [
        (six_experts, {}, "The layer has 6 experts; 4 ranks cannot share them equally. Choose a"),
        (lambda: GPT(models.SHAPE), {}, "A GPT has no layer of experts. Give a model with"),
        (choosing, {}, 'choose the load by `room`, or give decide="rank"'),
        (choosing, {"decide": "some"}, "decide must be one of all, rank, not 'some'"),
        (twice, {}, "blocks.1.mlp is expert parallel already. Apply expert_parallel once."),
    ],
)
def test_what_does_not_work_is_refused(worlds, make, options, words):
    for text in worlds(4).run(refused, make, options):
        assert words in text


def wrong_state(change):
    model = expert_parallel(models.gpt("softmax"))
    state = models.gpt("softmax").state_dict()
    before = to_plain(model)
    change(state)
    try:
        load_plain(model, state)
    except ValueError as error:
        after = to_plain(model)
        return str(error), all(torch.equal(before[key], after[key]) for key in before)


def lack(state):
    del state["blocks.1.mlp.experts.up"]


def reshape(state):
    state["blocks.1.mlp.experts.up"] = torch.zeros(4, 16, 24)


@pytest.mark.parametrize(
    ("change", "words"),
    [(lack, "it lacks blocks.1.mlp.experts.up"), (reshape, "and the plain model's is [8, 16, 24]")],
)
def test_a_state_that_does_not_fit_is_refused(worlds, change, words):
    for text, unchanged in worlds(2).run(wrong_state, change):
        assert words in text and unchanged
