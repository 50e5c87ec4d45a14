"""The smallest optimizer that still learns: bytes kept and loss over three seeds, against par.

Par is PyTorch's Adafactor at a learning rate of 0.1, which keeps a sum for each row and column. All
optimizers train the same small GPT for the same steps, in 64-bit numbers on the CPU with one
thread. Their learning rate falls linearly to 0.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial
from statistics import mean
from typing import NamedTuple

import torch
from torch import Tensor

from lib.course.checks.verdict import Hints, Verdict
from lib.course.one_thread import on_one_thread
from lib.predict.shape import GPTShape
from lib.single import GPT, Batches, next_token_loss

SHAPE = GPTShape(sequence=32, width=32, heads=2, layers=1)
SAMPLES, STEPS, LAST, SEEDS = 8, 200, 20, (0, 1, 2)
SLACK = 0.01  # nats by which a loss may be above that of par: what a digit of the rate changes
Maker = Callable[[Iterable], torch.optim.Optimizer]


class Score(NamedTuple):
    """Holds the bytes that an optimizer kept, and the mean loss of the last steps of each seed."""

    kept: int
    losses: tuple[float, ...]

    @property
    def loss(self) -> float:
        """The mean loss over the seeds, in nats."""
        return mean(self.losses)


def kept_bytes(optimizer: torch.optim.Optimizer, parameters: list[Tensor]) -> int:
    """Return the bytes of all tensors that an optimizer can reach beside weights and gradients.

    It looks into the optimizer's attributes and those of the parameters, and into lists, tuples,
    sets and dicts. Memory that several tensors share counts once.
    """
    own = {p.untyped_storage().data_ptr() for p in parameters}
    own |= {p.grad.untyped_storage().data_ptr() for p in parameters if p.grad is not None}
    found, seen = {}, set()

    def look(thing) -> None:
        if id(thing) in seen:
            return
        seen.add(id(thing))
        if isinstance(thing, Tensor):
            storage = thing.untyped_storage()
            if storage.data_ptr() not in own:
                found[storage.data_ptr()] = storage.nbytes()
        parts = thing if isinstance(thing, list | tuple | set) else ()
        parts = [*thing.keys(), *thing.values()] if isinstance(thing, dict) else parts
        for part in parts:
            look(part)

    for place in (optimizer, *parameters):
        look(vars(place))
    return sum(found.values())


def trained(maker: Maker, seed: int) -> tuple[int, float]:
    """Train the small GPT with an optimizer; return the most bytes it kept, and the last loss."""
    torch.manual_seed(seed)
    model, batches = GPT(SHAPE, seed=seed).double(), Batches(SAMPLES, SHAPE.sequence, seed=seed)
    optimizer = maker(model.parameters())
    rates = [group.get("lr") for group in optimizer.param_groups]
    kept, losses = 0, []
    for step in range(STEPS):
        for group, rate in zip(optimizer.param_groups, rates):
            if rate is not None:
                group["lr"] = rate * (1 - step / STEPS)
        inputs, targets = batches[step]
        model.zero_grad()
        loss = next_token_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        kept = max(kept, kept_bytes(optimizer, list(model.parameters())))
    return kept, mean(losses[-LAST:])


def scored(maker: Maker) -> Score:
    """Train with each seed, on the CPU with one thread, and return bytes and losses."""
    state = torch.get_rng_state()
    try:
        with on_one_thread():
            runs = [trained(maker, seed) for seed in SEEDS]
    finally:
        torch.set_rng_state(state)
    return Score(max(kept for kept, _ in runs), tuple(loss for _, loss in runs))


@cache
def par() -> Score:
    """Score PyTorch's Adafactor, once in a process."""
    return scored(partial(torch.optim.Adafactor, lr=0.1))


@cache
def adam() -> Score:
    """Score PyTorch's Adam at 0.003, the best rate of 0.001, 0.003 and 0.01, once in a process."""
    return scored(partial(torch.optim.Adam, lr=3e-3))


@dataclass
class Smallest(Hints):
    """Judges an optimizer by the bytes that it keeps and by its loss over three seeds."""

    task: str = "Write `MyOptimizer`, a torch.optim.Optimizer with a default for its rate."

    def check(self, maker: Maker | None = None) -> Verdict:
        """Train with the reader's optimizer and with par, and compare bytes and losses."""
        if maker is None or maker is ...:
            return self._open("there is no optimizer", self.task)
        try:
            own = scored(maker)
        except Exception as error:  # the reader's code may raise anything
            name = getattr(maker, "__name__", "Your optimizer")
            return self._not_yet(f"`{name}` fails: {type(error).__name__}: {error}")
        goal = par()
        lines = [f"{'':<10}{'bytes kept':>12}{'loss':>8}"]
        for name, score in (("Adam", adam()), ("Adafactor", goal), ("yours", own)):
            lines.append(f"{name:<10}{score.kept:>12,}{score.loss:>8.3f}")
        table = "\n".join(lines)
        learns, lean = own.loss <= goal.loss + SLACK, own.kept <= goal.kept
        if learns and lean:
            less = f", with {goal.kept - own.kept:,} bytes less than par" * (own.kept < goal.kept)
            return Verdict(True, f"Solved{less}.\n{table}")
        if learns:
            return self._not_yet(f"It learns as well as par, but keeps more.\n{table}")
        if own.loss != own.loss:
            return self._not_yet(f"The loss is no number any more: lower the rate.\n{table}")
        keeps = "keeps no more than par" if lean else "keeps more than par"
        than = "than Adam's" if own.loss > adam().loss else "than par's"
        return self._not_yet(f"It {keeps}, but its loss is higher {than}.\n{table}")
