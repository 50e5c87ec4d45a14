"""GPTs that nobody tuned for, and the same training steps, plain and on split sequences."""

from dataclasses import replace
from functools import cache

import torch
import torch.distributed as dist

from lib.parallel.sequence import context_parallel, unshard_sequence
from lib.predict.shape import GPTShape
from lib.ranks.mesh import mesh
from lib.single import GPT

SHAPE = GPTShape(vocabulary=40, sequence=32, width=32, heads=4, layers=2, hidden=48)
SHAPES = {
    "learned": SHAPE,
    "rotary, two keys": replace(SHAPE, positions="rotary", kv_heads=2),
    "one key, tied": replace(SHAPE, kv_heads=1, tied=True),
}


def gpt(name):
    """Build a GPT of SHAPES in double precision, with biases and norms that matter."""
    model = GPT(SHAPES[name]).double()
    draw = torch.Generator().manual_seed(5)
    for parameter in model.parameters():
        drawn = torch.randn(parameter.shape, generator=draw, dtype=torch.float64)
        parameter.data += 0.1 * drawn.to(parameter.device)
    return model


def batch(length, seed=0):
    """Draw tokens and labels, [2, length] each; the first half has few labels that count."""
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.randint(40, (2, length + 1), generator=draw)
    labels = tokens[:, 1:].clone()
    labels[:, : length // 2][torch.rand(2, length // 2, generator=draw) < 0.7] = -100
    return tokens[:, :-1], labels


def mean_loss(logits, labels):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def trained(model, steps, loss_of):
    """Train by SGD with momentum; losses, logits and gradients of the last step, and weights."""
    optimizer, losses = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), []
    for step in range(steps):
        optimizer.zero_grad()
        loss, logits = loss_of(model, step)
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    return {
        "losses": losses,
        "logits": logits.detach(),
        "gradients": {name: p.grad for name, p in model.named_parameters()},
        "weights": model.state_dict(),
    }


@cache
def plain(name, length, documents=None, steps=2):
    """Train on one device. Documents become samples of their own, each from position 0."""
    ends = documents or (0, length)

    def loss_of(model, step):
        tokens, labels = batch(length, step)
        logits = [model(tokens[:, a:b]) for a, b in zip(ends, ends[1:])]
        logits = torch.cat(logits, 1)
        return mean_loss(logits, labels), logits

    return trained(gpt(name), steps, loss_of)


def spread(name, length, options, documents=None, axes=None, steps=2):
    """Do the same on the ranks of the world, on a mesh where `axes` are given."""
    options = dict(options)
    here = mesh(**axes) if axes else None
    if here:
        options |= {"group": here["ring"].group, "inner": here["ulysses"].group}
    model = gpt(name)
    for parameter in model.parameters():
        parameter.data.add_(dist.get_rank())  # only the first rank's weights may matter
    context = context_parallel(model, **options).context

    def loss_of(model, step):
        tokens, labels = context.shard(*batch(length, step), documents)
        logits = model(tokens)
        return context.loss(logits, labels), logits

    found = trained(model, steps, loss_of)
    back = {"inner": context.inner, "length": length}
    found["logits"] = unshard_sequence(found["logits"], context.group, context.layout, **back)
    return found


def far(found, expected):
    """The largest relative distance of anything from the plain run, by what was compared."""
    farthest = {}
    for what, whole in expected.items():
        own = found[what] if isinstance(whole, dict) else {"": torch.as_tensor(found[what])}
        whole = whole if isinstance(whole, dict) else {"": torch.as_tensor(whole)}
        assert own.keys() == whole.keys() and own
        for name, value in whole.items():
            a, b = own[name].to("cpu").double(), value.double()
            assert a.shape == b.shape, (what, name)
            farthest[f"{what} {name}"] = ((a - b).norm() / b.norm()).item()
    return max(farthest.items(), key=lambda item: (item[1] != item[1], item[1]))
