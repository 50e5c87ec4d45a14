"""Optimizers on a small GPT in FSDP and in tensor parallelism: alone on each shard, and together.

The plain optimizer, given a rank's shards as if they were whole parameters, is "alone". The
library's sharded one is "together". All numbers are float64, so that a difference is a mistake. The
biases of queries, keys and values are not trained: those of keys have gradients that rounding alone
makes, and each of these optimizers divides them by their own size.
"""

from collections.abc import Sequence
from functools import cache, partial
from typing import NamedTuple

import torch.distributed as dist
from torch import Tensor, nn

from lib.course.lean_optimizers.training import SAMPLES, SHAPE
from lib.ledger import Ledger
from lib.parallel.optimizers import ShardedAdafactor, ShardedAdam8bit, ShardedMuon, ShardedSM3
from lib.parallel.optimizers.places import (
    Cut,
    Flat,
    Whole,
    places_of_fsdp,
    places_of_tensor_parallel,
)
from lib.parallel.sharded import FSDP
from lib.parallel.tensor import tensor_parallel, to_plain, vocab_parallel_cross_entropy
from lib.parallel.tensor.transform import placements
from lib.predict.optimizers.adam_8bit import of_adam_8bit
from lib.predict.optimizers.muon import equal_sizes, of_muon
from lib.predict.optimizers.traffic import of_adafactor, of_sm3
from lib.single import GPT, Batches, next_token_loss, share
from lib.single.optimizers import SM3, Adafactor, Adam8bit, AdamW, Muon
from lib.single.optimizers.muon import hidden_matrices

STEPS = 2
BLOCK = 32  # of 8-bit Adam: it divides the rows' parts in tensor parallelism
ITEMSIZE = 8
PLAIN = {
    "adafactor": Adafactor,
    "sm3": SM3,
    "adam8bit": partial(Adam8bit, block=BLOCK),
    "muon, gather": partial(Muon, lr=0.01, ns_dtype=None),
    "muon, owners": partial(Muon, lr=0.01, ns_dtype=None),
}
TOGETHER = {
    "adafactor": ShardedAdafactor,
    "sm3": ShardedSM3,
    "adam8bit": partial(ShardedAdam8bit, block=BLOCK),
    "muon, gather": partial(ShardedMuon, lr=0.01, ns_dtype=None, method="gather"),
    "muon, owners": partial(ShardedMuon, lr=0.01, ns_dtype=None, method="distributed"),
}
METHODS = ("FSDP", "tensor")


class Result(NamedTuple):
    """Holds what a rank has after a training: all weights, bytes of states, predicted buffers."""

    weights: dict[str, Tensor]
    kept: int
    predicted: list[tuple[str, int]]


def gpt() -> GPT:
    """Return the small GPT in float64, with the biases of queries, keys and values frozen."""
    model = GPT(SHAPE).double()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.endswith("qkv.bias"))
    return model


def train(model: nn.Module, optimizers: Sequence, loss, cut=lambda part: part) -> None:
    """Take a few steps; on ranks, barriers mark what the last step of the optimizers launches."""
    batches = Batches(SAMPLES, SHAPE.sequence)
    for step in range(STEPS):
        inputs, targets = map(cut, batches[step])
        model.zero_grad()
        loss(model(inputs), targets).backward()
        mark = dist.is_initialized() and step == STEPS - 1
        if mark:
            dist.barrier()
        for optimizer in optimizers:
            optimizer.step()
        if mark:
            dist.barrier()


@cache
def on_one_device(name: str) -> dict[str, Tensor]:
    """Return the weights that a plain optimizer trains on one device."""
    model = gpt()
    train(model, _made(name, model, hidden_matrices(model)), next_token_loss)
    return {name: value.clone().cpu() for name, value in model.state_dict().items()}


def on_ranks(name: str, method: str, together: bool = True) -> Result:
    """Train on this rank by "FSDP" or "tensor", each shard alone or all together."""
    model = gpt()
    hidden = hidden_matrices(model)
    if method == "FSDP":
        model = FSDP(model)
        places = places_of_fsdp(model)
        cut = partial(share, part=dist.get_rank(), parts=dist.get_world_size())
        loss = next_token_loss
    else:
        tensor_parallel(model)
        places = places_of_tensor_parallel(model, placements(model))
        cut, loss = (lambda part: part), vocab_parallel_cross_entropy
    optimizers = _made(name, model, hidden, places if together else None)
    train(model, optimizers, loss, cut)
    weights = model.full_state_dict() if method == "FSDP" else to_plain(model)
    kept = sum(
        value.nbytes for one in optimizers for state in one.state.values()
        for value in state.values()
    )  # fmt: skip
    weights = {name: value.detach().cpu() for name, value in weights.items()}
    return Result(weights, kept, predicted(name, model, optimizers[0], places))


