"""The same steps of a GPT, plain and on a grid, and what is compared afterwards."""

import copy
from dataclasses import replace

import torch
from torch import nn

from lib.parallel.grid import (
    GridLayerNorm,
    full_gradients,
    full_state_dict,
    grid_cross_entropy,
    grid_parallel,
)
from lib.predict.shape import GPTShape
from lib.predict.tensor.grids import INSIDE, RankGrid
from lib.ranks.mesh import mesh
from lib.single import GPT, next_token_loss

# Sizes that 2, 3 and 4 divide, all of them different; 50 tokens are padded on every grid but 2×2.
SHAPE = GPTShape(vocabulary=50, sequence=6, width=36, heads=6, layers=2, hidden=72)
TIED = replace(SHAPE, tied=True)
ROTARY = replace(SHAPE, positions="rotary", kv_heads=2)
HARD = "no bias", "frozen", "unused"
GRIDS = {
    4: [RankGrid("2d", 2)],
    8: [RankGrid("2.5d", 2, 2), RankGrid("3d", 2)],
    9: [RankGrid("2d", 3)],
}


def batch(shape, seed=0, samples=36):
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.randint(shape.vocabulary, (samples, shape.sequence + 1), generator=draw)
    return tokens[:, :-1], tokens[:, 1:]


def optimizer_of(model):
    return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)


def ready(model, shape):
    """Give norms and biases values that are not 1 and 0, and double precision."""
    model.double()
    draw = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        drawn = torch.randn(parameter.shape, generator=draw, dtype=torch.float64)
        parameter.data.add_(0.1 * drawn)
    return model


def hard(model, what):
    """Take the biases out of a GPT, freeze some of its weights, or give it what no layer uses."""
    if what == "no bias":
        for module in model.modules():
            if isinstance(module, nn.Linear | nn.LayerNorm):
                module.bias = None
    if what == "frozen":
        for end in ("0.tokens.weight", "0.positions.weight", "1.norm1.weight", "1.mlp.up.bias",
                    "1.attention.qkv.weight", "2.mlp.down.weight"):  # fmt: skip
            model.get_parameter(f"blocks.{end}").requires_grad_(False)
    if what == "unused":
        model.extra = nn.BatchNorm1d(3)
    return model


def plain(shape, steps=2, what=""):
    """Train on one device; the losses, the last outputs and gradients, and the weights."""
    model = ready(hard(GPT(shape), what), shape)
    optimizer, losses = optimizer_of(model), []
    for n in range(steps):
        x, y = batch(shape, n)
        optimizer.zero_grad()
        logits = model(x)
        loss = next_token_loss(logits, y)
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    return {
        "losses": losses,
        "outputs": logits.detach(),
        "gradients": gradients,
        "weights": copy.deepcopy(model.state_dict()),
    }


def on_grid(shape, grid, options, steps=2, norms_alone=False, what=""):
    """Do the same on a grid; this rank's outputs, its place, and the whole gradients, weights.

    With `norms_alone` each rank keeps its own gradients of the norms, which is a mistake.
    """
    here = mesh(one=1, **grid.axes)
    model = ready(hard(GPT(shape), what), shape)
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data.add_(here.rank)  # only the first rank's numbers may matter
    grid_parallel(model, here, grid.kind, **options)
    for module in model.modules():
        if norms_alone and isinstance(module, GridLayerNorm):
            module.rows = here["one"]
    optimizer, losses = optimizer_of(model), []
    for n in range(steps):
        x, y = batch(shape, n)
        optimizer.zero_grad()
        logits = model(x)
        loss = grid_cross_entropy(logits, y, here, grid.kind)
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    side = INSIDE[grid.kind]
    return {
        "losses": losses,
        "outputs": logits.detach(),
        "place": (here[side.rows].rank, here[side.columns].rank),
        "gradients": full_gradients(model),
        "weights": full_state_dict(model),
    }


def differences(parts, truth):
    """Relative distances from the plain run of every tensor of every rank, by name."""
    found = {}
    rows, columns = (1 + max(part["place"][n] for part in parts) for n in (0, 1))
    vocabulary = truth["outputs"].shape[-1]
    padding = torch.full(truth["outputs"].shape[:-1] + (columns,), -torch.inf).double()
    for rank, part in enumerate(parts):
        row, column = part["place"]
        share = part["outputs"].shape[-1]
        expected = torch.cat([truth["outputs"]] + [padding] * share, -1)
        expected = expected.chunk(rows)[row][..., column * share : (column + 1) * share]
        real = expected > -torch.inf
        assert torch.equal(part["outputs"] == -torch.inf, ~real)
        found[f"outputs, rank {rank}"] = far(part["outputs"][real], expected[real])
        found[f"losses, rank {rank}"] = far(*map(torch.tensor, (part["losses"], truth["losses"])))
        assert (
            part["weights"].keys()
            == truth["weights"].keys()
            == part["gradients"].keys() | (truth["weights"].keys() - truth["gradients"].keys())
        )
        for what in ("gradients", "weights"):
            for name, expected in truth[what].items():
                if expected is None or part[what][name] is None:
                    assert part[what][name] is expected, (what, name)
                    continue
                found[f"{what} of {name}, rank {rank}"] = far(part[what][name], expected)
    assert columns * share >= vocabulary
    return found


def far(a, b):
    assert a.shape == b.shape, (a.shape, b.shape)
    a, b = a.double(), b.double()
    return ((a - b).norm() / b.norm().clamp(min=1e-30)).item()
