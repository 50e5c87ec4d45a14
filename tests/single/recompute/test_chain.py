"""A chain that runs by a plan gives the same gradients, and keeps what is predicted."""

import pytest
import torch
from torch import nn

from lib.predict.recompute import best, binomial, none, smallest_peak, square_root, use_of
from lib.predict.shape import GPTShape, MLPShape
from lib.ranks.memory import Memory
from lib.single import GPT, MLP, next_token_loss
from lib.single.recompute import block_costs, only, recompute
from tests.every import every

SHAPE = GPTShape(vocabulary=40, sequence=16, width=32, heads=2, layers=6, hidden=64, dropout=0.1)
SECONDS = [float(n % 3 + 1) for n in range(8)]


def batch(shape=SHAPE):
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(shape.vocabulary, (2, shape.sequence + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def stepped(policy, keep=None):
    """The loss and all gradients of one step."""
    model, (inputs, targets) = GPT(SHAPE, seed=1), batch()
    if policy is not None:
        recompute(model, policy, keep)
    torch.manual_seed(4)
    loss = next_token_loss(model(inputs), targets)
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters())]


POLICIES = ["none", "all", "sqrt", 3, binomial(8, 2), (0, (1, (2, 3), 4), 5, ((6,), 7))]


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("keep", [None, only(torch.ops.aten.addmm)], ids=["", "products kept"])
def test_no_bit_of_a_gradient_changes(policy, keep):
    expected, found = stepped(None), stepped(policy, keep)
    assert every(torch.equal(a, b) for a, b in zip(expected, found)) and len(found) > 70


def test_a_sequential_keeps_its_names():
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    names = list(model.state_dict())
    assert recompute(model, 2) is model and list(model.state_dict()) == names
    model(torch.ones(3, 4)).sum().backward()
    assert every(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_what_is_held_after_forward_is_predicted_to_the_byte(policy):
    model, (inputs, _) = GPT(SHAPE, seed=1), batch()
    plan = {"none": none(8), "all": tuple((n,) for n in range(8)), "sqrt": square_root(8),
            3: ((0, 1, 2), (3, 4, 5), (6, 7))}.get(policy, policy)  # fmt: skip
    expected = use_of(plan, block_costs(model, inputs, SECONDS)).after_forward
    kept = {}

    def note(t):
        kept[t.untyped_storage()._cdata] = t.untyped_storage().nbytes()
        return t

    weights = {p.untyped_storage()._cdata for p in model.parameters()}
    recompute(model, policy)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        y = model(inputs)
    assert sum(n for place, n in kept.items() if place not in weights) == expected
    assert y.requires_grad


def runs_of_blocks(plan):
    """How often the forward of each block begins in a step."""
    model, (inputs, _) = GPT(SHAPE, seed=1), batch()
    runs = [0] * 8

    def count(number):
        def began(*_):
            runs[number] += 1

        return began

    for number, block in enumerate(model.blocks.values()):
        block.register_forward_pre_hook(count(number))
    recompute(model, plan)
    model(inputs).sum().backward()
    return tuple(runs)


@pytest.mark.parametrize(
    "plan", [*POLICIES[4:], binomial(8, 1), (0, (1, 2), 3, (4, 5, 6, 7))], ids=str
)
def test_blocks_run_as_often_as_predicted(plan):
    model, (inputs, _) = GPT(SHAPE, seed=1), batch()
    assert runs_of_blocks(plan) == use_of(plan, block_costs(model, inputs, SECONDS)).runs


@pytest.mark.parametrize("plan", [none(8), square_root(8), *POLICIES[4:]], ids=str)
def test_the_counted_peak_is_the_predicted_one(plan):
    """The samples are no activations; the result of a block that runs again lives for a moment."""
    model, (inputs, _) = GPT(SHAPE, seed=1), batch()
    expected = use_of(plan, block_costs(model, inputs, SECONDS)).peak
    recompute(model, plan)
    with Memory(model) as memory:
        model(inputs).sum().backward()
    counted = max(row.bytes for row in memory.rows if row.op == "activations")
    samples, result = inputs.untyped_storage().nbytes(), 4 * inputs.numel() * SHAPE.width
    assert counted + samples - expected in (0, result)


@pytest.mark.parametrize("plan", [none(8), square_root(8), (tuple(range(8)),)], ids=str)
def test_microbatches_in_flight_hold_what_is_predicted(plan):
    """As GPipe has them: all run forward before the first goes backward."""
    model, (inputs, _) = GPT(SHAPE, seed=1), batch()
    use = use_of(plan, block_costs(model, inputs, SECONDS))
    recompute(model, plan)
    with Memory(model) as memory:
        results = [model(inputs) for _ in range(3)]
        while results:
            results.pop().sum().backward()
    counted = max(row.bytes for row in memory.rows if row.op == "activations")
    samples, result = 3 * inputs.untyped_storage().nbytes(), 4 * inputs.numel() * SHAPE.width
    assert use.in_flight(3) > use.in_flight(1) == use.peak
    assert counted + samples - use.in_flight(3) in (0, result)


def test_a_plan_within_a_budget_runs_as_often_as_predicted():
    """With a budget halfway between all and as little as possible."""
    model, (inputs, _) = GPT(SHAPE, seed=1), batch()
    costs = block_costs(model, inputs, SECONDS)
    least, most = smallest_peak(costs), use_of(none(8), costs).peak
    plan = best(costs, (least + most) // 2)
    use = use_of(plan, costs)
    assert least < use.peak <= (least + most) // 2 and 0 < use.again < sum(SECONDS)
    assert runs_of_blocks(plan) == use.runs


def test_the_costs_of_blocks():
    """A linear layer keeps its input, and its ReLU the result, which is the next layer's input."""
    model = MLP(MLPShape((4, 8, 6)))
    costs = block_costs(model, torch.ones(3, 4))
    assert [(c.input, c.inside) for c in costs] == [(3 * 4 * 4, 0), (3 * 8 * 4, 0)]
    assert every(c.forward > 0 for c in costs)


def test_what_is_refused():
    with pytest.raises(TypeError, match="A Linear is no chain of blocks"):
        recompute(nn.Linear(2, 2), "all")
    with pytest.raises(ValueError, match="'some'. Choose none, all, sqrt, selective, a number"):
        recompute(GPT(SHAPE), "some")
    with pytest.raises(ValueError, match="A plan for 8 blocks has the numbers 0 to 7"):
        recompute(GPT(SHAPE), (0, 1))
    with pytest.raises(ValueError, match="k must be"):
        recompute(GPT(SHAPE), 0)