def _made(name: str, model: nn.Module, hidden: list[str], places=None) -> list:
    """Return the optimizers that together train all parameters of a model or of its parts."""
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    make = PLAIN[name] if places is None else partial(TOGETHER[name], places=places)
    if not name.startswith("muon"):
        return [make([p for _, p in named])]
    inner = [p for n, p in named if n in hidden]
    rest = [p for n, p in named if n not in hidden]
    return [make(inner), AdamW(rest)]


def predicted(name: str, model, optimizer, places: dict[Tensor, Whole]) -> list[tuple[str, int]]:
    """Return the collectives of a step of an optimizer on this rank, and the bytes of buffers."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    own = [places[p] for p in parameters]
    ranks = dist.get_world_size()
    if name in ("adafactor", "sm3"):
        parts = [(place.shape, _cut(place)) for place in own]
        calls = {"adafactor": of_adafactor, "sm3": of_sm3}[name](parts, ranks, ITEMSIZE)
    else:
        sizes = _sizes(model) if isinstance(model, FSDP) else {}
        parts = [(place.shape, sizes.get(p) or _equal(place, ranks))
                 for p, place in zip(parameters, own)]  # fmt: skip
        if name == "adam8bit":
            calls = of_adam_8bit(parts, ranks, block=BLOCK)
        else:
            method = "gather" if name.endswith("gather") else "distributed"
            calls = of_muon(parts, ranks, dist.get_rank(), ITEMSIZE, method=method)
    return [(call.op, call.bytes) for call in calls]


def _cut(place: Whole) -> int | str | None:
    return "flat" if isinstance(place, Flat) else getattr(place, "dim", None)


def _equal(place: Whole, ranks: int) -> list[int] | None:
    return equal_sizes(place.shape, ranks, place.dim) if isinstance(place, Cut) else None


def _sizes(fsdp: FSDP) -> dict[Tensor, list[int]]:
    """Return how many numbers each rank has of every parameter."""
    return {
        parameter: [last - first for first, last in
                    (flat.layout.piece(n, rank) for rank in range(dist.get_world_size()))]
        for flat in fsdp.flats()
        for n, parameter in enumerate(flat.parameters)
    }  # fmt: skip


def sent(run: Ledger, rank: int = 0) -> list[tuple[str, int]]:
    """Return the collectives between a rank's two barriers: those of the last step's optimizers."""
    rows = sorted(run.where(rank=rank, lane="comm"), key=lambda row: row.start)
    first, second = (n for n, row in enumerate(rows) if row.op == "barrier")
    return [(row.op, row.bytes) for row in rows[first + 1 : second]]


def apart(weights: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Return the largest relative distance of a trained parameter from the one of one device."""
    return max(
        ((weights[name] - value).norm() / value.norm().clamp(min=1e-30)).item()
        for name, value in expected.items()
    )


def table(world, method: str, names: Sequence[str] = tuple(TOGETHER), traffic: bool = True) -> str:
    """Write for each optimizer how far shards alone and together are from one device.

    With `traffic` the bytes of rank 0's buffers follow, and whether its collectives are predicted.
    """
    more = f"{'buffers':>9}{'predicted':>10}" if traffic else ""
    lines = [f"{method:<13}{'alone':>7}{'together':>10}{more}"]
    for name in names:
        expected = on_one_device(name)
        alone = "refused"
        if not (method == "FSDP" and name.startswith("muon")):  # flat pieces are no matrices
            weights = world.run(on_ranks, name, method, False)[0].weights
            alone = _in_words(apart(weights, expected))
        run = world.record(on_ranks, name, method)
        equal = _in_words(apart(run.results[0].weights, expected))
        calls = sent(run)
        total = sum(nbytes for _, nbytes in calls)
        right = "equal" if calls == run.results[0].predicted else "other"
        more = f"{total:>9,}{right:>10}" if traffic else ""
        lines.append(f"{name:<13}{alone:>7}{equal:>10}{more}")
    return "\n".join(lines)


def _in_words(far: float) -> str:
    """Write a relative distance; one that rounding of float64 explains is called equal."""
    return "equal" if far < 1e-9 else f"{far:.0%}" if far >= 0.01 else f"{far:.2%}"


def kept_alone(world) -> tuple[int, int]:
    """Return the bytes that Adafactor keeps on rank 0 of FSDP, on shards alone and together."""
    alone, right = (world.run(on_ranks, "adafactor", "FSDP", way)[0].kept for way in (False, True))
    return alone, right
