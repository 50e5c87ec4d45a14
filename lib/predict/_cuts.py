"""The dynamic programmes behind every exact partition: the last stage, and the best before it.

`times[n][i, j]` is the time of a stage of layers i .. j-1 on n ranks, `borders[i]` that of the
message into layer i. Exactly `ranks` ranks are used, or with `fewer` at most so many.
"""

import numpy as np


def spans(values) -> np.ndarray:
    """[i, j]: the sum of values i .. j-1; endless for j <= i, where there is nothing."""
    ends = np.append(0.0, np.cumsum(values))
    table = ends[None, :] - ends[:, None]
    table[np.tril_indices(len(ends))] = np.inf
    return table


def fastest(times, borders, ranks: int, fewer: bool = False) -> float:
    """The time of the slowest stage or message, where all layers are cut so that it is least.

    best[m][j], the first j layers on m ranks, is the least over the last stage, i .. j-1 on n, of
    max(best[m - n][i], borders[i], times[n][i, j]).
    """
    borders = np.append(0.0, borders[1:])  # nothing is sent into the first stage
    best = np.full((ranks + 1, len(borders)), np.inf)
    best[: ranks + 1 if fewer else 1, 0] = 0.0
    for m in range(1, ranks + 1):
        for n in (n for n in times if n <= m):
            before = np.maximum(best[m - n], borders)
            np.minimum(best[m], np.maximum(before[:, None], times[n]).min(0), out=best[m])
    return float(best[ranks, -1])


def cuts(times, borders, ranks: int, fewer: bool = False) -> list[tuple[int, int, int]]:
    """(i, j, n) of each stage: of all that are as fast, fewest stages, then ranks, then even."""
    limit = fastest(times, borders, ranks, fewer) * (1 + 1e-12)  # sums in another order still fit
    count = len(borders)
    allowed = np.append(0.0, borders[1:]) <= limit
    price = np.full((ranks + 1, count), np.inf)
    price[: ranks + 1 if fewer else 1, 0] = 0.0
    last = np.zeros((ranks + 1, count, 2), int)
    # Squares, each at most 1, add up to less than one rank's price, ranks to less than a stage's.
    stage = {
        n: (ranks + 1 + n) * count + (table / (limit or 1.0)) ** 2 for n, table in times.items()
    }
    for m in range(1, ranks + 1):
        for n in (n for n in times if n <= m):
            fits = allowed[:, None] & (times[n] <= limit)
            whole = np.where(fits, price[m - n][:, None] + stage[n], np.inf)
            first = whole.argmin(0)
            found = whole[first, np.arange(count)]
            better = found < price[m]
            price[m][better] = found[better]
            last[m][better] = np.stack([first, np.full(count, n)], 1)[better]
    result, j, m = [], count - 1, ranks
    while j:
        i, n = last[m, j].tolist()
        result.append((i, j, n))
        j, m = i, m - n
    return result[::-1]
