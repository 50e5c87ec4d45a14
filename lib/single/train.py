"""The plain training step on one device, with which every method is compared."""

import torch
from torch.nn.functional import cross_entropy, mse_loss

from lib.predict.arguments import equal_share
from lib.single.experts.layer import with_auxiliary


def next_token_loss(logits, targets):
    """Return the mean cross-entropy over all tokens, in nats: logits [B, S, V], targets [B, S]."""
    return cross_entropy(logits.flatten(0, -2), targets.flatten())


def mean_squares(outputs, targets):
    """Return the mean squared error over all entries: [B, O], [B, O] -> []."""
    return mse_loss(outputs, targets)


def train_step(model, optimizer, batch, loss=next_token_loss, microbatches: int = 1):
    """Run forward, backward and step; return the loss of `batch`, (inputs, targets): [].

    With `microbatches` the gradients of that many equal parts add up to those of the whole batch:
    each part's loss is a mean, so it is divided by the number of microbatches. Losses of layers of
    experts are added to it for backward, and are not returned. Raises ValueError where the parts
    would not be equal.
    """
    inputs, targets = batch
    equal_share(inputs.shape[0], microbatches, sharers="{} microbatches")
    optimizer.zero_grad()
    total = torch.zeros((), device=inputs.device)
    for part, part_targets in zip(inputs.chunk(microbatches), targets.chunk(microbatches)):
        value = loss(model(part), part_targets) / microbatches
        with_auxiliary(value, model, 1 / microbatches).backward()
        total = total + value.detach()
    optimizer.step()
    return total


def train(model, optimizer, batches, steps: int, loss=next_token_loss) -> list[float]:
    """Train for `steps` steps on `batches[0]`, `batches[1]`, ...; return the losses."""
    return [train_step(model, optimizer, batches[n], loss).item() for n in range(steps)]
