"""The check of stochastic rounding from float32 to bfloat16: neighbours, shares, and who draws."""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

from lib.course.checks.arguments import name_of
from lib.course.checks.verdict import Hints, Verdict

LOWER = 2**16  # codes of a float32 that share their upper half, which is a bfloat16
COPIES = 20_000
SHARES = (1 / 8, 1 / 4, 1 / 2, 3 / 4)  # of the way from a bfloat16 to the next one away from 0
STARTS = (1.0, -3.0, 2.0**-20)
EXACT = (0.0, -0.0, 1.0, -1.5, 3.140625, 2.0**-126, -(2.0**-133), 2.0**127)
SIGMAS = 5  # a right attempt is further off in less than one of a million tries


class _Wrong(Exception):
    """Says what is wrong with an attempt."""


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator("cpu").manual_seed(seed)


def _neighbours(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the bfloat16 towards 0 and the next one away from it, as float32, for each x."""
    bits = x.view(torch.int32) & -LOWER
    return bits.view(torch.float32), (bits + LOWER).view(torch.float32)


def _anywhere() -> Tensor:
    """Draw 10,000 numbers with every exponent that has two neighbours which are finite: [10000]."""
    bits = torch.randint(0x7F7F0000, (10_000,), generator=_seeded(0), dtype=torch.int32)
    return torch.where(torch.arange(10_000) % 2 == 0, 1.0, -1.0) * bits.view(torch.float32)


def _rounded(attempt: Callable, x: Tensor, seed: int) -> Tensor:
    """Call the attempt; raise _Wrong where the result is no bfloat16 of x's shape, or x changed."""
    before = x.clone()
    result = attempt(x, _seeded(seed))
    if not isinstance(result, Tensor):
        raise _Wrong(f"It returns a {type(result).__name__}, not a tensor.")
    if result.dtype != torch.bfloat16:
        raise _Wrong(f"It returns a tensor of {result.dtype}, not of torch.bfloat16.")
    if result.shape != x.shape:
        raise _Wrong(f"For x of {list(x.shape)} it returns a tensor of {list(result.shape)}.")
    if not torch.equal(before.view(torch.int32), x.view(torch.int32)):
        raise _Wrong("It changes x. A view of x shares its memory: compute a new tensor.")
    return result.float()


def _exact_stays(attempt: Callable) -> None:
    x = torch.tensor(EXACT).repeat(5 * COPIES)
    result = _rounded(attempt, x, 1)
    moved = (result.view(torch.int32) != x.view(torch.int32)).nonzero()
    if len(moved):
        value, now = float(x[moved[0]]), float(result[moved[0]])
        raise _Wrong(
            f"{value:g} is a bfloat16 already and has to stay, but in {len(moved):,} of "
            f"{len(x):,} draws such a number moved, here to {now:.8g}."
        )


def _only_neighbours(attempt: Callable) -> None:
    x = _anywhere()
    result, (low, high) = _rounded(attempt, x, 2), _neighbours(x)
    wrong = ~((result == low) | (result == high))
    if wrong.any():
        n = int(wrong.nonzero()[0])
        raise _Wrong(
            f"{float(x[n]):.8g} became {float(result[n]):.8g}, which is not one of its two "
            f"neighbours, {float(low[n]):.8g} and {float(high[n]):.8g}."
        )


def _in_right_shares(attempt: Callable) -> None:
    for start in STARTS:
        low, high = _neighbours(torch.tensor([start]))
        for share in SHARES:
            x = (low + share * (high - low)).expand(COPIES).clone()
            up = float((_rounded(attempt, x, 3) == high).double().mean())
            if abs(up - share) <= SIGMAS * sqrt(share * (1 - share) / COPIES):
                continue
            where = f"{float(x[0]):.8g} lies {share:.1%} of the way from {start:g} to the next "
            text = f"{where}bfloat16 away from 0. Of {COPIES:,} copies {up:.1%} went there"
            if up in (0.0, 1.0):
                text += ". Does each entry draw a random number of its own?"
            elif abs(up - (1 - share)) < 0.01:
                text += ", which is the share of the other neighbour."
            else:
                text += f", not about {share:.1%}."
            raise _Wrong(text)


def _with_the_generator(attempt: Callable) -> None:
    x, state = _anywhere(), torch.get_rng_state()
    one, again, other = (_rounded(attempt, x, seed) for seed in (4, 4, 5))
    if not torch.equal(torch.get_rng_state(), state) or not torch.equal(one, again):
        raise _Wrong(
            "It draws other random numbers than those of `generator`: two generators of the same "
            "seed have to give the same result, and torch's own generator has to stay as it is."
        )
    if torch.equal(one, other):
        raise _Wrong("Generators of different seeds give the same result: `generator` is not used.")


@dataclass
class Stochastic(Hints):
    """Judges a function (x, generator) -> bfloat16 by where x goes, how often, and who draws.

    x [...] are float32 below the largest bfloat16. Everything is on the CPU.
    """

    task: str = "Fill in the body of `my_round`: return x rounded to torch.bfloat16 at random."

    def check(self, attempt: Callable) -> Verdict:
        """Call `attempt` with exact values, with any numbers, and with many copies of a few."""
        name = name_of(attempt)
        with torch.device("cpu"):
            try:
                first = attempt(torch.tensor([1.0]), _seeded(0))
                if first is None or first is ...:
                    return self._open(f"`{name}` returns nothing", self.task)
                for part in (_exact_stays, _only_neighbours, _in_right_shares, _with_the_generator):
                    part(attempt)
            except _Wrong as wrong:
                return self._not_yet(str(wrong))
            except Exception as error:  # the reader's code may raise anything
                return self._not_yet(f"`{name}` fails: {type(error).__name__}: {error}")
        return Verdict(
            True,
            "Solved. Values of bfloat16 stay, all others go to one of their neighbours, each as "
            f"often as x is near to it ({COPIES:,} copies of {len(STARTS) * len(SHARES)} numbers), "
            "and the same generator gives the same result.",
        )
