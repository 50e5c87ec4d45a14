"""Dropout on split sequences drops what it drops on one device, in attention and between layers."""

import math
from dataclasses import replace

import pytest
import torch

from lib.parallel.sequence import (
    context_parallel,
    ring_attention,
    shard_sequence,
    ulysses_attention,
    unshard_sequence,
)
from lib.parallel.sequence.dropout import Noise, SequenceDropout, mask, noise_of
from lib.ranks.mesh import mesh
from lib.single import GPT
from tests.parallel.sequence import models, steps

EXACT, P, SEED = 1e-13, 0.3, 11
SHAPE = replace(models.SHAPE, kv_heads=2, positions="rotary", dropout=0.2)
CORES = {"ring": ring_attention, "ulysses": ulysses_attention}


def dense(q, k, v, noise, causal=True, documents=None):
    """Attention on one device, with the mask of all scores at once."""
    length = q.shape[2]
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    hidden = ~steps.allowed(length, causal, documents)
    scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(hidden, -math.inf)
    places = torch.arange(length)
    probabilities = torch.softmax(scores, -1).nan_to_num()  # a row of padding sees nothing
    return (probabilities * noise.like(q, places, places)) @ v


def whole(length, causal, documents):
    q, k, v, gradient = steps.drawn(length)
    for t in (q, k, v):
        t.requires_grad_()
    out = dense(q, k, v, Noise(P, SEED), causal, documents)
    out.backward(gradient)
    return [t.detach() for t in (out, q.grad, k.grad, v.grad)]


def spread(method, causal, layout, documents, axes=None):
    """The same on the ranks of the world; with axes, Ulysses inside a ring."""
    group, inner = None, {}
    if axes:
        here = mesh(**axes)
        group, inner = here["ring"].group, {"inner": here["ulysses"].group}
    parts = [shard_sequence(t, group, layout, 2, **inner) for t in steps.drawn(32)]
    q, k, v, gradient = (t.contiguous() for t in parts)
    for t in (q, k, v):
        t.requires_grad_()
    more = {"layout": layout, "documents": documents, "dropout": P, "seed": SEED}
    if axes:
        out = ulysses_attention(q, k, v, inner["inner"], causal, ring=group, **more)
    else:
        out = CORES[method](q, k, v, None, causal, **more)
    out.backward(gradient)
    found = (out, q.grad, k.grad, v.grad)
    return [unshard_sequence(t.detach(), group, layout, 2, **inner) for t in found]


@pytest.mark.parametrize("documents", [None, (0, 5, 19, 27)], ids=["one", "several"])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "not causal"])
@pytest.mark.parametrize("layout", ["zigzag", "contiguous"])
@pytest.mark.parametrize("method", CORES)
def test_probabilities_are_dropped_by_their_place(world, method, layout, causal, documents):
    expected = whole(32, causal, documents)
    for found in world.run(spread, method, causal, layout, documents):
        assert steps.far(found, expected) < EXACT


@pytest.mark.parametrize("layout", ["zigzag", "contiguous"])
def test_probabilities_are_dropped_by_their_place_on_two_axes(worlds, layout):
    expected = whole(32, True, None)
    axes = {"ring": 2, "ulysses": 2}
    for found in worlds(4).run(spread, "", True, layout, None, axes):
        assert steps.far(found, expected) < EXACT


class OneDevice:
    """The core of a plain GPT that drops probabilities by their places."""

    def __call__(self, q, k, v, p=0.0):
        return dense(q, k, v, noise_of(p, None) or Noise(0.0, 0))


def plain(length):
    """Two steps of a plain GPT on one device, with dropout by place in all its parts."""
    torch.manual_seed(3)
    model = prepared()
    for part in model.modules():
        if hasattr(part, "core"):
            part.core = OneDevice()
        if hasattr(part, "dropout"):
            places = lambda length, device: torch.arange(length, device=device)
            part.dropout = SequenceDropout(part.dropout, places)

    def loss_of(model, step):
        tokens, labels = models.batch(length, step)
        logits = model(tokens)
        return models.mean_loss(logits, labels), logits

    return models.trained(model, 2, loss_of)


def prepared():
    model = GPT(SHAPE).double()
    draw = torch.Generator().manual_seed(5)
    for parameter in model.parameters():
        drawn = torch.randn(parameter.shape, generator=draw, dtype=torch.float64)
        parameter.data += 0.1 * drawn.to(parameter.device)
    return model


def on_ranks(length, options, axes=None):
    torch.manual_seed(3)
    if axes:
        here = mesh(**axes)
        options = options | {"group": here["ring"].group, "inner": here["ulysses"].group}
    context = context_parallel(model := prepared(), **options).context

    def loss_of(model, step):
        tokens, labels = context.shard(*models.batch(length, step))
        logits = model(tokens)
        return context.loss(logits, labels), logits

    found = models.trained(model, 2, loss_of)
    back = {"inner": context.inner, "length": length}
    found["logits"] = unshard_sequence(found["logits"], context.group, context.layout, **back)
    return found


@pytest.mark.parametrize("length", [32, 27])
@pytest.mark.parametrize("method", CORES)
def test_two_steps_with_dropout_are_those_of_one_device(world, method, length):
    expected = plain(length)
    for found in world.run(on_ranks, length, {"method": method}):
        what, apart = models.far(found, expected)
        assert apart < 1e-11, (what, apart)


def test_two_steps_with_dropout_on_two_axes(worlds):
    expected = plain(32)
    for found in worlds(4).run(on_ranks, 32, {}, {"ring": 2, "ulysses": 2}):
        what, apart = models.far(found, expected)
        assert apart < 1e-11, (what, apart)


def test_a_mask_drops_the_share_p_and_repeats_nowhere():
    q, places = torch.zeros(2, 4, 256, 8), torch.arange(256)
    drawn = Noise(P, SEED).like(q, places, places)
    dropped = (drawn == 0).double()
    assert abs(dropped.mean() - P) < 0.003 and abs(drawn.mean() - 1) < 0.005
    assert drawn.unique().tolist() == pytest.approx([0, 1 / (1 - P)])
    for dim in range(4):  # neighbours along each dim agree as often as independent ones
        one, other = dropped.unbind(dim)[:2]
        agree = (one == other).double().mean().item()
        assert abs(agree - (P**2 + (1 - P) ** 2)) < 0.03, dim
    assert not torch.equal(drawn, Noise(P, SEED + 1).like(q, places, places))
    second = Noise(P, SEED, first_head=2).like(q[:, :2], places[:10], places[5:])
    assert torch.equal(second, drawn[:, 2:, :10, 5:])
    assert (mask(places, places, 0.0, torch.float32) == 1).all()


def test_a_probability_of_1_is_refused():
    with pytest.raises(ValueError, match="Dropout has the probability 1.0. Give one from 0"):
        noise_of(1.0, None)
    assert noise_of(0.0, None) is None
