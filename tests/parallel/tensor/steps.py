"""The same training steps, plain and tensor-parallel, and what is compared afterwards."""

import torch
import torch.distributed as dist

from lib.parallel.tensor import (
    plain_gradients,
    tensor_parallel,
    to_plain,
    vocab_parallel_cross_entropy,
)
from lib.single import next_token_loss
from tests.parallel.tensor import models


def adam(parameters):
    """AdamW that updates one by one: all at once, it refuses DTensors beside plain tensors."""
    return torch.optim.AdamW(parameters, 1e-2, foreach=False)


def trained(model, batches, loss, make=adam):
    """Train; return losses and logits."""
    optimizer = make(model.parameters())
    torch.manual_seed(7)  # what dropout draws
    losses, logits = [], []
    for tokens, targets in batches:
        optimizer.zero_grad()
        logits.append(model(tokens))
        losses.append(loss(logits[-1], targets))
        losses[-1].backward()
        optimizer.step()
    return {"losses": [one.item() for one in losses], "logits": [one.detach() for one in logits]}


def batches(vocabulary):
    return [models.batch(vocabulary, seed) for seed in range(2)]


def plain(name):
    """Two steps on one device."""
    model = models.gpt(name)
    found = trained(model, batches(model.shape.vocabulary), next_token_loss)
    return found | {
        "gradients": {n: p.grad for n, p in model.named_parameters()},
        "weights": model.state_dict(),
    }


def ruined(model):
    """Change the weights on all ranks but the first, where they must not matter."""
    for parameter in model.parameters():
        parameter.data.add_(dist.get_rank())
    return model


def spread(name, transform=tensor_parallel):
    """The same two steps on the ranks of the world."""
    model = transform(ruined(models.gpt(name)))
    v = model.shape.vocabulary
    loss = lambda logits, targets: vocab_parallel_cross_entropy(logits, targets, vocabulary=v)
    found = trained(model, batches(v), loss)
    found["logits"] = [joined(one)[..., :v] for one in found["logits"]]
    return found | {"gradients": plain_gradients(model), "weights": to_plain(model)}


def joined(shard):
    shards = [torch.empty_like(shard) for _ in range(dist.get_world_size())]
    dist.all_gather(shards, shard.contiguous())
    return torch.cat(shards, -1)


def differences(ranks, whole):
    """The largest difference of any rank's from the plain run, by what was compared."""
    found = {}
    for key, expected in whole.items():
        expected = expected if isinstance(expected, dict) else dict(enumerate(expected))
        for one in ranks:
            own = one[key] if isinstance(one[key], dict) else dict(enumerate(one[key]))
            assert own.keys() == expected.keys() and own
            for name, value in expected.items():
                if value is None or own[name] is None:
                    assert value is own[name] is None, name
                    continue
                a, b = torch.as_tensor(value), torch.as_tensor(own[name]).to("cpu")
                assert a.shape == b.shape, (name, a.shape, b.shape)
                apart = (a - b).abs().max().item()
                found[key] = max(found.get(key, 0.0), apart)
    return found
