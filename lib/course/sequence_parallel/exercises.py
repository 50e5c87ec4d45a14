"""The exercises of chapter 12: predict, write, repair, and a layout for packed documents."""

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps

import torch
from torch.nn.functional import cross_entropy

from lib.course.checks.arguments import name_of
from lib.course.checks.numbers import Numbers
from lib.course.checks.on_ranks import Exercise
from lib.course.checks.read_number import is_missing
from lib.course.checks.verdict import Hints, Verdict
from lib.course.sequence_parallel.lessons import CHUNKS, block, chunk_scores
from lib.parallel.sequence import merge
from lib.predict.sequence.traffic import of_layer
from lib.predict.shape import GPTShape

LARGE = GPTShape(1, 131_072, 8192, 64, 1, kv_heads=8, hidden=28_672, positions="rotary")
RANKS = 16


def _sent(method: str) -> float:
    """Return the MB that a rank sends in forward of one layer's attention, in 2 bytes a number."""
    return sum(move.sent for move in of_layer(LARGE, method, RANKS, 1, itemsize=2).forward) / 1e6


predict = Numbers(
    name="predict",
    task="Put a number in place of each None.",
    answers={"ring": round(_sent("ring"), 1), "ulysses": round(_sent("ulysses"), 1)},
    kinds={"ring": "sent MB", "ulysses": "sent MB"},
    ranks=RANKS,
    hints=(
        "Each rank has 131,072 ÷ 16 tokens, and a head has 8,192 ÷ 64 numbers for each of them.",
        "In the ring a rank sends k and v of 8 heads, 15 times.",
        "Ulysses needs at least one key head for each of 16 ranks, so the 8 are copied to 16: a "
        "rank has (64 + 2 · 16) heads of q, k and v and then 64 heads of the result, and sends "
        "15 of 16 parts of both.",
    ),
)


# --- write


KEYS = (4, 9, 6)  # of the blocks: so no block has almost all or almost none of a denominator
OFFSET = 800.0  # of all scores: exp of it is too large for a number, and it changes no share


def _merge_inputs(ranks: int, number: int) -> list[tuple]:
    """Return for each rank q, and the keys and values of so many blocks."""
    inputs = []
    for rank in range(ranks):
        draw = torch.Generator("cpu").manual_seed(rank)
        sizes = KEYS[:number]
        q, k, v = (torch.randn(2, rows, 8, generator=draw, dtype=torch.float64, device="cpu")
                   for rows in (4, sum(sizes), sum(sizes)))  # fmt: skip
        inputs.append((q, (k / 2).split(sizes, 1), v.split(sizes, 1)))
    return inputs


