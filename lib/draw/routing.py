"""Which experts the tokens of each rank choose, step by step of a training, and what is dropped."""

from collections.abc import Mapping, Sequence
from math import ceil

from lib.draw.parts import captions
from lib.draw.parts.picture import Picture
from lib.predict.arguments import real

Table = Sequence[Sequence[int]]
MOST = 16  # ranks, and experts, that fit below one another
_FACTORS = (1.0, 1.25, 2.0)


def routing(
    runs: Table | Mapping[str, Mapping[int, Mapping[int, Table]]], *, run: str = "", seed=None,
    step: int | None = None, capacity: float | None = None, k: int = 1, label: str = "Gate",
    caption: str = "",
) -> Picture:  # fmt: skip
    """Draw ranks on the left, experts on the right, and between them the tokens that travel.

    A table [P, E] says how many tokens of each rank choose each expert; `runs[name][seed][step]`
    is the table of one step of a training, and one table alone is drawn without a training. The
    reader can choose a run (called `label`), a seed, a step and a capacity factor; the still has
    those that are given, by default the first run and seed, the last step and no capacity. With
    `k` experts for each token it counts k times. An expert with a capacity takes its tokens in the
    order of the ranks, and those that it drops are hatched.
    """
    if not isinstance(runs, Mapping):
        runs = {"": {0: {0: runs}}}
    frames = {
        name: {str(number): [[at, _checked(table)] for at, table in steps.items()]
               for number, steps in seeds.items()}
        for name, seeds in runs.items()
    }  # fmt: skip
    name = run or next(iter(frames), "")
    if name not in frames:
        raise ValueError(f"No run is called {run!r}. Choose one of {', '.join(frames)}.")
    seed = str(next(iter(frames[name])) if seed is None else seed)
    if seed not in frames[name]:
        raise ValueError(f"{name} has no seed {seed}. Choose one of {', '.join(frames[name])}.")
    steps = [at for at, _ in frames[name][seed]]
    at = steps[-1] if step is None else step
    if at not in steps:
        raise ValueError(f"Step {at} was not recorded. Choose one of {steps}.")
    factor = None if capacity is None else real(capacity, "The capacity factor", zero=False)
    tables = [table for seeds in frames.values() for of in seeds.values() for _, table in of]
    if len({(len(table), len(table[0])) for table in tables}) > 1:
        raise ValueError("All tables of one picture need the same ranks and the same experts.")
    data = {
        "frames": frames, "label": label, "k": k,
        "factors": sorted({*_FACTORS, *([factor] if factor else [])}),
        "most": max(max(map(sum, zip(*table))) for table in tables),
        "start": {"run": name, "seed": seed, "at": steps.index(at), "factor": factor},
        "caption": captions.joined(
            "Measured: tokens counted in the layer's gate."
            + (f" Each token counts {k} times, once for each of its experts." if k > 1 else "")
            + (" A capacity is counted afterwards; training dropped nothing."
               if len(tables) > 1 else ""),
            caption,
        ),
    }  # fmt: skip
    many = len(tables) > 1
    return Picture(_story(frames, name, seed, at, factor, many), ("routing", data))


def _checked(table: Table) -> list[list[int]]:
    rows = [[int(count) for count in row] for row in table]
    if not rows or not rows[0] or any(len(row) != len(rows[0]) for row in rows):
        raise ValueError("A table has a row for each rank and in it a count for each expert.")
    if max(len(rows), len(rows[0])) > MOST:
        raise ValueError(
            f"{len(rows)} ranks and {len(rows[0])} experts do not fit: at most {MOST} of each do."
        )
    return rows


def kept(table: Table, capacity: float | None) -> list[list[int]]:
    """Return how many tokens of each rank each expert keeps: [P, E], lower ranks first.

    `capacity` is a factor: an expert keeps at most capacity · A/E of all A tokens, rounded up.
    """
    most = limit(table, capacity)
    if most is None:
        return [list(row) for row in table]
    room = [most] * len(table[0])
    result = []
    for row in table:
        result.append([min(count, free) for count, free in zip(row, room)])
        room = [free - taken for free, taken in zip(room, result[-1])]
    return result


def limit(table: Table, capacity: float | None) -> int | None:
    """Return the most tokens that an expert keeps, or None without a capacity factor."""
    if capacity is None:
        return None
    return ceil(capacity * sum(map(sum, table)) / len(table[0]))


def _story(frames, name, seed, step, factor, many) -> str:
    table = dict(frames[name][seed])[step]
    left = kept(table, factor)
    total, most = sum(map(sum, table)), limit(table, factor)
    lost = "" if most is None else f", capacity {most}: {total - sum(map(sum, left)):,} dropped"
    where = f"{name}, seed {seed}, step {step}: " if many else ""
    lines = [f"routing: {where}{total:,} tokens of {len(table)} ranks{lost}"]
    for expert, by_rank in enumerate(zip(*table)):
        gone = sum(by_rank) - sum(row[expert] for row in left)
        dropped = f", {gone:,} dropped" if gone else ""
        from_ranks = " ".join(f"{count:,}" for count in by_rank)
        lines.append(f"  expert {expert}: {sum(by_rank):,} ({from_ranks}){dropped}")
    return "\n".join(lines)
