"""Tables of a training that was not run, in which one expert gets more tokens from step to step."""

STEPS = (0, 1, 5, 20, 100)


def crowding(expert: int, by: int) -> dict:
    """Tables [4, 8] of 64 tokens a rank; at frame n the rank gives `by` · n more to one expert."""
    tables = {}
    for n, step in enumerate(STEPS):
        rest = [(64 - by * n) // 8 - (rank == 3) for rank in range(4)]
        tables[step] = [[64 - 7 * each if e == expert else each for e in range(8)] for each in rest]
    return tables


def runs() -> dict:
    """Two runs of two seeds each; the second keeps almost even."""
    return {
        "no loss": {0: crowding(3, 14), 1: crowding(6, 12)},
        "balance loss": {0: crowding(2, 2), 1: crowding(5, 1)},
    }
