"""The plain step, on one device: the truth that every method is compared with."""

import torch
from torch.nn.functional import cross_entropy, mse_loss


def next_token_loss(logits, targets):
    """Mean surprise over all tokens, in nats: logits [B, S, V], targets [B, S] -> []."""
    return cross_entropy(logits.flatten(0, -2), targets.flatten())


def mean_squares(outputs, targets):
    """Mean squared distance over all entries: [B, O], [B, O] -> []."""
    return mse_loss(outputs, targets)


def train_step(model, optimizer, batch, loss=next_token_loss, microbatches: int = 1):
    """Forward, backward, step; give the loss of `batch`, a pair (inputs, targets), as a tensor [].

    With `microbatches` the gradients of that many equal parts add up to the whole batch's: each
    part's loss is a mean, so each counts 1/microbatches. Raises ValueError where they do not share.
    """
    inputs, targets = batch
    if inputs.shape[0] % microbatches:
        raise ValueError(
            f"dim 0 has {inputs.shape[0]} entries: {microbatches} microbatches cannot share them "
            "equally"
        )
    optimizer.zero_grad()
    total = torch.zeros((), device=inputs.device)
    for part, wanted in zip(inputs.chunk(microbatches), targets.chunk(microbatches)):
        value = loss(model(part), wanted) / microbatches
        value.backward()
        total = total + value.detach()
    optimizer.step()
    return total


def train(model, optimizer, batches, steps: int, loss=next_token_loss) -> list[float]:
    """Take `steps` plain steps along `batches[0]`, `batches[1]`, ...; give the losses."""
    return [train_step(model, optimizer, batches[n], loss).item() for n in range(steps)]
