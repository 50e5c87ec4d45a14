"""Ring attention equals attention on one device: the result, dQ, dK and dV."""

import pytest

from tests.parallel.sequence import steps

EXACT = 1e-13
DOCUMENTS = {
    "one": None,
    "several": (0, 5, 6, 19, 32),
    "padding": (0, 9, 27),
    "all padding on some ranks": (0, 3),
}


@pytest.mark.parametrize("documents", DOCUMENTS)
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "not causal"])
@pytest.mark.parametrize("layout", ["zigzag", "contiguous"])
def test_the_ring_is_the_whole_attention(world, layout, causal, documents):
    documents = DOCUMENTS[documents]
    expected = steps.whole(32, causal, documents)
    for found in world.run(steps.spread, 32, causal, layout, documents):
        assert steps.far(found, expected) < EXACT
