"""Losses equal values computed by hand; the bias evens a load out."""

import pytest
import torch

from lib.single.experts import balance
from lib.single.experts.gates import Decision, Gate, Load, SigmoidGate
from lib.single.experts.routing import chosen_by_tokens

LOG = torch.log


def decided(chosen, scores, weights=None):
    """Return a decision with these choices [N, k] and scores [N, E]."""
    scores = torch.tensor(scores, dtype=torch.float64)
    chosen = torch.tensor(chosen)
    weights = scores.gather(1, chosen) if weights is None else torch.tensor(weights)
    assignments = chosen_by_tokens(chosen, weights, scores.shape[1])
    return Decision(assignments, LOG(scores), scores)


EVEN = decided([[0], [1]], [[0.5, 0.5], [0.5, 0.5]])
ONE = decided([[0], [0]], [[1.0, 1e-30], [1.0, 1e-30]])
TWO_OF_THREE = decided(
    [[0, 1], [0, 2], [1, 0]], [[0.6, 0.3, 0.1], [0.5, 0.1, 0.4], [0.2, 0.7, 0.1]]
)


def test_the_balance_loss_is_one_where_even_and_e_where_one_has_all():
    assert float(balance.balance(EVEN)) == pytest.approx(1)
    assert float(balance.balance(ONE)) == pytest.approx(2)


def test_the_balance_loss_counts_all_choices():
    f = (3 / 6, 2 / 6, 1 / 6)
    p = (1.3 / 3, 1.1 / 3, 0.6 / 3)
    by_hand = 3 * sum(a * b for a, b in zip(f, p))
    assert float(balance.balance(TWO_OF_THREE)) == pytest.approx(by_hand)


def test_gshard_counts_first_choices():
    c, p = (2 / 3, 1 / 3, 0), (1.3 / 3, 1.1 / 3, 0.6 / 3)
    by_hand = sum(a * b for a, b in zip(c, p)) / 3
    assert float(balance.gshard(TWO_OF_THREE)) == pytest.approx(by_hand)


def test_importance_is_the_squared_variation_of_the_weights():
    importance = torch.tensor([0.6 + 0.5 + 0.2, 0.3 + 0.7, 0.4])
    mean = importance.mean()
    by_hand = ((importance - mean) ** 2).mean() / mean**2
    assert float(balance.importance(TWO_OF_THREE)) == pytest.approx(float(by_hand))


def test_load_is_the_squared_variation_of_the_estimate():
    decision = EVEN._replace(load=Load(torch.tensor([3.0, 1.0])))
    assert float(balance.load(decision)) == pytest.approx(1 / 4)
    with pytest.raises(ValueError, match="Only a noisy gate that trains estimates its load"):
        balance.load(EVEN)


def test_z_is_the_mean_squared_log_of_the_sum_of_exponents():
    decision = EVEN._replace(logits=torch.tensor([[0.0, 0.0], [1.0, 1.0]]))
    by_hand = (LOG(torch.tensor(2.0)) ** 2 + (1 + LOG(torch.tensor(2.0))) ** 2) / 2
    assert float(balance.z(decision)) == pytest.approx(float(by_hand))


def test_scores_of_sigmoids_count_as_shares():
    """Twice the scores are the same shares, so the loss does not change."""
    doubled = TWO_OF_THREE._replace(scores=2 * TWO_OF_THREE.scores)
    assert float(balance.balance(doubled)) == pytest.approx(float(balance.balance(TWO_OF_THREE)))


@pytest.mark.parametrize("name", ["balance", "gshard", "importance", "z"])
def test_a_loss_of_two_halves_with_a_sum_is_that_of_the_whole(name):
    """`total` adds over ranks: a loss of each rank's half alone would be another one."""
    gate = Gate(4, 6, 2)
    torch.nn.init.normal_(gate.weight, generator=torch.Generator().manual_seed(0))
    x = torch.randn(20, 4, generator=torch.Generator().manual_seed(1))
    loss = balance.LOSSES[name]
    sums = []
    loss(gate(x[10:]), lambda t: sums.append(t) or t)  # the other half's sums, in their order
    whole = loss(gate(x[:10]), lambda t: t + sums.pop(0))
    torch.testing.assert_close(whole, loss(gate(x)))
    alone = (loss(gate(x[:10])) + loss(gate(x[10:]))) / 2
    assert name == "z" or not torch.allclose(alone, loss(gate(x)), rtol=1e-4)


def test_the_gradient_lowers_the_scores_of_the_crowded_expert():
    scores = torch.tensor([[0.6, 0.4], [0.7, 0.3], [0.4, 0.6]], requires_grad=True)
    chosen = scores.argmax(-1, keepdim=True)
    assignments = chosen_by_tokens(chosen, scores.gather(1, chosen), 2)
    balance.balance(Decision(assignments, scores.log(), scores)).backward()
    assert (scores.grad @ torch.tensor([1.0, -1.0])).gt(0).all()


def test_a_nudge_raises_the_bias_of_those_below_the_mean():
    gate = Gate(4, 3, 1)
    balance.nudge(gate, torch.tensor([5, 1, 3]), 0.25)
    assert gate.bias.tolist() == [-0.25, 0.25, 0.0]


def test_nudges_even_out_a_load_without_a_loss():
    gate = SigmoidGate(8, 4, 1)
    torch.nn.init.normal_(gate.weight, generator=torch.Generator().manual_seed(0))
    gate.weight.data[0] += 2.0
    x = torch.randn(400, 8, generator=torch.Generator().manual_seed(1)) + 0.5
    before = gate(x).assignments.counts
    assert before.max() > 250
    for _ in range(300):
        balance.nudge(gate, gate(x).assignments.counts, 5e-3)
    assert gate(x).assignments.counts.max() < 120


def test_layers_thrown_together_hide_an_uneven_load():
    """Two layers that each use one expert, and not the same, look even when they are joined."""
    first = decided([[0], [0]], [[0.9, 0.1], [0.9, 0.1]])
    second = decided([[1], [1]], [[0.1, 0.9], [0.1, 0.9]])
    joined = decided([[0], [0], [1], [1]], [[0.9, 0.1]] * 2 + [[0.1, 0.9]] * 2)
    assert float(balance.balance(joined)) == pytest.approx(1)
    for layer in (first, second):
        assert float(balance.balance(layer)) == pytest.approx(1.8)
