"""Plans of recomputation for a chain of blocks, and the bytes and seconds that each one takes.

    (0, 1, 2, 3)          every block keeps what its backward needs
    ((0, 1), (2, 3))      two checkpoints: each keeps its input, and runs its two blocks again
    (((0, 1), 2), 3)      a checkpoint in a checkpoint: blocks 0 and 1 run twice more, block 2 once

[Note: what is counted]
A block that is kept holds its input and what it saves besides; a checkpoint holds the input of its first
block. Backward goes from the last item to the first. When it comes to a checkpoint, the items before it
still hold what they hold, and the checkpoint's own items are run and hold theirs. Peak is the largest sum.
Parameters, gradients and what an operation needs for a moment are left out, and so is the output of the
chain. A checkpoint is counted as running all of its blocks again. (Ours stops before operations after the
last one that saves something, so that it computes a little less.)
"""  # noqa: E501

import ast
from collections.abc import Iterator, Sequence
from math import isqrt
from typing import NamedTuple

from lib.predict.arguments import whole

Plan = tuple  # of numbers of blocks, and of Plans: a Plan inside a Plan is a checkpoint


class BlockCost(NamedTuple):
    """Holds what a block keeps and takes: bytes of its input, bytes besides, seconds of forward."""

    input: int
    inside: int
    forward: float

    @property
    def kept(self) -> int:
        """Return the bytes that the block holds for backward if it is kept."""
        return self.input + self.inside


class Use(NamedTuple):
    """Holds what a plan takes: bytes after forward and at the peak, seconds computed again.

    `runs` are the forward runs of each block, the first one included.
    """

    after_forward: int
    peak: int
    again: float
    runs: tuple[int, ...]

    def in_flight(self, microbatches: int) -> int:
        """Return the bytes at the peak while so many microbatches wait for their backward.

        Each of them holds what its forward left. GPipe has all m in flight, and stage s of p in
        1F1B the smaller of m and p - s. Source: Huang et al. 2019, "GPipe" (arXiv 1811.06965),
        section 2.3, where a stage holds O(N + L/K · N/M).
        """
        others = whole(microbatches, "The number of microbatches") - 1
        return others * self.after_forward + self.peak


def none(blocks: int) -> Plan:
    """Return the plan that keeps everything."""
    return tuple(range(whole(blocks, "The number of blocks")))


def every(blocks: int, k: int) -> Plan:
    """Return the plan with a checkpoint around each k blocks; the last may have fewer."""
    order, k = none(blocks), whole(k, "k")
    return tuple(order[first : first + k] for first in range(0, blocks, k))


def square_root(blocks: int) -> Plan:
    """Return the plan with a checkpoint around each √n blocks, rounded down.

    n equal blocks, which hold h bytes each, an input of i among them, hold with k in a checkpoint
    (n/k - 1) · i + k · h at the peak. That is least at k = √(n · i/h), which is √n where a block
    holds its input alone, and fewer blocks where it holds more. Source: Chen et al. 2016 (arXiv
    1604.06174).
    """
    return every(blocks, isqrt(whole(blocks, "The number of blocks")))


def leaves(plan: Plan) -> Iterator[int]:
    """Give the blocks of a plan in their order."""
    for item in plan:
        yield from leaves(item) if isinstance(item, tuple) else (item,)


def checked(plan: Plan, blocks: int) -> Plan:
    """Return the plan; raise ValueError unless it has each block once, in the chain's order."""
    found = list(leaves(plan)) if isinstance(plan, tuple) else plan
    if not isinstance(plan, tuple) or found != list(range(blocks)) or _is_odd(plan):
        raise ValueError(
            f"A plan for {blocks} blocks has the numbers 0 to {blocks - 1} once each and in this "
            f"order, in tuples for checkpoints; this one has {found}."
        )
    return plan


def _is_odd(plan: Plan) -> bool:
    """Return True where an item is no number of a block: an empty tuple, 1.0 or True."""
    return any(
        not item or _is_odd(item) if isinstance(item, tuple) else isinstance(item, bool | float)
        for item in plan
    )


def read_plan(text: str, blocks: int) -> Plan:
    """Return the plan that a text describes, such as "((0, 1), 2)".

    Raises ValueError for a text that is no plan for a chain of so many blocks.
    """
    try:
        plan = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise ValueError(
            "The text of a plan has numbers of blocks, in tuples for checkpoints: "
            f"((0, 1), 2), for example. This is not such a text: {text.strip()[:60]!r}."
        ) from None
    return checked(plan, blocks)


def use_of(plan: Plan, costs: Sequence[BlockCost]) -> Use:
    """Return the bytes and seconds of a plan for a chain with these costs."""
    checked(plan, len(costs))
    runs = [1] * len(costs)
    after, peak = _backward(plan, costs, 0, runs)
    again = sum((n - 1) * cost.forward for n, cost in zip(runs, costs))
    return Use(after, peak, again, tuple(runs))


def _backward(items: Plan, costs, held: int, runs: list[int]) -> tuple[int, int]:
    """Return the bytes after these items ran, and the peak of their backward, `held` besides."""
    before = []  # what is held before each item
    for item in items:
        before.append(held)
        held += costs[next(leaves((item,)))].input if isinstance(item, tuple) else costs[item].kept
    peak = held
    for item, bytes_before in zip(items, before):
        if isinstance(item, tuple):
            for block in leaves(item):
                runs[block] += 1
            peak = max(peak, _backward(item, costs, bytes_before, runs)[1])
    return held, peak
