"""Assignments, capacities and drops equal what a loop over plain lists decides."""

import pytest
import torch

from lib.single.experts.routing import Assignments, capacity_of, chosen_by_tokens, within


def drawn(tokens=40, experts=5, k=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(tokens, experts, generator=generator)
    weights, chosen = scores.topk(k, -1)
    return chosen_by_tokens(chosen, weights, experts)


def test_a_token_has_one_entry_for_each_expert_that_it_chose():
    chosen = torch.tensor([[1, 0], [2, 1]])
    weights = torch.tensor([[0.6, 0.4], [0.9, 0.1]])
    assignments = chosen_by_tokens(chosen, weights, 4)
    assert assignments.token.tolist() == [0, 0, 1, 1]
    assert assignments.expert.tolist() == [1, 0, 2, 1]
    assert assignments.weight.tolist() == pytest.approx([0.6, 0.4, 0.9, 0.1])
    assert assignments.counts.tolist() == [1, 2, 1, 0]
    ordered = assignments.by_expert()
    assert ordered.expert.tolist() == [0, 1, 1, 2] and ordered.token.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("factor", "assignments", "experts", "capacity"),
    [(1.0, 64, 8, 8), (1.25, 64, 8, 10), (1.0, 65, 8, 9), (2.0, 6, 4, 3), (0.01, 6, 4, 1)],
)
def test_a_capacity_is_rounded_up(factor, assignments, experts, capacity):
    assert capacity_of(factor, assignments, experts) == capacity


@pytest.mark.parametrize("factor", [0, -1, float("nan"), "1"])
def test_a_capacity_factor_is_above_zero(factor):
    with pytest.raises(ValueError, match="The capacity factor must be finite and above 0"):
        capacity_of(factor, 8, 2)


def kept_by_a_loop(assignments, capacity, drop, before):
    """Return the places of the assignments that fit, decided one after the other."""
    order = range(len(assignments.token))
    if drop == "weight":
        order = sorted(order, key=lambda a: -float(assignments.weight[a]))
    taken, kept = list(before), []
    for a in order:
        expert = int(assignments.expert[a])
        if taken[expert] < capacity:
            kept.append(a)
        taken[expert] += 1
    return sorted(kept)


@pytest.mark.parametrize("before", [None, [0, 3, 100, 1, 0]], ids=["empty", "some taken"])
@pytest.mark.parametrize("drop", ["arrival", "weight"])
@pytest.mark.parametrize("capacity", [1, 7, 13, 100])
def test_an_expert_takes_no_more_than_its_capacity(capacity, drop, before):
    assignments = drawn()
    places = None if before is None else torch.tensor(before)
    fits = within(assignments, capacity, drop, places)
    kept = kept_by_a_loop(assignments, capacity, drop, before or [0] * 5)
    assert fits.nonzero().flatten().tolist() == kept
    if before is None:
        expected = assignments.counts.clamp(max=capacity)
        assert torch.equal(assignments.only(fits).counts, expected)


def test_arrival_and_weight_drop_different_tokens():
    weights = torch.tensor([[0.1], [0.9], [0.5]])
    assignments = chosen_by_tokens(torch.zeros(3, 1, dtype=torch.long), weights, 2)
    assert within(assignments, 2, "arrival").tolist() == [True, True, False]
    assert within(assignments, 2, "weight").tolist() == [False, True, True]


def test_another_rule_of_drops_is_refused():
    with pytest.raises(ValueError, match="dropped by arrival or weight, not by 'chance'"):
        within(drawn(), 3, "chance")


def test_nothing_to_assign_is_nothing_kept():
    nothing = torch.zeros(0, dtype=torch.long)
    assignments = Assignments(nothing, nothing, torch.zeros(0), 3)
    assert within(assignments, 2).tolist() == []
    assert assignments.counts.tolist() == [0, 0, 0]