def blocks_of(q, keys, values) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the result and log_sum of each block, with OFFSET added to every score."""
    pairs = (block(q, k, v) for k, v in zip(keys, values))
    return [(out, log_sum + OFFSET) for out, log_sum in pairs]


def _merge_reference(inputs) -> list:
    """Return attention over all keys at once, and its log_sum."""
    whole = ((q, torch.cat(keys, 1), torch.cat(values, 1)) for q, keys, values in inputs)
    return [(out, log_sum + OFFSET) for out, log_sum in (block(*each) for each in whole)]


def _calls_merge(attempt: Callable) -> bool:
    """Return whether the attempt calls the library's merge, under whatever name, for two blocks.

    Its errors are left to the run on ranks, which reports them.
    """
    a, b = blocks_of(*_merge_inputs(1, 2)[0])
    called, before = [], sys.getprofile()

    def notice(frame, event, _):
        called.append(frame.f_code is merge.__code__)

    sys.setprofile(notice)
    try:
        with suppress(Exception):
            attempt(*a, *b)
    finally:
        sys.setprofile(before)
    return any(called)


@dataclass
class Merge(Exercise):
    """Lets an attempt merge several blocks, one after the other, and judges what comes out."""

    def check(self, attempt: Callable, world) -> Verdict:
        """Run the attempt on every rank of `world`, with two blocks and with three.

        An attempt that calls the library's merge is refused.
        """
        if _calls_merge(attempt):
            return self._not_yet(
                f"`{name_of(attempt)}` calls the library's `merge`, which you are to write here. "
                "Compute `out` and `log_sum` with torch's operations."
            )

        @wraps(attempt)
        def merged(q, keys, values):
            first, *others = blocks_of(q, keys, values)
            state = first
            for other in others:
                state = attempt(*state, *other)
                if not isinstance(state, tuple | list) or len(state) != 2:
                    return state  # the check says what is wrong with it
            return state

        return super().check(merged, world)


write = Merge(
    name="write",
    task="Fill in the body of `my_merge`: return `out` and `log_sum` over the keys of both blocks.",
    inputs=_merge_inputs,
    reference=_merge_reference,
    sizes=(2, 3),
    words="{} blocks",
    names=("out", "log_sum"),
    hints=(
        "Σ exp of all scores is exp(log_sum_a) + exp(log_sum_b). Which share of it is block b's?",
        "The result over all keys is the mean of out_a and out_b, weighted by these shares. The "
        "new log_sum is the logarithm of that sum.",
        "exp(log_sum) overflows here. b's share is 1/(1 + exp(log_sum_a - log_sum_b)), which is "
        "torch.sigmoid of a difference. It is one number a query: unsqueeze(-1) for out. And "
        "torch.logaddexp computes the new log_sum without an overflow.",
    ),
)


# --- repair


EMPTY = 25  # tokens of a rank, in the case in which the last rank has no label that counts


def _loss_inputs(ranks: int, size: int) -> list[tuple]:
    """Return each rank's logits and labels; ranks have different numbers of labels that count.

    The last one has no label that counts where `size` is EMPTY.
    """
    draw, inputs = torch.Generator("cpu").manual_seed(size), []
    for rank in range(ranks):
        logits = torch.randn(1, size, 10, generator=draw, dtype=torch.float64)
        labels = torch.randint(10, (1, size), generator=draw)
        labels[:, size - rank * size // (ranks + 1) :] = -100
        if size == EMPTY and rank == ranks - 1:
            labels[:] = -100
        inputs.append((logits, labels))
    return inputs


def _loss_reference(inputs) -> list:
    logits, labels = (torch.cat([one[n] for one in inputs], 1) for n in (0, 1))
    return [cross_entropy(logits.flatten(0, 1), labels.flatten())] * len(inputs)


def _gradient_reference(inputs) -> list:
    """Return for each rank the gradient of the mean of all labels in its own logits."""
    leaves = [logits.clone().requires_grad_() for logits, _ in inputs]
    loss = _loss_reference([(leaf, labels) for leaf, (_, labels) in zip(leaves, inputs)])[0]
    return list(torch.autograd.grad(loss, leaves))


def _gradient_of(attempt: Callable) -> Callable:
    """Return a function that runs the attempt and its backward, and returns the logits' gradient.

    It is 0 where the loss has no derivative, as after `detach()` or `item()`.
    """

    @wraps(attempt)
    def gradient(logits, labels):
        leaf = logits.clone().requires_grad_()
        loss = attempt(leaf, labels)
        if loss.requires_grad:
            loss.backward()
        return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad

    return gradient


@dataclass
class Loss(Exercise):
    """Compares the value of a loss first, and where it is right the gradient of the logits."""

    def check(self, attempt: Callable, world) -> Verdict:
        """Run the attempt on every rank of `world`; if its loss is right, run backward as well."""
        verdict = super().check(attempt, world)
        if not verdict.solved:
            return verdict
        of_logits = Exercise(
            name=self.name, hints=self.hints, inputs=self.inputs, reference=_gradient_reference,
            sizes=self.sizes, words=self.words,
        )  # fmt: skip
        after = of_logits.check(_gradient_of(attempt), world)
        if after.solved:
            return verdict
        what = after.text.replace("what it returned", "the gradient of its logits", 1)
        right = "Not yet. The loss is right, but its gradient is not. "
        return Verdict(False, what.replace("Not yet. ", right, 1))


repair = Loss(
    name="repair",
    task="Repair `my_loss`: return the mean over all labels that count, on every rank.",
    inputs=_loss_inputs,
    reference=_loss_reference,
    sizes=(10, EMPTY),
    words="{} tokens on each rank",
    hints=(
        "The last ranks have fewer labels that count. How much does one of theirs weigh in a mean "
        "of the ranks' means?",
        "Sum the losses of all labels of all ranks, and divide by the number of all labels.",
        'cross_entropy(..., reduction="sum") leaves out labels of -100. Count the others with '
        "(labels != -100).sum(), and all_reduce both numbers. A rank may have no label at all: "
        "the mean of nothing is nan, but its sum is 0.",
        "The gradient of a rank's logits is that of its own part of the sum, divided by the number "
        "of all labels. collectives.all_reduce has this derivative; after detach() there is none.",
    ),
)


# --- going further: a layout for packed documents


def _slowest(ranks_of_chunks) -> int:
    """Return the scores of the rank that has the most."""
    scores = chunk_scores()
    return max(sum(s for s, rank in zip(scores, ranks_of_chunks) if rank == r) for r in range(4))


def best_layout() -> list[int]:
    """Return the rank of each chunk in a layout whose slowest rank has the fewest scores."""
    best = None

    def fill(ranks_of_chunks, rank):
        nonlocal best
        free = [n for n, r in enumerate(ranks_of_chunks) if r is None]
        if not free:
            if best is None or _slowest(ranks_of_chunks) < _slowest(best):
                best = list(ranks_of_chunks)
            return
        for other in free[1:]:  # the first free chunk is this rank's, for ranks are alike
            more = list(ranks_of_chunks)
            more[free[0]] = more[other] = rank
            fill(more, rank + 1)

    fill([None] * CHUNKS, 0)
    return best


@dataclass
class Layout(Hints):
    """Judges which rank has which chunk by the scores of the slowest rank, against par."""

    task: str = "Give the rank of each of the 8 chunks, two chunks to a rank."

    def check(self, ranks_of_chunks=None) -> Verdict:
        """Say how many scores the slowest rank has, and how many it has in the best layout."""
        if is_missing(ranks_of_chunks):
            return self._open("no rank is there", self.task)
        if not isinstance(ranks_of_chunks, list | tuple):
            return self._not_yet("The ranks are a list, such as [0, 1, 2, 3, 3, 2, 1, 0].")
        if [sum(rank is n for rank in ranks_of_chunks) for n in range(4)] != [2] * 4:
            return self._not_yet("Each of the ranks 0 to 3 has two of the eight chunks.")
        own, par = _slowest(ranks_of_chunks), _slowest(best_layout())
        words = f"The slowest rank has {own:,} scores; in the best layout it has {par:,}."
        return Verdict(True, f"Solved. {words}") if own <= par else self._not_yet(words)


pack = Layout(
    name="pack",
    hints=(
        "Which of the printed chunks have the most scores?",
        "Give the chunk with the most scores to the rank that has the chunk with the fewest.",
    ),
)
