"""The load that a noisy gate estimates is that of many draws; two levels are a product of gates."""

import pytest
import torch

from lib.single.experts.noisy_gates import NoisyGate, TwoLevelGate, chosen_again


def drawn(gate, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for parameter in gate.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator))
    return gate.double()


def inputs(tokens=6, width=4, seed=1):
    return torch.randn(
        tokens, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


@pytest.mark.parametrize("k", [1, 2, 4])
def test_the_load_is_the_probability_over_new_noise(k):
    """One expert's noise is drawn again 20,000 times, the others' stays: how often is it chosen?"""
    gate, x = drawn(NoisyGate(4, 5, k)), inputs(1)
    clean, logits, spread = gate.noisy_logits(x, gate.weight, gate.noise_weight)
    expected = chosen_again(clean, logits, spread, k)[0]
    for expert in range(5):
        again = logits.expand(20_000, 5).clone()
        again[:, expert] = clean[0, expert] + torch.randn(20_000) * spread[0, expert]
        chosen = (again.topk(k, -1).indices == expert).any(-1).double().mean()
        assert abs(chosen - expected[expert]) < 0.02


def test_noise_is_only_in_training():
    gate, x = drawn(NoisyGate(4, 5, 2)), inputs()
    assert not torch.equal(gate(x).logits, gate(x).logits)
    gate.eval()
    decision = gate(x)
    assert decision.load is None
    assert torch.equal(decision.logits, x @ gate.weight.T)
    assert torch.equal(decision.logits, gate(x).logits)


def test_the_noise_is_scaled_by_a_softplus_and_everything_is_decided_with_it():
    gate, x = drawn(NoisyGate(4, 5, 2)), inputs()
    epsilon = torch.randn(6, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    gate.noise = lambda like: epsilon
    decision = gate(x)
    by_hand = x @ gate.weight.T + epsilon * (1 + (x @ gate.noise_weight.T).exp()).log()
    torch.testing.assert_close(decision.logits, by_hand)
    torch.testing.assert_close(decision.scores, by_hand.softmax(-1))
    assert torch.equal(decision.gates > 0, by_hand >= by_hand.topk(2).values[:, 1:])


def test_a_bias_changes_the_choice_of_a_noisy_gate_and_not_its_logits():
    gate, x = drawn(NoisyGate(4, 5, 1)).eval(), inputs()
    before = gate(x)
    gate.bias[3] = 50.0
    after = gate(x)
    assert before.assignments.counts[3] < 6 == after.assignments.counts[3]
    assert torch.equal(before.logits, after.logits)


def test_all_experts_chosen_is_a_load_of_all_tokens():
    gate = drawn(NoisyGate(4, 3, 3))
    assert gate(inputs(6)).load.estimate().tolist() == [6, 6, 6]


@pytest.mark.parametrize("kind", [NoisyGate, TwoLevelGate])
def test_gradients_agree_with_finite_differences(kind):
    """Weights, importance and load are smooth while the choice stays; the noise is held fixed."""
    options = {"groups": 2, "groups_chosen": 1} if kind is TwoLevelGate else {}
    gate, x = drawn(kind(4, 6, 2, **options)), inputs(3)
    fixed = {}
    hold = lambda like: fixed.setdefault(like.shape, torch.randn_like(like).detach())
    gates = [part for part in gate.modules() if isinstance(part, NoisyGate)]
    for part in gates:
        part.noise = hold

    def smooth(*values):
        names = [name for name, _ in gate.named_parameters()]
        decision = torch.func.functional_call(gate, dict(zip(names, values)), (x,))
        return decision.gates.sum(0), decision.load.estimate()

    values = tuple(p.detach().clone().requires_grad_() for p in gate.parameters())
    assert len(values) == (4 if kind is TwoLevelGate else 2)
    assert torch.autograd.gradcheck(smooth, values, eps=1e-7, atol=1e-5)


def test_two_levels_are_a_product_of_gates():
    gate, x = drawn(TwoLevelGate(4, 6, 4, groups=3, groups_chosen=2)).eval(), inputs()
    decision = gate(x)
    primary = gate.primary(x)
    for token in range(len(x)):
        expected = torch.zeros(6, dtype=torch.float64)
        for group in primary.gates[token].nonzero().flatten():
            own = (x @ gate.weight.T)[token, 2 * group : 2 * group + 2].softmax(-1)
            expected[2 * group : 2 * group + 2] = primary.gates[token, group] * own
        torch.testing.assert_close(decision.gates[token], expected)
    torch.testing.assert_close(decision.scores.sum(-1), torch.ones(6, dtype=torch.float64))


def test_the_load_of_two_levels_is_that_of_the_group_times_the_share_inside():
    gate, x = drawn(TwoLevelGate(4, 6, 2, groups=3, groups_chosen=2)), inputs(9)
    fixed = {}
    for part in (gate, gate.primary):
        part.noise = lambda like: fixed.setdefault(like.shape, torch.randn_like(like))
    decision, primary = gate(x), gate.primary(x)
    clean, logits, spread = gate.noisy_logits(x, gate.weight, gate.noise_weight)
    for group in range(3):
        goes = primary.gates[:, group] > 0
        inside = slice(2 * group, 2 * group + 2)
        again = chosen_again(clean[goes, inside], logits[goes, inside], spread[goes, inside], 1)
        expected = primary.load.estimate()[group] * again.sum(0) / max(1, int(goes.sum()))
        torch.testing.assert_close(decision.load.estimate()[inside], expected)


def test_a_group_that_no_token_chose_has_no_load_and_no_share_of_nothing():
    gate, x = drawn(TwoLevelGate(4, 6, 2, groups=3, groups_chosen=1)), inputs(5)
    gate.primary.bias[1] = -50.0
    load = gate(x).load.estimate()
    assert load[2:4].tolist() == [0, 0] and load.isfinite().all() and load.sum() > 1


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ((4, 7, 2, 2, 1), "There are 7 experts; 2 groups cannot share them equally"),
        ((4, 8, 3, 2, 2), "k of a gate is 3; 2 chosen groups cannot share them equally"),
        ((4, 8, 6, 4, 2), "A token cannot choose 3 of the 2 experts of a group"),
        ((4, 8, 4, 2, 4), "Each token cannot choose 4 of 2 experts"),
    ],
)
def test_sizes_that_do_not_divide_are_refused(sizes, words):
    with pytest.raises(ValueError, match=words):
        TwoLevelGate(*sizes)
