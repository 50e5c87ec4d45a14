"""Sparse gradients, predicted: an embedding's gradient, sent as indices and values.

    gradient [V, D] with k rows that are not zero    indices [k], values [k, D]

A batch uses few rows of a large table, so most rows of the gradient are zero. Each rank gathers the
rows of all ranks, because two ranks' rows have different indices and do not add up on the way: it
receives n·k rows, while an all_reduce sends 2(n-1)/n·V rows. So sparse sends less on fewer than
about 2V/k ranks.
"""

from collections.abc import Sequence

from lib.predict.arguments import whole
from lib.predict.data.compression import Call, break_even

COUNT, INDEX = 8, 4  # bytes of a rank's number of rows, and of the index of a row


def gathered_rows(counts: Sequence[int], width: int, itemsize: int = 4) -> list[Call]:
    """Return the two all_gathers of a table of `width` columns; counts[r] rows come from rank r.

    The first one gathers the counts, which differ between ranks. In the second, every rank sends
    as many rows as the largest count, because an all_gather takes equal messages.
    """
    counts = [whole(count, "The rows of a rank", 0) for count in counts]
    calls = [Call("all_gather", len(counts) * COUNT)]
    if rows := max(counts):
        calls.append(Call("all_gather", len(counts) * rows * row_bytes(width, itemsize)))
    return calls


def row_bytes(width: int, itemsize: int = 4) -> int:
    """Return the bytes of one row in a message: its index and its values."""
    return INDEX + whole(width, "The width of a table") * whole(itemsize, "itemsize")


def pays_below(rows: int, count: int, width: int, itemsize: int = 4) -> float:
    """Return the number of ranks from which a sparse gradient sends more than a dense one.

    The table has `rows` rows, of which a rank's batch uses `count`.
    """
    dense = whole(rows, "The rows of a table") * width * itemsize
    return break_even(
        COUNT + whole(count, "The rows of a rank") * row_bytes(width, itemsize), dense
    )
