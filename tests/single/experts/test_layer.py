"""The plain layer equals a loop over tokens and experts, whatever the gate and the capacity."""

import pytest
import torch
from torch.nn.functional import gelu

from lib.predict.shape import GPTShape
from lib.single import GPT, next_token_loss
from lib.single.experts import MoE, auxiliary_loss, with_experts
from lib.single.experts.kinds import GATES
from lib.single.experts.routing import within

D, F, E = 8, 12, 6


def layer_of(**options):
    """Return a layer in float64 whose gate has opinions."""
    layer = MoE(D, F, E, 2, **options)
    layer.draw(3, 0.5, 0.5)
    return layer.double()


def inputs(batch=2, sequence=9):
    generator = torch.Generator().manual_seed(5)
    return torch.randn(batch, sequence, D, generator=generator, dtype=torch.float64)


def by_token(layer, x):
    """Return what a loop gives that sends one token through one expert at a time."""
    rows = x.flatten(0, 1)
    y = torch.zeros_like(rows)
    for token, expert, weight in zip(*layer.fitting(layer.decision.assignments)[:3]):
        hidden = gelu(rows[token] @ layer.experts.up[expert])
        y[token] = y[token] + weight * (hidden @ layer.experts.down[expert])
    if layer.shared is not None:
        y = y + gelu(rows @ layer.shared.up[0]) @ layer.shared.down[0]
    return y.view(x.shape)


@pytest.mark.parametrize("capacity", [None, 0.5, 1.0])
@pytest.mark.parametrize("drop", ["arrival", "weight"])
@pytest.mark.parametrize("gate", GATES)
def test_the_layer_is_a_loop_over_tokens(gate, drop, capacity):
    layer, x = layer_of(gate=gate, drop=drop, capacity=capacity, shared=1), inputs()
    x.requires_grad_()
    parameters = [x, *layer.parameters()]
    torch.manual_seed(0)
    y = layer(x)
    expected = by_token(layer, x)
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-12)
    gradient = torch.randn_like(y)
    options = {"retain_graph": True, "allow_unused": True}
    found = torch.autograd.grad(y, parameters, gradient, **options)
    for own, other in zip(found, torch.autograd.grad(expected, parameters, gradient, **options)):
        assert (own is None) == (other is None)
        if own is not None:
            torch.testing.assert_close(own, other, rtol=0, atol=1e-12)
    assert int(layer.kept.sum()) == len(layer.fitting(layer.decision.assignments).token)
    if capacity:
        assert int(layer.kept.max()) <= -(-capacity * 36 // E)


def test_one_expert_for_every_token_is_the_plain_feed_forward():
    layer, x = MoE(D, F, 1, 1), inputs().float()
    expected = gelu(x @ layer.experts.up[0]) @ layer.experts.down[0]
    torch.testing.assert_close(layer(x), expected)


def test_an_expert_that_gets_all_and_one_that_gets_none():
    layer, x = layer_of(), inputs()
    layer.gate.bias += torch.tensor([9.0, 8.0, 0, 0, 0, 0])
    layer(x).sum().backward()
    assert layer.kept.tolist() == [18, 18, 0, 0, 0, 0]
    assert layer.experts.up.grad[2:].abs().max() == 0 < layer.experts.up.grad[0].abs().max()


def test_a_token_that_is_dropped_everywhere_is_zero():
    layer, x = layer_of(capacity=0.1), inputs()
    y = layer(x).flatten(0, 1)
    kept = layer.decision.assignments
    tokens = set(kept.token[within(kept, 1)].tolist())
    lost = [token for token in range(18) if token not in tokens]
    assert len(lost) > 5 and y[lost].abs().max() == 0 < y[sorted(tokens)].abs().amax(-1).min()


def test_results_that_are_put_back_in_order_land_on_other_tokens():
    """The bite of a shipped bug: behind a dropped row, every result goes to the token before."""
    layer = MoE(6, 8, 4, 1, capacity=0.6).double()
    layer.draw(0, scale=0.5, added_to_x=0.5)
    x = torch.randn(32, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    right = layer(x)
    kept = layer.fitting(layer.decision.assignments)
    assert len(kept.token) < 32
    results = right[kept.token]  # of the rows that are kept, in the order of their tokens
    shifted = torch.zeros_like(right)
    shifted[: len(results)] = results
    first = next(n for n, token in enumerate(kept.token.tolist()) if n != token)
    assert torch.equal(shifted[:first], right[:first])
    later = kept.token[kept.token > first]
    assert len(later) > 4
    assert not torch.isclose(shifted[later], right[later]).all(-1).any()


def test_losses_are_weighted_and_named():
    layer = layer_of(gate="noisy", losses={"balance": 0.01, "load": 0.1})
    layer(inputs())
    assert list(layer.losses) == ["balance", "load"]
    assert 0.01 < layer.losses["balance"].item() < 0.06
    torch.testing.assert_close(auxiliary_loss(layer), sum(layer.losses.values()))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"losses": {"entropy": 1.0}}, "No loss is called 'entropy'. Choose from balance"),
        ({"losses": {"z": -1}}, "The weight of the loss 'z' must be"),
        ({"drop": "chance"}, "dropped by arrival or weight, not by 'chance'"),
        ({"capacity": 0}, "The capacity factor must be finite and above 0"),
        ({"gate": "hash"}, "No gate is called 'hash'"),
        ({"shared": -1}, "shared must be a whole number of at least 0"),
    ],
)
def test_options_that_make_no_layer_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        MoE(D, F, E, 2, **options)


def test_weights_are_those_of_the_seed():
    one, same, other = MoE(D, F, E, 2), MoE(D, F, E, 2), MoE(D, F, E, 2, seed=1)
    assert torch.equal(one.experts.up, same.experts.up)
    assert not torch.equal(one.experts.up, other.experts.up)


def test_a_gpt_gets_experts_in_every_second_block():
    model = with_experts(GPT(GPTShape()), 4, 2, every=2, losses={"balance": 0.01})
    layers = [type(model.blocks[str(n)].mlp).__name__ for n in range(1, 5)]
    assert layers == ["FeedForward", "MoE", "FeedForward", "MoE"]
    first, second = (model.blocks[n].mlp for n in ("2", "4"))
    assert first.experts.up.shape == (4, 64, 256)
    assert not torch.equal(first.experts.up, second.experts.up)
    tokens = torch.arange(32).view(2, 16)
    (next_token_loss(model(tokens), tokens) + auxiliary_loss(model)).backward()
    assert len(first.losses) == 1 and auxiliary_loss(model).item() == pytest.approx(0.02, rel=0.2)
    missing = [name for name, p in model.named_parameters() if p.grad is None]
    assert missing == []


def test_a_model_without_blocks_gets_no_experts():
    with pytest.raises(ValueError, match="The model has 0 blocks, and every=1 chooses none"):
        with_experts(torch.nn.Linear(2, 2), 4, 2)
