"""A small GPT with experts, trained on one device and on ranks that share its experts."""

import torch
import torch.distributed as dist

from lib.parallel.expert import expert_parallel, plain_gradients, to_plain
from lib.predict.shape import GPTShape
from lib.ranks.mesh import mesh
from lib.single import GPT, next_token_loss
from lib.single.experts import MoE, auxiliary_loss, with_experts
from lib.single.experts.noisy_gates import NoisyGate

SHAPE = GPTShape(vocabulary=40, sequence=6, width=16, heads=2, layers=2, hidden=24)
BATCH, EXPERTS = 8, 8
STEPS, RATE = 2, 0.5
OPTIONS = {
    "softmax": {"losses": {"balance": 0.1, "z": 0.01}},
    "one expert, capacity": {"k": 1, "capacity": 1.0, "losses": {"balance": 0.1}},
    "capacity by weight": {"capacity": 0.7, "drop": "weight"},
    "shared": {"shared": 2, "gate": "sigmoid", "losses": {"importance": 0.1}},
    "noisy": {"gate": "noisy", "losses": {"importance": 0.1, "load": 0.1}, "capacity": 1.25},
    "two-level": {
        "gate": "two-level", "groups": 4, "groups_chosen": 2,
        "losses": {"importance": 0.1, "load": 0.1},
    },
    "gshard": {"losses": {"gshard": 0.5}},
    "expert choice": {"gate": "expert choice", "room": 1.1, "losses": {"z": 0.01}},
}  # fmt: skip


def gpt(name, crowded=None):
    """Make the model in float64; with `crowded`, every token chooses that expert first."""
    options = {"k": 2, **OPTIONS[name]}
    model = with_experts(GPT(SHAPE, seed=1), EXPERTS, **options).double()
    for number, layer in enumerate(layers(model)):
        torch.nn.init.normal_(layer.gate.weight, generator=torch.Generator().manual_seed(number))
        if crowded is not None:
            layer.gate.bias[crowded] += 20.0
    return model


def layers(model):
    return [part for part in model.modules() if isinstance(part, MoE)]


def batch(step):
    generator = torch.Generator().manual_seed(100 + step)
    tokens = torch.randint(SHAPE.vocabulary, (BATCH, SHAPE.sequence + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def hold_noise(model, rank=0, ranks=1):
    """Give each gate with noise the numbers of this rank's tokens, out of those of the batch."""
    gates = [part for part in model.modules() if isinstance(part, NoisyGate)]
    for number, gate in enumerate(gates):
        generator = torch.Generator().manual_seed(number)

        def noise(like, generator=generator):
            rows = len(like) * ranks
            whole = torch.randn(rows, *like.shape[1:], generator=generator, dtype=torch.float64)
            return whole.chunk(ranks)[rank].to(like.device)

        gate.noise = noise


def trained(model, share, gradients, weights):
    """Train for two steps of SGD; return what is compared."""
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    found = {"losses": [], "gradients": [], "kept": []}
    for step in range(STEPS):
        optimizer.zero_grad()
        inputs, targets = (share(t) for t in batch(step))
        logits = model(inputs)
        loss = next_token_loss(logits, targets)
        total = loss + auxiliary_loss(model)
        total.backward()
        found["losses"].append(total.detach())
        found["kept"].append([layer.kept for layer in layers(model)])
        found["gradients"].append(gradients(model))
        found["logits"] = logits.detach()
        optimizer.step()
    return {**found, "weights": weights(model)}


def plain(name, crowded=None):
    model = gpt(name, crowded)
    hold_noise(model)
    named = lambda model: {name: p.grad.clone() for name, p in model.named_parameters()}
    return trained(model, lambda t: t, named, lambda model: model.state_dict())


def spread(name, crowded=None, axes=None, **options):
    """Train on ranks; `axes` are those of a mesh with the axes dp (replicas) and ep."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = gpt(name, crowded)
    hold_noise(model, rank, ranks)
    if axes:
        here = mesh(**axes)
        options |= {"replicas": here["dp"].group, "group": here["ep"].group}
    expert_parallel(model, **options)
    clone = lambda model: {n: g.clone() for n, g in plain_gradients(model).items()}
    return trained(model, lambda t: t.chunk(ranks)[rank], clone, to_plain)


def far(by_rank, expected):
    """Return the largest difference of each kind between what ranks found and the plain model."""
    mean = lambda tensors: torch.stack(tensors).mean(0)
    losses = [mean(pair) for pair in zip(*(found["losses"] for found in by_rank))]
    apart = {"losses": [a - b for a, b in zip(losses, expected["losses"])]}
    apart["logits"] = [torch.cat([f["logits"] for f in by_rank]) - expected["logits"]]
    kept = [[sum(layer) for layer in zip(*step)] for step in zip(*(f["kept"] for f in by_rank))]
    apart["kept"] = [a - b for s, e in zip(kept, expected["kept"]) for a, b in zip(s, e)]
    apart["gradients"] = [
        g[name] - e[name]
        for found in by_rank
        for g, e in zip(found["gradients"], expected["gradients"])
        for name in e
    ]
    apart["weights"] = [
        found["weights"][name] - weight
        for found in by_rank
        for name, weight in expected["weights"].items()
    ]
    return {what: max(float(t.abs().max()) for t in tensors) for what, tensors in apart.items()}
