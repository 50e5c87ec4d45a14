"""Each gate's choice and weights, by hand, and what it must not do."""

import pytest
import torch

from lib.single.experts.gates import ExpertChoice, Gate, SigmoidGate
from lib.single.experts.kinds import GATES, gate_of


def identity(kind=Gate, experts=3, k=2, **options):
    """Return a gate whose logits are its inputs."""
    gate = kind(experts, experts, k, **options).double()
    gate.weight.data.copy_(torch.eye(experts))
    return gate


X = torch.tensor([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0]], dtype=torch.float64)


def test_softmax_takes_the_best_and_divides_by_their_sum():
    token, expert, weight, experts = identity()(X).assignments
    scores = X.softmax(-1)
    assert token.tolist() == [0, 0, 1, 1] and expert.tolist() == [0, 1, 1, 2] and experts == 3
    first = scores[0, 0] / (scores[0, 0] + scores[0, 1])
    torch.testing.assert_close(weight[0], first)
    torch.testing.assert_close(weight[:2].sum(), torch.ones((), dtype=torch.float64))


def test_with_one_choice_the_weight_is_the_score_and_the_gate_learns():
    gate = identity(k=1)
    weight = gate(X).assignments.weight
    torch.testing.assert_close(weight, X.softmax(-1).amax(-1))
    weight.sum().backward()
    assert gate.weight.grad.norm() > 0.1


def test_sigmoid_scores_each_expert_alone():
    weight = identity(SigmoidGate, scale=2.5)(X).assignments.weight
    scores = X.sigmoid()
    torch.testing.assert_close(weight[0], 2.5 * scores[0, 0] / (scores[0, 0] + scores[0, 1]))


@pytest.mark.parametrize("kind", [Gate, SigmoidGate])
def test_a_bias_changes_the_choice_and_no_weight(kind):
    gate = identity(kind, k=1)
    before = gate(X)
    gate.bias += torch.tensor([0.0, 0.0, 5.0])
    after = gate(X)
    assert before.assignments.expert.tolist() == [0, 1]
    assert after.assignments.expert.tolist() == [2, 2]
    assert torch.equal(after.scores, before.scores)
    chosen = gate.weights(after.scores[:, 2:])
    torch.testing.assert_close(after.assignments.weight, chosen.flatten())


def test_experts_that_choose_have_the_same_load():
    gate = ExpertChoice(8, 4, 2)
    torch.nn.init.normal_(gate.weight, generator=torch.Generator().manual_seed(0))
    x = torch.randn(10, 8, generator=torch.Generator().manual_seed(1))
    decision = gate(x)
    assert decision.assignments.counts.tolist() == [5] * 4
    for expert in range(4):
        mine = decision.assignments.expert == expert
        best = decision.scores[:, expert].topk(5)
        assert decision.assignments.token[mine].tolist() == sorted(best.indices.tolist())
        in_order = best.values[best.indices.argsort()]
        assert torch.equal(decision.assignments.weight[mine], in_order)
    assert ExpertChoice(8, 4, 2, room=9.0)(x).assignments.counts.tolist() == [10] * 4


def test_a_bias_changes_the_tokens_that_an_expert_chooses_and_no_weight():
    gate = identity(ExpertChoice, k=1, room=1.5)  # each expert takes one of the two tokens
    assert gate(X).assignments.token.tolist() == [0, 1, 1]
    gate.bias = torch.tensor([[-5.0, 0, 0], [0, 0, -5.0]])  # one for each token and expert
    after = gate(X).assignments
    assert after.counts.tolist() == [1, 1, 1]
    assert sorted(zip(after.expert.tolist(), after.token.tolist())) == [(0, 1), (1, 1), (2, 0)]
    torch.testing.assert_close(after.weight, X.softmax(-1)[after.token, after.expert])


def test_the_gates_of_a_decision_are_its_weights_by_place():
    decision = identity()(X)
    assert (decision.gates > 0).tolist() == [[True, True, False], [False, True, True]]
    torch.testing.assert_close(decision.gates.sum(-1), torch.ones(2, dtype=torch.float64))


def test_in_bfloat16_scores_tie_so_they_are_computed_in_float32():
    """A gate in bfloat16 cannot tell experts apart that one in float32 can; so ours never is."""
    x = torch.ones(1, 1)
    logits = torch.tensor([[1.0, 1.001, 0.999]])
    gate = Gate(1, 3, 1)
    gate.weight.data.copy_(logits.T)
    assert logits.to(torch.bfloat16).unique().numel() == 1
    assert gate(x).assignments.expert.tolist() == [1]
    wide = gate.to(torch.bfloat16)
    assert wide(x.to(torch.bfloat16)).scores.dtype == torch.float32
    gate = gate.float()
    with torch.autocast("cpu", torch.bfloat16):
        assert gate(x).logits.dtype == torch.float32


def test_in_bfloat16_the_chosen_score_gets_no_gradient_and_ours_does():
    """The other half of the bite: a score of 0.9993 is rounded to 1, where a softmax is flat."""
    logits = torch.tensor([[8.0, 0.0, 0.0]])
    narrow = logits.to(torch.bfloat16).requires_grad_()
    narrow.softmax(-1).amax().backward()
    assert narrow.grad[0, 0] == 0
    gate = identity(k=1).to(torch.bfloat16)
    gate(logits.to(torch.bfloat16)).assignments.weight.sum().backward()
    score = logits[0].softmax(-1)[0]
    expected = 8 * score * (1 - score)  # x · p(1 - p)
    torch.testing.assert_close(gate.weight.grad[0, 0].float(), expected, rtol=0.01, atol=0)


@pytest.mark.parametrize("kind", GATES)
def test_k_above_the_number_of_experts_is_refused(kind):
    with pytest.raises(ValueError, match="Each token cannot choose 5 of 4 experts"):
        gate_of(kind, 8, 4, 5)


def test_an_unknown_gate_is_refused_by_name():
    with pytest.raises(ValueError, match="No gate is called 'hash'. Choose one of softmax"):
        gate_of("hash", 8, 4, 1)


@pytest.mark.parametrize("kind", GATES)
def test_every_gate_decides_for_every_number_of_tokens(kind):
    gate = gate_of(kind, 8, 4, 2)
    for parameter in gate.parameters():
        torch.nn.init.normal_(parameter)
    for tokens in (1, 7, 64):
        decision = gate(torch.randn(tokens, 8))
        assert decision.scores.shape == (tokens, 4) == decision.gates.shape
        rounded_up = kind == "expert choice" and tokens % 2  # each expert takes a whole number
        assert len(decision.assignments.token) == 2 * tokens + 2 * rounded_up
