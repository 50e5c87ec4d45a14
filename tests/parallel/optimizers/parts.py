"""The same parameters and gradients whole and in parts, and optimizers on both."""

import torch
import torch.distributed as dist

from lib.parallel.optimizers.places import Cut, Flat, Whole
from lib.parallel.sharded.layout import Layout
from lib.predict.optimizers.muon import equal_sizes

# whole shape -> how it is cut: a dim, "flat", or None
SETS = {
    "rows": [((8, 6), 0), ((4, 3), 0), ((8,), 0), ((5, 7), None)],
    "columns": [((6, 8), 1), ((3, 4), 1), ((5,), None)],
    "both": [((8, 6), 0), ((6, 8), 1), ((4,), 0), ((8, 3, 5), 0), ((3, 8, 5), 1)],
    "flat": [((5, 7), "flat"), ((3,), "flat"), ((), "flat"), ((6, 4), "flat"), ((9, 1), "flat")],
}
STEPS = 3


def whole(shapes, step, zero=()):
    """Weights before the first step (step -1), or gradients of a step: the same everywhere."""
    draw = torch.Generator().manual_seed(step + 1)
    values = [torch.randn(shape, generator=draw, dtype=torch.float64) for shape in shapes]
    return [value * 0 if n in zero else value for n, value in enumerate(values)]


def cut_all(values, parts, rank, ranks):
    """Cut whole tensors into the pieces of one rank."""
    flats = [n for n, (_, cut) in enumerate(parts) if cut == "flat"]
    layout = Layout([parts[n][0] for n in flats], ranks)
    pieces = []
    for n, (value, (_, cut)) in enumerate(zip(values, parts)):
        if cut == "flat":
            first, last = layout.piece(flats.index(n), rank)
            pieces.append(value.reshape(-1)[first:last].clone())
        else:
            pieces.append(value.clone() if cut is None else value.chunk(ranks, cut)[rank].clone())
    return pieces


def places_of(parts, rank, ranks):
    """Return the place of each part."""
    flats = [n for n, (_, cut) in enumerate(parts) if cut == "flat"]
    layout = Layout([parts[n][0] for n in flats], ranks)
    places = []
    for n, (shape, cut) in enumerate(parts):
        if cut == "flat":
            places.append(Flat(shape, *layout.piece(flats.index(n), rank)))
        else:
            places.append(Whole(shape) if cut is None else Cut(shape, cut))
    return places


def plain(make, parts, options, steps=STEPS):
    """Step on one device; return the whole weights."""
    shapes = [shape for shape, _ in parts]
    weights = [torch.nn.Parameter(value) for value in whole(shapes, -1)]
    optimizer = make(weights, **options)
    for step in range(steps):
        for weight, gradient in zip(weights, whole(shapes, step)):
            weight.grad = gradient
        optimizer.step()
    return [weight.detach() for weight in weights]


def on_parts(make, name, options, naive=False, steps=STEPS, dtype=torch.float64):
    """Step on this rank's parts; `naive` leaves the places out. Return the parts."""
    parts, rank, ranks = SETS[name], dist.get_rank(), dist.get_world_size()
    shapes = [shape for shape, _ in parts]
    weights = [
        torch.nn.Parameter(piece.to(dtype))
        for piece in cut_all(whole(shapes, -1), parts, rank, ranks)
    ]
    if naive:
        optimizer = make(weights, **options)
    else:
        optimizer = make(weights, dict(zip(weights, places_of(parts, rank, ranks))), **options)
    for step in range(steps):
        for weight, gradient in zip(weights, cut_all(whole(shapes, step), parts, rank, ranks)):
            weight.grad = gradient.to(dtype) if weight.numel() else None  # as FSDP leaves it
        optimizer.step()
    return [weight.detach() for weight in weights]


def expected_parts(make, name, options, ranks):
    """Return the parts of the whole weights, of each rank."""
    values = plain(make, SETS[name], options)
    return [cut_all(values, SETS[name], rank, ranks) for rank in range(ranks)]


def predicted_parts(parts, ranks):
    """The (shape, cut) of parts as the formulas take them: shapes, and the numbers of each rank."""
    flats = [n for n, (_, cut) in enumerate(parts) if cut == "flat"]
    layout = Layout([parts[n][0] for n in flats], ranks)
    found = []
    for n, (shape, cut) in enumerate(parts):
        if cut == "flat":
            ends = [layout.piece(flats.index(n), rank) for rank in range(ranks)]
            found.append((shape, [last - first for first, last in ends]))
        else:
            found.append((shape, None if cut is None else equal_sizes(shape, ranks, cut)))
    return found
