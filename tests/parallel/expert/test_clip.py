"""Clipping counts each expert once, whatever rank has it."""

import pytest
import torch

from lib.parallel.expert import clip_grad_norm_, expert_parallel, plain_gradients
from lib.single import next_token_loss
from tests.parallel.expert import models


def backward(model, share):
    inputs, targets = (share(t) for t in models.batch(0))
    next_token_loss(model(inputs), targets).backward()
    return model


def clipped(norm_type):
    import torch.distributed as dist

    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = backward(expert_parallel(models.gpt("softmax")), lambda t: t.chunk(ranks)[rank])
    norm = clip_grad_norm_(model, 0.01, norm_type)
    return norm, plain_gradients(model)


@pytest.mark.parametrize("norm_type", [2.0, 1.0, float("inf")])
def test_the_norm_is_the_plain_models(world, norm_type):
    plain = backward(models.gpt("softmax"), lambda t: t)
    expected = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.01, norm_type)
    assert expected > 0.02
    for norm, gradients in world.run(clipped, norm_type):
        torch.testing.assert_close(norm, expected)
        for name, parameter in plain.named_parameters():
            torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-9, atol=1e-15)
