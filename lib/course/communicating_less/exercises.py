"""The exercises of chapter 2: predict, write, repair and invent."""

from collections.abc import Callable
from dataclasses import dataclass
from math import floor

import torch

from lib.course.checks.arguments import name_of
from lib.course.checks.numbers import Numbers
from lib.course.checks.on_ranks import Exercise
from lib.course.checks.sent_bytes import sent
from lib.course.checks.verdict import Hints, Verdict
from lib.course.communicating_less.cover import stragglers
from lib.course.communicating_less.lessons import train_gpt
from lib.predict.collectives.formulas import collective
from lib.predict.data import compression
from lib.predict.data.parameter_server import most_stale, simulate
from lib.ranks import RankError
from lib.ranks.algorithms import exchange

SHAPES, RANKS = [(1000, 1000)], 8
NBYTES = compression.plain(SHAPES)[0].bytes

predict = Numbers(
    name="predict",
    task="Put a number in place of each None.",
    answers={
        "waiting": simulate(stragglers(0, 12 * 5, 5)).times[-1],
        "top_k": int(compression.sent(compression.top_k(SHAPES, RANKS, 0.01), RANKS)),
        "sign": int(compression.sent(compression.sign(SHAPES, RANKS), RANKS)),
        "eight_bits": floor(
            compression.break_even(compression.quantized(SHAPES, 1, 8)[0].bytes, NBYTES)
        )
        + 1,
        "staleness": most_stale(5, 3),
    },
    kinds={"waiting": "ms", "top_k": "sent bytes", "sign": "sent bytes"},
    ranks=RANKS,
    hints=(
        "Start with `waiting`: how long does a round take if one worker in it is slow, and how "
        "long if none is? Then count the rounds of each kind.",
        "Top-k keeps 10,000 entries of 8 bytes. In an all-gather each rank passes on the messages "
        "of all the others: n-1 of them. Sign sends one bit for each number and one scale.",
        "Eight bits send (n-1) messages of S/4 bytes and a few for the scales: set that equal to "
        "2(n-1)/n of S. While a worker computes one gradient, each other worker can deliver "
        "2 * bound + 1.",
    ),
)


