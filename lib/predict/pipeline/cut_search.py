"""Dynamic programming for exact partitions: each step adds the last stage to a best partition.

`times[n][i, j]` is the time of a stage of layers i .. j-1 on n ranks, and `borders[i]` that of the
message into layer i. Exactly `ranks` ranks are used, or with `fewer` at most that many.
"""

import numpy as np


def spans(values) -> np.ndarray:
    """Return a table of sums, [i, j] being that of values i .. j-1; infinite where j <= i."""
    ends = np.append(0.0, np.cumsum(np.asarray(values, float)))
    table = ends[None, :] - ends[:, None]
    table[np.tril_indices(len(ends))] = np.inf
    return table


def fastest(times, borders, ranks: int, fewer: bool = False) -> float:
    """Return the least possible time of the slowest stage or message.

    best[m][j], for the first j layers on m ranks, is the minimum, over all last stages i .. j-1 on
    n ranks, of max(best[m - n][i], borders[i], times[n][i, j]).
    """
    borders = np.append(0.0, borders[1:])  # no message is sent into the first stage
    best = np.full((ranks + 1, len(borders)), np.inf)
    best[: ranks + 1 if fewer else 1, 0] = 0.0
    for m in range(1, ranks + 1):
        for n in (n for n in times if n <= m):
            before = np.maximum(best[m - n], borders)
            np.minimum(best[m], np.maximum(before[:, None], times[n]).min(0), out=best[m])
    return float(best[ranks, -1])


def cuts(times, borders, ranks: int, fewer: bool = False) -> list[tuple[int, int, int]]:
    """Return (i, j, n) of each stage of a fastest partition.

    Among the fastest partitions, it prefers fewer stages, then fewer ranks, then equal times.
    """
    limit = fastest(times, borders, ranks, fewer) * (1 + 1e-12)  # leaves room for rounding
    count = len(borders)
    allowed = np.append(0.0, borders[1:]) <= limit
    price = np.full((ranks + 1, count), np.inf)
    price[: ranks + 1 if fewer else 1, 0] = 0.0
    last = np.zeros((ranks + 1, count, 2), int)
    # The squares, each at most 1, add up to less than the price of a rank, and the prices of all
    # ranks to less than that of a stage.
    stage = {
        n: (ranks + 1 + n) * count + (table / (limit or 1.0)) ** 2 for n, table in times.items()
    }
    for m in range(1, ranks + 1):
        for n in (n for n in times if n <= m):
            fits = allowed[:, None] & (times[n] <= limit)
            prices = np.where(fits, price[m - n][:, None] + stage[n], np.inf)
            first = prices.argmin(0)
            lowest = prices[first, np.arange(count)]
            better = lowest < price[m]
            price[m][better] = lowest[better]
            last[m][better] = np.stack([first, np.full(count, n)], 1)[better]
    result, j, m = [], count - 1, ranks
    while j:
        i, n = last[m, j].tolist()
        result.append((i, j, n))
        j, m = i, m - n
    return result[::-1]
