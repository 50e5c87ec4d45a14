"""Ulysses equals attention on one device, alone and inside a ring; heads that do not divide."""

import pytest
import torch

from lib.parallel.sequence import shard_sequence, ulysses_attention, unshard_sequence
from lib.ranks.mesh import mesh
from tests.parallel.sequence import steps

EXACT = 1e-13
DOCUMENTS = {"one": None, "several": (0, 5, 6, 19, 32), "padding": (0, 9, 27)}


def ulysses(length, causal, layout, documents, sizes):
    return steps.spread(length, causal, layout, documents, None, ulysses_attention, sizes)


@pytest.mark.parametrize("documents", DOCUMENTS)
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "not causal"])
@pytest.mark.parametrize("layout", ["zigzag", "contiguous"])
def test_ulysses_is_the_whole_attention(world, layout, causal, documents):
    documents = DOCUMENTS[documents]
    sizes = {"heads": 8, "groups": 4}
    expected = steps.whole(32, causal, documents, **sizes)
    for found in world.run(ulysses, 32, causal, layout, documents, sizes):
        assert steps.far(found, expected) < EXACT


@pytest.mark.parametrize("groups", [1, 2, 8])
def test_keys_that_are_fewer_than_ranks_are_copied(worlds, groups):
    sizes = {"heads": 8, "groups": groups}
    expected = steps.whole(16, True, **sizes)
    for found in worlds(4).run(ulysses, 16, True, "zigzag", None, sizes):
        assert steps.far(found, expected) < EXACT


def scaled(scale, sizes):
    return steps.spread(16, True, "zigzag", None, scale, ulysses_attention, sizes)


@pytest.mark.parametrize("scale", [0.7, 0.05])
def test_another_scale(world, scale):
    sizes = {"heads": 8, "groups": 4}
    expected = steps.whole(16, True, None, scale, **sizes)
    for found in world.run(scaled, scale, sizes):
        assert steps.far(found, expected) < EXACT
    by_default = steps.whole(16, True, **sizes)
    assert steps.far(found, by_default) > 0.01


def refused(heads, groups):
    q, k = torch.zeros(1, heads, 4, 8), torch.zeros(1, groups, 4, 8)
    try:
        ulysses_attention(q, k, k)
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize(
    ("heads", "groups", "words"),
    [
        (6, 6, "An attention has 6 heads; 4 ranks cannot share them equally. Choose fewer ranks"),
        (12, 3, "There are 4 ranks; 3 heads of keys cannot share them equally. Choose fewer"),
    ],
)
def test_heads_that_do_not_divide_are_refused(worlds, heads, groups, words):
    for text in worlds(4).run(refused, heads, groups):
        assert words in text


def both(axes, length, causal, layout, documents, sizes):
    """A ring on one axis of the mesh, and Ulysses on the other."""
    here = mesh(**axes)
    ring, inner = here["ring"].group, here["ulysses"].group
    q, k, v, gradient = (
        shard_sequence(t, ring, layout, 2, inner=inner) for t in steps.drawn(length, **sizes)
    )
    for t in (q, k, v):
        t.requires_grad_()
    out = ulysses_attention(q, k, v, inner, causal, layout, documents, ring=ring)
    out.backward(gradient)
    found = (out, q.grad, k.grad, v.grad)
    return [unshard_sequence(t.detach(), ring, layout, 2, inner=inner) for t in found]


@pytest.mark.parametrize("documents", DOCUMENTS)
@pytest.mark.parametrize("layout", ["zigzag", "contiguous"])
@pytest.mark.parametrize(
    "axes",
    [{"ring": 2, "ulysses": 2}, {"ring": 4, "ulysses": 2}, {"ring": 2, "ulysses": 4}],
    ids=str,
)
def test_both_at_once(worlds, axes, layout, documents):
    documents = DOCUMENTS[documents]
    sizes = {"heads": 4, "groups": 2}
    expected = steps.whole(32, True, documents, **sizes)
    ranks = axes["ring"] * axes["ulysses"]
    for found in worlds(ranks).run(both, axes, 32, True, layout, documents, sizes):
        assert steps.far(found, expected) < EXACT