def _to_compress(ranks: int, size: int):
    """Return each rank's gradient and residual [size], different on every rank, and k."""
    generator = torch.Generator("cpu").manual_seed(size)
    drawn = torch.randn(ranks, 2, size, generator=generator, dtype=torch.float32, device="cpu")
    return [(gradient, residual / 2, size // 10) for gradient, residual in drawn]


def _top_k(inputs):
    """Return for each rank the mean of what all ranks sent, and what this rank keeps."""
    rows = []
    for gradient, residual, k in inputs:
        whole = gradient + residual
        message = torch.zeros_like(whole)
        largest = whole.abs().topk(k).indices
        message[largest] = whole[largest]
        rows.append((message, whole - message))
    mean = sum(message for message, _ in rows) / len(rows)
    return [(mean, kept) for _, kept in rows]


class _Compressed(Exercise):
    """Also asks that a right answer sends less than a plain all-reduce."""

    def _scored(self, ledger, world, inputs) -> Verdict:
        own = max(sent(ledger))
        plain = round(collective("all_reduce", world.size, inputs[0][0].nbytes).bytes)
        score = f"  bytes sent by the busiest rank: {own:,}, plain all-reduce {plain:,}"
        if world.size > 1 and own >= plain:
            return self._not_yet(f"The tensors are right, but you send no less.\n{score}")
        return Verdict(True, f"Solved for {world.size} ranks.\n{score}")


write = _Compressed(
    name="write",
    task="Fill in the body of `my_top_k`: return the pair (mean, residual).",
    inputs=_to_compress,
    reference=_top_k,
    sizes=(20, 1000),
    hints=(
        "Error feedback comes first: whole = gradient + residual. "
        "`whole.abs().topk(k).indices` are the k entries to send.",
        "Gather the values and the indices of all ranks with dist.all_gather, into lists of "
        "tensors of the same shapes and dtypes. Indices fit into torch.int32.",
        "Start from zeros: for each rank, mean[indices] += values, and divide by the number of "
        "ranks at the end. The residual is `whole` with your own k entries set to 0.",
    ),
)


def _mixed_on_a_line(weights: Callable, rounds: int, start: float) -> tuple[float, dict]:
    """Mix with the neighbours on a line for some rounds; return the value and the weights."""
    import torch.distributed as dist

    rank, ranks = dist.get_rank(), dist.get_world_size()
    row = weights(rank, ranks)
    if not row:
        return start, {}
    x = torch.tensor([start], dtype=torch.float64)
    others = [other for other in (rank - 1, rank + 1) if 0 <= other < ranks]
    for _ in range(rounds):
        arrived = {other: torch.empty_like(x) for other in others}
        exchange(dict.fromkeys(others, x), arrived)
        x = sum(row.get(r, 0.0) * value for r, value in [(rank, x), *arrived.items()])
    return float(x), {int(other): float(weight) for other, weight in row.items()}


class _Line(Hints):
    """Mixes with the reader's weights on a line of ranks, until they should agree on the mean."""

    task = "Change `their_weights` so that all ranks agree on the mean."
    rounds = 100

    def check(self, weights: Callable, world) -> Verdict:
        """Run 100 rounds from 0, 0, ..., 100, and compare every rank with the mean."""
        try:
            starts = [0.0] * (world.size - 1) + [100.0]
            answers = world.map(_Mixing(weights, self.rounds), starts)
        except RankError as error:
            return self._not_yet(f"It failed:\n\n{error}\n")
        if not all(row for _, row in answers):
            return self._open(f"`{name_of(weights)}` returns nothing", self.task)
        for rank, (_, row) in enumerate(answers):
            far = sorted(set(row) - {rank - 1, rank, rank + 1})
            if far:
                return self._not_yet(
                    f"Rank {rank} has a weight for rank {far[0]}, which is not its neighbour."
                )
        mean, ends = sum(starts) / world.size, [end for end, _ in answers]
        held = ", ".join(f"{end:.2f}" for end in ends)
        lines = [f"  after {self.rounds} rounds, the ranks", f"  hold: {held}"]
        lines.append(f"  the mean of what they started with: {mean:.2f}")
        for rank in range(world.size):
            row = sum(answers[rank][1].values())
            column = sum(weights.get(rank, 0.0) for _, weights in answers)
            lines.append(f"  rank {rank}: row adds up to {row:.2f}, column to {column:.2f}")
        text = "\n".join(lines)
        if all(abs(end - mean) < 0.01 for end in ends):
            return Verdict(True, f"Solved: all ranks hold the mean.\n{text}")
        agreed = max(ends) - min(ends) < 0.01
        what = "The ranks agree, but not on the mean." if agreed else "The ranks do not agree."
        return self._not_yet(f"{what}\n{text}")


@dataclass
class _Mixing:
    """Holds what each rank calls with the value that it starts from."""

    weights: Callable
    rounds: int

    def __call__(self, start: float):
        return _mixed_on_a_line(self.weights, self.rounds, start)


repair = _Line(
    name="repair",
    hints=(
        "A row that adds up to 1 lets the ranks agree. What must a column add up to, so that "
        "every rank counts as much as any other?",
        "The two ranks of a pair should give each other the same weight. Rank 0 has one neighbour "
        "and gives it 1/2; rank 1 has two and gives each 1/3.",
        "Let two neighbours give each other 1 / (1 + the larger number of neighbours of the two), "
        "and keep for yourself what is missing from 1.",
    ),
)


class _Invent(Hints):
    """Trains with the reader's own hook, and compares its bytes and its loss with the plain one."""

    task = "Write any hook that sends at most 30 % of the bytes."

    def check(self, hook: Callable, world) -> Verdict:
        """Train with and without `hook`, and count what both send."""
        try:
            own = world.record(train_gpt, hook, 0)
        except RankError as error:
            if "'NoneType' object has no attribute 'wait'" in str(error):
                return self._open(f"`{name_of(hook)}` returns nothing", self.task)
            return self._not_yet(f"It failed:\n\n{error}\n")
        plain = world.record(train_gpt, None, 0)
        counts, losses = zip(*((sent(ledger)[0], ledger.results[0]) for ledger in (plain, own)))
        lines = f"  bytes sent by rank 0: {counts[1]:,}, plain {counts[0]:,}\n"
        lines += f"  loss: {losses[1]:.2f}, plain {losses[0]:.2f}"
        if counts[1] > 0.3 * counts[0] or losses[1] > 1.1 * losses[0]:
            return self._not_yet(f"At most 30 % of the bytes, and a loss near the plain.\n{lines}")
        return Verdict(True, f"Solved: {counts[0] / counts[1]:.1f} times fewer bytes.\n{lines}")


invent = _Invent(
    name="invent",
    hints=(
        "A hook gets a bucket and a group. `bucket.flat` holds this rank's gradients; return "
        "something with wait(), after which `bucket.flat` holds the mean of all ranks'.",
        "A float32 has 4 bytes, an int8 has 1. Sums of int8 codes add up on the way as long as the "
        "sum over all ranks stays below 128.",
        "Scale by 127 // ranks and divide by the largest absolute value on any rank, which "
        "dist.ReduceOp.MAX finds. "
        "Round x up or down at random: low = x.floor(), and 1 more where "
        "torch.rand_like(x) < x - low. Do not round (x + rand).floor(): in float32 "
        "31 + 0.99999994 is 32, and four times 32 does not fit into 8 bits.",
    ),
)
