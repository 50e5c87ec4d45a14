"""What is tied, frozen or unused in a model, and ranks that decide alone, equal plain models."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from lib.parallel.expert import clip_grad_norm_, expert_parallel, plain_gradients
from lib.ranks.mesh import mesh
from lib.single import next_token_loss
from lib.single.experts import MoE, auxiliary_loss
from tests.parallel.expert import models


def backward(model, inputs, targets):
    (next_token_loss(model(inputs), targets) + auxiliary_loss(model)).backward()
    return model


def own_batch():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    return (t.chunk(ranks)[rank] for t in models.batch(0))


def assert_equal(found, plain):
    """Fail where a rank's gradients are not the plain model's; where it has none, none is right."""
    assert found
    for gradients in found:
        for name, parameter in plain.named_parameters():
            own, right = gradients[name], parameter.grad
            assert (own is None) == (right is None), name
            if right is not None:
                torch.testing.assert_close(own, right, rtol=0, atol=1e-11)


def alone(name):
    return plain_gradients(backward(expert_parallel(models.gpt(name), decide="rank"), *own_batch()))


@pytest.mark.parametrize("name", ["one expert, capacity", "capacity by weight"])
def test_ranks_that_decide_alone_are_plain_models_of_their_own_tokens(worlds, name):
    """Each rank's capacity and losses are those of its tokens; gradients are the mean of both."""
    plain = models.gpt(name)
    for inputs, targets in zip(*(t.chunk(2) for t in models.batch(0))):
        backward(plain, inputs, targets)
    for parameter in plain.parameters():
        parameter.grad /= 2
    assert_equal(worlds(2).run(alone, name), plain)


def hard():
    """Make a model with tied embeddings, a frozen gate, a frozen matrix of experts, one unused."""
    model = models.gpt("softmax")
    first, second = models.layers(model)
    first.gate.weight.requires_grad_(False)
    second.experts.up.requires_grad_(False)
    second.experts.down = first.experts.down  # tied: used by both layers
    model.unused = nn.Parameter(torch.ones(3, dtype=torch.float64))
    return model


def spread():
    return plain_gradients(backward(expert_parallel(hard()), *own_batch()))


def clipped_copies():
    here = mesh(dp=2, ep=2)
    model = models.gpt("softmax")
    expert_parallel(model, here["ep"].group, replicas=here["dp"].group)
    norm = clip_grad_norm_(backward(model, *own_batch()), 0.01)
    return norm, plain_gradients(model)


def test_copies_of_an_expert_count_once_in_the_norm(worlds):
    plain = backward(models.gpt("softmax"), *models.batch(0))
    expected = nn.utils.clip_grad_norm_(plain.parameters(), 0.01)
    assert expected > 0.02
    found = worlds(4).run(clipped_copies)
    for norm, _ in found:
        torch.testing.assert_close(norm, expected)
    assert_equal([gradients for _, gradients in found], plain)


def test_what_is_frozen_or_unused_stays_so(worlds):
    plain = backward(hard(), *models.batch(0))
    missing = [name for name, p in plain.named_parameters() if p.grad is None]
    assert len(missing) == 3 and "unused" in missing
    assert_equal(worlds(2).run(spread), plain)


TOKENS = torch.randn(24, 8, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def crowded_layer():
    return MoE(8, 8, 4, 2, capacity=0.8, seed=1).double()


def uneven_tokens(cut):
    layer = expert_parallel(crowded_layer())
    return layer(TOKENS[:cut] if dist.get_rank() == 0 else TOKENS[cut:])


@pytest.mark.parametrize("cut", [0, 5, 12])
def test_a_capacity_counts_the_tokens_of_ranks_with_more_and_with_fewer(worlds, cut):
    layer = crowded_layer()
    expected = layer(TOKENS)
    assert layer.kept.sum() < 2 * len(TOKENS), "nothing is dropped"
    outputs = torch.cat(worlds(2).run(uneven_tokens, cut))
    torch.testing.assert_close(outputs, expected, atol=1e-12, rtol=0)
