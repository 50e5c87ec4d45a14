"""The collectives on labels: what each rank holds, as the letters a picture shows."""

Grid = list[list[str]]  # for each rank, the labels of the pieces it holds


def _sum(grid: Grid) -> list[str]:
    """Everybody's pieces added: A0 + B0 + ... is Σ0."""
    return [f"Σ{label.lstrip('ABCDEFGHIJKLMNOPΣ')}" for label in grid[0]]


# op -> what every rank holds afterwards, from what every rank held; the root is rank 0.
OPS = {
    "all_reduce": lambda grid: [_sum(grid)] * len(grid),
    "reduce": lambda grid: [_sum(grid)] + [[]] * (len(grid) - 1),
    "reduce_scatter": lambda grid: [[label] for label in _sum(grid)],
    "all_gather": lambda grid: [[label for held in grid for label in held]] * len(grid),
    "gather": lambda grid: [[x for held in grid for x in held]] + [[]] * (len(grid) - 1),
    "scatter": lambda grid: [[label] for label in grid[0]],
    "all_to_all": lambda grid: [[held[r] for held in grid] for r in range(len(grid))],
    "broadcast": lambda grid: [grid[0]] * len(grid),
}
_IN_PIECES = {"all_reduce", "reduce_scatter", "all_to_all", "scatter"}  # these cut the buffer
_FROM_ROOT = {"broadcast", "scatter"}


def grids(ops: tuple[str, ...], ranks: int) -> list[Grid]:
    """Return what each rank holds before the first op and after each one."""
    for op in ops:
        if op not in OPS:
            raise ValueError(f"No collective is called {op!r}: {', '.join(OPS)}.")
    if not ops or not 2 <= ranks <= 8:
        raise ValueError(f"{len(ops)} collectives on {ranks} ranks: name one, on 2 to 8 ranks.")
    pieces = range(ranks) if ops[0] in _IN_PIECES else [""]
    after_each_op = [[[f"{chr(65 + r)}{i}" for i in pieces] for r in range(ranks)]]
    if ops[0] in _FROM_ROOT:
        after_each_op[0][1:] = [[] for _ in range(ranks - 1)]
    for op in ops:
        after_each_op.append(OPS[op](after_each_op[-1]))
    return after_each_op


def story(ops: tuple[str, ...], found: list[Grid]) -> str:
    """Tell the same in words: a line for each rank."""
    lines = [" then ".join(ops)]
    for rank in range(len(found[0])):
        held = ["  ".join(grid[rank]) or "nothing" for grid in found]
        lines.append(f"  rank {rank}: {'  →  '.join(held)}")
    return "\n".join(lines)
