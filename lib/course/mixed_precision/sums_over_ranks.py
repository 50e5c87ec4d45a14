"""The experiment of chapter 10 on sums over ranks: real gradients, in bf16, by every algorithm.

gradients [n, N], a row for each rank -> the error of their sum, by algorithm and number of rows
"""

from collections.abc import Sequence

import torch

from lib.course.one_thread import one_thread
from lib.predict.collectives import rounding
from lib.predict.shape import GPTShape
from lib.single import GPT, Batches, next_token_loss
from lib.single.precision.summing_order import error_of_sum

SHAPE = GPTShape(width=32, layers=2, sequence=32, heads=2)
ALGORITHMS = ("ring", "tree", "halving_doubling", "widened")
Lines = dict[str, tuple[list[int], list[float]]]  # name -> (numbers of ranks, errors)


@one_thread()
def gradients_by_rank(ranks: int, steps: int = 0, seed: int = 0) -> torch.Tensor:
    """Return the gradients that so many ranks have of the small GPT, each of its own: [ranks, N].

    Every rank has two sequences. The model has been trained for `steps` steps before.
    """
    model, batches = GPT(SHAPE, seed), Batches(8, SHAPE.sequence, seed=seed)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for step in range(steps):
        optimizer.zero_grad()
        tokens, targets = batches[step]
        next_token_loss(model(tokens), targets).backward()
        optimizer.step()
    tokens, targets = Batches(2 * ranks, SHAPE.sequence, seed=seed)[0]
    rows = []
    for x, y in zip(tokens.split(2), targets.split(2)):
        model.zero_grad()
        next_token_loss(model(x), y).backward()
        rows.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    return torch.stack(rows)


def in_common(gradients: torch.Tensor) -> float:
    """Return the correlation of the rows of two ranks: 0 if independent, 1 if they are equal.

    It is estimated from the squares of the sum and of the rows: |Σ g|² = Σ |g|² (1 + (n - 1) r).
    """
    n = len(gradients)
    ratio = gradients.double().sum(0).square().sum() / gradients.double().square().sum()
    return max((ratio.item() - 1) / (n - 1), 0.0)


def measured(
    gradients: torch.Tensor, counts: Sequence[int], algorithms: Sequence[str] = ALGORITHMS,
    dtype: torch.dtype = torch.bfloat16,
) -> Lines:  # fmt: skip
    """Return the error of the sum of the first n rows in `dtype`, for each n, by algorithm."""
    return {
        name: (list(counts), [error_of_sum(gradients[:n], name, dtype) for n in counts])
        for name in algorithms
    }


def predicted(
    correlation: float, counts: Sequence[int], algorithms: Sequence[str] = ALGORITHMS,
    dtype: torch.dtype = torch.bfloat16,
) -> Lines:  # fmt: skip
    """Return the same errors from the formula, for tensors that have so much in common."""
    epsilon, more = torch.finfo(dtype).eps, {"correlation": correlation}
    return {
        name: (list(counts), [rounding.error_of_sum(name, n, epsilon, **more) for n in counts])
        for name in algorithms
    }
