"""A plain GPT on one device and its batch, against which chapters hold what ranks computed."""

import torch

from lib.predict.shape import GPTShape
from lib.single import GPT, next_token_loss


def batch(shape: GPTShape, samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw tokens and the tokens that follow them, [samples, S] each, equal on every rank.

    They are drawn on the CPU and then moved to the default device.
    """
    draw, sizes = torch.Generator("cpu").manual_seed(0), (samples, shape.sequence + 1)
    tokens = torch.randint(shape.vocabulary, sizes, generator=draw, device="cpu")
    tokens = tokens.to(torch.get_default_device())
    return tokens[:, :-1], tokens[:, 1:]


def on_one_device(shape: GPTShape, samples: int) -> tuple[float, dict[str, torch.Tensor]]:
    """Return the loss of the plain GPT in 64-bit numbers for `batch`, and its gradients by name."""
    torch.manual_seed(0)
    model, (tokens, targets) = GPT(shape).double(), batch(shape, samples)
    loss = next_token_loss(model(tokens), targets)
    loss.backward()
    return loss.item(), {name: p.grad for name, p in model.named_parameters()}
