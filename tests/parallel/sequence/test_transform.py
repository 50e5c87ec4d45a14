"""A GPT on split sequences trains as the plain one: logits, every gradient, weights, losses."""

import pytest
import torch

from lib.parallel.sequence import context_parallel
from lib.single import GPT, MLP
from tests.parallel.sequence import models

EXACT = 1e-11
METHODS = {
    "ring, zigzag": {"method": "ring"},
    "ring, contiguous": {"method": "ring", "layout": "contiguous"},
    "ulysses, zigzag": {"method": "ulysses"},
    "ulysses, contiguous": {"method": "ulysses", "layout": "contiguous"},
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", models.SHAPES)
def test_two_steps_are_those_of_the_plain_model(world, name, method):
    expected = models.plain(name, 32)
    for found in world.run(models.spread, name, 32, METHODS[method]):
        what, apart = models.far(found, expected)
        assert apart < EXACT, (what, apart)


@pytest.mark.parametrize("name", ["learned", "rotary, two keys"])
@pytest.mark.parametrize("method", ["ring, zigzag", "ulysses, contiguous"])
@pytest.mark.parametrize("length", [29, 13, 3])
def test_padding_leaves_no_trace(worlds, length, method, name):
    expected = models.plain(name, length)
    for found in worlds(4).run(models.spread, name, length, METHODS[method]):
        what, apart = models.far(found, expected)
        assert apart < EXACT, (what, apart)


@pytest.mark.parametrize("name", ["learned", "rotary, two keys"])
@pytest.mark.parametrize("method", METHODS)
def test_documents_are_samples_of_their_own(worlds, method, name):
    documents = (0, 3, 17, 18, 32)
    expected = models.plain(name, 32, documents)
    for found in worlds(4).run(models.spread, name, 32, METHODS[method], documents):
        what, apart = models.far(found, expected)
        assert apart < EXACT, (what, apart)


@pytest.mark.parametrize("length", [32, 21])
@pytest.mark.parametrize("axes", [{"ring": 2, "ulysses": 2}, {"ring": 2, "ulysses": 4}], ids=str)
def test_both_axes_at_once(worlds, axes, length):
    expected = models.plain("rotary, two keys", length)
    ranks = axes["ring"] * axes["ulysses"]
    for found in worlds(ranks).run(models.spread, "rotary, two keys", length, {}, None, axes):
        what, apart = models.far(found, expected)
        assert apart < EXACT, (what, apart)


@pytest.mark.parametrize("documents", [(0, 3, 17, 18, 32), (0, 11, 27, 32)], ids=str)
def test_documents_on_both_axes(worlds, documents):
    """Each document begins anew, positions too, wherever the boundaries lie between the ranks."""
    axes = {"ring": 2, "ulysses": 2}
    expected = models.plain("rotary, two keys", 32, documents)
    for found in worlds(4).run(models.spread, "rotary, two keys", 32, {}, documents, axes):
        what, apart = models.far(found, expected)
        assert apart < EXACT, (what, apart)


FROZEN = ("blocks.1.attention.qkv.weight", "blocks.1.norm1.weight", "blocks.2.mlp.up.bias")


def frozen_step(method=None):
    """The gradients of a GPT of which some weights do not train, plain or on split sequences."""
    model = models.gpt("learned")
    for name in FROZEN:
        model.get_parameter(name).requires_grad_(False)
    if method is None:
        tokens, labels = models.batch(32)
        models.mean_loss(model(tokens), labels).backward()
    else:
        context = context_parallel(model, method=method).context
        tokens, labels = context.shard(*models.batch(32))
        context.loss(model(tokens), labels).backward()
    return {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize("method", ["ring", "ulysses"])
def test_frozen_weights_have_no_gradient_and_change_no_other(worlds, method):
    expected = frozen_step()
    assert {name for name, gradient in expected.items() if gradient is None} == set(FROZEN)
    for found in worlds(2).run(frozen_step, method):
        for name, gradient in expected.items():
            if gradient is None:
                assert found[name] is None, name
                continue
            apart = (found[name].to("cpu") - gradient).norm() / gradient.norm()
            assert apart < EXACT, name


def refused(make, options):
    try:
        context_parallel(make(), **options)
    except ValueError as error:
        return str(error)


def with_dropout():
    model = GPT(models.SHAPE)
    model.blocks["1"].noise = torch.nn.Dropout(0.1)
    return model


def twice():
    return context_parallel(GPT(models.SHAPE))


def three_heads():
    from dataclasses import replace

    return GPT(replace(models.SHAPE, width=24, heads=3, kv_heads=3))


@pytest.mark.parametrize(
    ("make", "options", "words"),
    [
        (lambda: GPT(models.SHAPE), {"method": "rings"}, "No method is called 'rings'. Choose"),
        (lambda: GPT(models.SHAPE), {"layout": "zagzig"}, "No layout is called 'zagzig'. Choose"),
        (with_dropout, {}, "blocks.1.noise is a dropout with the probability 0.1 outside the"),
        (twice, {}, "The core of blocks.1.attention is not lib.single.models.causal any more."),
        (MLP, {}, "A MLP has no attention of lib.single.models"),
        (three_heads, {"method": "ulysses"}, "An attention has 3 heads; 2 ranks cannot share"),
        (lambda: GPT(models.SHAPE), {"method": "ulysses", "inner": None}, "With an inner group"),
    ],
)  # fmt: skip
def test_what_does_not_work_is_refused(worlds, make, options, words):
    for text in worlds(2).run(refused, make, options):
        assert words in text
