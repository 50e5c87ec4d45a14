"""A small GPT with a layer of experts, trained with and without what keeps their load even.

All runs have the same model, data and learning rate for a seed, and are trained in 64-bit numbers
on the CPU with one thread, so that a choice between two experts does not depend on rounding.
"""

from collections.abc import Callable, Iterable
from functools import partial
from statistics import mean

import torch
import torch.distributed as dist

from lib.course.one_thread import on_one_thread
from lib.predict.shape import GPTShape
from lib.single import GPT, Batches, next_token_loss
from lib.single.experts import MoE, auxiliary_loss, with_experts
from lib.single.experts.balance import nudge

SHAPE = GPTShape(sequence=32, width=32, heads=2, layers=1, hidden=64)
EXPERTS, RANKS, SAMPLES, STEPS, RATE = 8, 4, 8, 200, 0.5
PLAIN = partial(torch.optim.SGD, lr=RATE)
SEEDS = (0, 1, 2)
LAST = 20  # steps over which a table takes means
SHOWN = (0, 1, 2, 3, 5, 8, 12, 16, 20, 30, 40, 50, 60, 80, 100, 120, 140, 160, 180, 199)
# name -> options of the layer, and the rate of the bias, which 0 leaves as it is. Each token has
# one expert; with noise it has two, because a softmax over one kept logit is 1, without gradient.
WAYS = {
    "no loss": ({}, 0.0),
    "z-loss": ({"losses": {"z": 0.01}}, 0.0),
    "importance loss": ({"losses": {"importance": 0.01}}, 0.0),
    "balance loss": ({"losses": {"balance": 0.01}}, 0.0),
    "importance and load": (
        {"gate": "noisy", "k": 2, "losses": {"importance": 0.01, "load": 0.01}}, 0.0,
    ),
    "bias": ({}, 3e-3),
}  # fmt: skip
# The ways that the main path compares: each token has one expert.
COMPARED = tuple(name for name in WAYS if name != "importance and load")
# A rule of the reader's: (layer, counts [E]) -> nothing, called after each step.
Rule = Callable[[MoE, torch.Tensor], None]


class Run:
    """Holds a training of one seed.

    `tables[step]` [P, E] counts the tokens of each rank that chose each expert, and `losses[step]`
    is the loss of the model without auxiliary losses.
    """

    def __init__(self, tables: list, losses: list[float]):
        self.tables, self.losses = tables, losses

    def shares(self) -> list[list[float]]:
        """Return the share of a step's rows that each expert had in each last step: [LAST, E]."""
        last = torch.tensor(self.tables[-LAST:], dtype=torch.float64).sum(1)
        return (last / last.sum(1, keepdim=True)).tolist()

    def busiest(self) -> float:
        """Return the mean over the last steps of the share of the step's busiest expert."""
        return mean(map(max, self.shares()))

    def idle(self) -> int:
        """Return how many experts had under 1 % of an even share of all rows of the last steps."""
        return sum(mean(own) < 0.01 / EXPERTS for own in zip(*self.shares()))

    def loss(self) -> float:
        """Return the mean loss of the last steps."""
        return mean(self.losses[-LAST:])


def trained(
    options: dict, rate: float, seed: int, rule: Rule | None = None, optimizer=PLAIN
) -> Run:
    """Train the GPT with these options of its layer; return what happened.

    `rate` is the rate of the bias without a loss; `rule` replaces it. `optimizer` makes one from
    parameters, by default plain SGD.
    """
    with on_one_thread():
        torch.manual_seed(seed)
        options = {"k": 1, **options}
        model = with_experts(GPT(SHAPE, seed=seed), EXPERTS, seed=seed, **options).double()
        (layer,) = (part for part in model.modules() if isinstance(part, MoE))
        optimizer = optimizer(model.parameters())
        batches, tables, losses = Batches(SAMPLES, SHAPE.sequence, seed=seed), [], []
        for step in range(STEPS):
            inputs, targets = batches[step]
            optimizer.zero_grad()
            loss = next_token_loss(model(inputs), targets)
            (loss + auxiliary_loss(model)).backward()
            optimizer.step()
            expert = layer.decision.assignments.expert.view(RANKS, -1)
            tables.append([torch.bincount(e, minlength=EXPERTS).tolist() for e in expert])
            losses.append(loss.item())
            if rule:
                with torch.no_grad():
                    rule(layer, layer.kept.double())
            elif rate:
                nudge(layer.gate, layer.kept, rate)
    return Run(tables, losses)


def _on_this_rank(jobs: list[tuple]) -> list[tuple]:
    """Train every P-th of these (name, seed), beginning with this rank's."""
    own = jobs[dist.get_rank() :: dist.get_world_size()]
    runs = {job: trained(*WAYS[job[0]], job[1]) for job in own}
    return [(job, run.tables, run.losses) for job, run in runs.items()]


def trainings(world, ways=COMPARED, seeds=SEEDS) -> dict[str, dict[int, Run]]:
    """Train with each way and seed, the runs shared out among the ranks of `world`.

    Returns {way: {seed: Run}}.
    """
    found = {}
    for of_rank in world.run(_on_this_rank, [(name, seed) for name in ways for seed in seeds]):
        found |= {job: Run(*what) for job, *what in of_rank}
    return {name: {seed: found[name, seed] for seed in seeds} for name in ways}


def recorded_tables(runs: dict[str, dict[int, Run]]) -> dict:
    """Return the tables at the steps in SHOWN, as the picture `routing` takes them."""
    return {
        name: {seed: {step: run.tables[step] for step in SHOWN} for seed, run in seeds.items()}
        for name, seeds in runs.items()
    }


def compared(runs: dict[str, dict[int, Run]]) -> str:
    """Write for each way the busiest expert's share, and idle experts.

    They are means over the last steps and the seeds. The loss of the model is left out: it
    says nothing here, because it stays the same where the experts are switched off.
    """
    lines = [f"{'':<19}busiest  idle"]
    for name, seeds in runs.items():
        busiest, idle = (mean(f(run) for run in seeds.values()) for f in (Run.busiest, Run.idle))
        lines.append(f"{name:<19}{busiest:>7.0%}{idle:>6.1f}")
    return "\n".join(lines)


def least_even(runs: dict[str, dict[int, Run]], ways: Iterable[str]) -> str:
    """Return which of `ways` leaves the busiest expert with the largest share, over all seeds."""
    return max(ways, key=lambda way: mean(run.busiest() for run in runs[way].values()))
