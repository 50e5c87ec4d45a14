"""A recipe trains the losses of layers of experts: each rank's own, averaged over the ranks."""

import pytest
import torch

from lib.ranks.mesh import mesh
from lib.recipe import ddp, fsdp, parallelize
from lib.single import next_token_loss
from lib.single.experts import auxiliary_loss
from tests.parallel.expert import models

RATE = 0.5


def by_recipe(method):
    """Take one step of SGD by a recipe; return the loss and the model's outputs after it."""
    run = parallelize(models.gpt("softmax"), mesh(dp=2), {"ddp": ddp, "fsdp": fsdp}[method]("dp"))
    optimizer = run.optimizer(torch.optim.SGD, lr=RATE)
    inputs, targets = run.share(models.batch(0))
    loss = run.forward_backward(inputs, targets)
    optimizer.step()
    return loss, run.model(models.batch(1)[0]).detach()


@pytest.mark.parametrize("method", ["ddp", "fsdp"])
def test_the_losses_of_experts_are_trained(worlds, method):
    model = models.gpt("softmax")
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    losses, totals = [], []
    for inputs, targets in zip(*(t.chunk(2) for t in models.batch(0))):
        losses.append(next_token_loss(model(inputs), targets))
        totals.append(losses[-1] + auxiliary_loss(model))
    (sum(totals) / 2).backward()
    optimizer.step()
    expected = model(models.batch(1)[0]).detach()
    for rank, (loss, outputs) in enumerate(worlds(2).run(by_recipe, method)):
        assert torch.allclose(loss, losses[rank].detach(), rtol=0, atol=1e-12)
        assert (outputs - expected).abs().max() < 1e-11
