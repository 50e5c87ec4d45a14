"""The spread of an even gate's load is that of many simulated gates."""

import numpy as np
import pytest

from lib.predict.expert import load


def simulated(tokens, experts, k, repeats=400):
    """Return the loads of all experts in `repeats` batches: [repeats, E]."""
    random = np.random.default_rng(0)
    scores = random.random((repeats, tokens, experts))
    chosen = np.argsort(scores, -1)[..., :k]
    return np.stack([(chosen == e).sum((1, 2)) for e in range(experts)], -1)


@pytest.mark.parametrize(("tokens", "experts", "k"), [(32, 8, 1), (64, 8, 2), (40, 4, 3)])
def test_the_spread_is_that_of_simulated_gates(tokens, experts, k):
    loads = simulated(tokens, experts, k)
    expected = load.probabilities(tokens, experts, k)
    assert expected.sum() == pytest.approx(1)
    assert expected @ np.arange(tokens + 1) == pytest.approx(tokens * k / experts)
    found = np.bincount(loads.flatten(), minlength=tokens + 1) / loads.size
    assert np.abs(found - expected).max() < 0.02
    spread = loads.std() / loads.mean()
    assert load.relative_spread(tokens, experts, k) == pytest.approx(spread, rel=0.05)


@pytest.mark.parametrize("factor", [0.5, 1.0, 1.25, 2.0])
def test_the_drops_are_those_of_simulated_gates(factor):
    loads, capacity = simulated(64, 8, 2), -(-int(factor * 64) // 4)
    lost = np.maximum(loads - capacity, 0).sum() / loads.sum()
    assert load.dropped(64, 8, 2, factor) == pytest.approx(lost, abs=0.004)


def test_fewer_tokens_and_more_experts_drop_more():
    assert load.dropped(64, 8, 1, 1.25) > load.dropped(512, 8, 1, 1.25)
    assert load.dropped(512, 64, 1, 1.25) > load.dropped(512, 8, 1, 1.25)


def test_all_experts_for_every_token_is_no_spread():
    assert load.probabilities(5, 3, 3).tolist() == [0, 0, 0, 0, 0, 1]
    assert load.relative_spread(5, 3, 3) == 0 == load.dropped(5, 3, 3, 1.0)


def test_the_batch_of_an_expert_shrinks_with_experts_and_grows_with_ranks():
    assert load.batch_of_an_expert(1024, 64, 2) == 32
    assert load.batch_of_an_expert(1024, 64, 2, ranks=16) == 512


def test_k_above_the_number_of_experts_is_refused():
    with pytest.raises(ValueError, match="Each token cannot choose 5 of 4 experts"):
        load.dropped(8, 4, 5, 1.0)


@pytest.mark.parametrize(("experts", "k", "nodes"), [(256, 8, 4), (8, 2, 2), (6, 6, 3), (8, 1, 8)])
def test_the_nodes_that_a_token_reaches(experts, k, nodes):
    generator = np.random.default_rng(0)
    picks = generator.random((20_000, experts)).argsort(1)[:, :k] // (experts // nodes)
    counted = np.mean([len(set(pick)) for pick in picks.tolist()])
    assert load.nodes_reached(experts, k, nodes) == pytest.approx(counted, rel=0.01)


def test_nodes_share_experts_equally():
    with pytest.raises(ValueError, match="8 experts"):
        load.nodes_reached(8, 2, 3)
