"""A small GPT trained by each optimizer: the loss over three seeds beside the bytes that are kept.

All runs of a seed begin with the same weights and see the same batches, and are computed in 32-bit
numbers on the CPU with one thread. Each optimizer has the rate that was best for it among a few
(`rates_tried`), the same in all steps. A rate that is good here says nothing about another model.
"""

from collections.abc import Callable, Sequence
from functools import partial
from statistics import mean

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from lib.course.one_thread import on_one_thread
from lib.predict.optimizers import state_bytes
from lib.predict.shape import GPTShape
from lib.single import GPT, Batches, next_token_loss
from lib.single.optimizers import SM3, Adafactor, Adam8bit, AdamW, Muon, split_parameters

SHAPE = GPTShape(sequence=32, width=64, heads=4, layers=1)
SAMPLES, STEPS = 8, 400
SEEDS = (0, 1, 2)
LAST = 20  # steps over which a table takes means


def _of_all(optimizer: Callable[..., Optimizer]) -> Callable[[nn.Module, float], list[Optimizer]]:
    """Return a function that makes the one optimizer of all parameters of a model."""
    return lambda model, rate: [optimizer(model.parameters(), lr=rate)]


def _muon(model: nn.Module, rate: float) -> list[Optimizer]:
    """Return Muon for the matrices of hidden layers, and AdamW at its own rate for the others."""
    hidden, others = split_parameters(model)
    return [Muon(hidden, lr=rate), AdamW(others, lr=RATES["adamw"])]


MAKERS: dict[str, Callable[[nn.Module, float], list[Optimizer]]] = {
    "sgd": _of_all(torch.optim.SGD),
    "momentum": _of_all(partial(torch.optim.SGD, momentum=0.9)),
    "adamw": _of_all(AdamW),
    "adafactor": _of_all(Adafactor),
    "sm3": _of_all(SM3),
    "adam8bit": _of_all(partial(Adam8bit, weight_decay=1e-2)),  # as AdamW's
    "muon": _muon,
}
RATES = {
    "sgd": 0.2, "momentum": 0.1, "adamw": 2e-3, "adafactor": 0.02, "sm3": 0.02, "adam8bit": 2e-3,
    "muon": 0.01,
}  # fmt: skip
LEAN = ("adamw", "adafactor", "sm3", "adam8bit", "muon")


def trained(
    optimizer: str | Callable, seed: int = 0, rate: float | None = None, steps: int = STEPS
) -> list[float]:
    """Train the GPT with an optimizer; return the loss of each step.

    `optimizer` is a name of MAKERS, or a function (model, rate) -> list of optimizers that together
    train all its parameters, for which `rate` must be given. Raises ValueError for an unknown name.
    """
    if isinstance(optimizer, str) and optimizer not in MAKERS:
        raise ValueError(
            f"No optimizer here is called {optimizer!r}. Choose one of {', '.join(MAKERS)}."
        )
    if rate is None and not isinstance(optimizer, str):
        raise ValueError("An optimizer of your own needs a rate, for example rate=1e-3.")
    make = MAKERS[optimizer] if isinstance(optimizer, str) else optimizer
    with on_one_thread():
        torch.manual_seed(seed)
        model, batches = GPT(SHAPE, seed=seed), Batches(SAMPLES, SHAPE.sequence, seed=seed)
        optimizers = make(model, RATES[optimizer] if rate is None else rate)
        losses = []
        for step in range(steps):
            model.zero_grad()
            inputs, targets = batches[step]
            loss = next_token_loss(model(inputs), targets)
            loss.backward()
            for one in optimizers:
                one.step()
            losses.append(loss.item())
    return losses


def final(losses: Sequence[float]) -> float:
    """Return the mean loss of the last steps."""
    return mean(losses[-LAST:])


def ends(runs: dict[str, dict[int, list[float]]]) -> dict[str, list[float]]:
    """Return for each optimizer the mean loss of the last steps, one for each seed."""
    return {name: [final(losses) for losses in seeds.values()] for name, seeds in runs.items()}


def _on_this_rank(train: Callable[..., list[float]], jobs: list[tuple]) -> list[tuple]:
    """Call `train` for every P-th of these jobs, beginning with this rank's."""
    own = jobs[dist.get_rank() :: dist.get_world_size()]
    with on_one_thread():
        return [(job, train(*job)) for job in own]


def trainings(
    world, train: Callable[[str, int], list[float]], names=LEAN, seeds: Sequence[int] = SEEDS
) -> dict[str, dict[int, list[float]]]:
    """Call `train(name, seed)` for each optimizer and seed, shared out among the ranks of `world`.

    `train` returns the loss of each step. Returns {name: {seed: losses}}.
    """
    jobs = [(name, seed) for name in names for seed in seeds]
    by_rank = world.run(_on_this_rank, train, jobs)
    losses = dict(pair for of_rank in by_rank for pair in of_rank)
    return {name: {seed: losses[name, seed] for seed in seeds} for name in names}


def rates_tried(
    world, name: str, rates: Sequence[float], seeds: Sequence[int] = SEEDS, steps: int = STEPS
) -> dict[float, float]:
    """Return for each rate the mean over seeds of the loss at the end."""
    jobs = [(name, seed, rate, steps) for rate in rates for seed in seeds]
    by_rank = world.run(_on_this_rank, trained, jobs)
    found = dict(pair for of_rank in by_rank for pair in of_rank)
    return {rate: mean(final(found[name, seed, rate, steps]) for seed in seeds) for rate in rates}


def compared(runs: dict[str, dict[int, list[float]]]) -> str:
    """Write for each optimizer the bytes it keeps and its loss at the end: mean, least, most."""
    lines = [f"{'':<9}{'bytes':>8}{'per weight':>11}{'loss':>6}  least to most"]
    for name, own in ends(runs).items():
        kept, span = state_bytes(name, SHAPE), f"{min(own):.2f} to {max(own):.2f}"
        lines.append(f"{name:<9}{kept:>8,}{kept / SHAPE.numel:>11.2f}{mean(own):>6.2f}  {span}")
    return "\n".join(lines)
