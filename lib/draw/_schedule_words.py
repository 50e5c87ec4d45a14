"""What a picture of a schedule says: its numbers, why a rank waits, and the whole in words."""

import numpy as np

from lib.draw import style
from lib.predict.play import Run


def figure(value: float, unit: str = "") -> str:
    """A number in four digits, or in three with its unit."""
    if unit:
        return style.amount(value, unit)
    if not value or abs(value) >= 1000:
        return f"{round(value):,}"
    digits = 10.0 ** (3 - np.floor(np.log10(abs(value))))
    return f"{round(value * digits) / digits:.12g}"


def percent(share: float) -> str:
    """A share in per cent, to one tenth."""
    return f"{round(share * 1000) / 10:.1f} %"


def batches(number: float) -> str:
    """1 is "1 microbatch", 5.5 is "5.5 microbatches"."""
    return f"{figure(number)} microbatch{'es' * (number != 1)}"


def meets(value: float, goal: float) -> bool:
    """Whether a number keeps to its limit, but for rounding."""
    return value <= goal * (1 + 1e-9)


def worth(run: Run, unit: str, par: float | None):
    """(name, value, what it is) of the makespan and the three bubbles."""
    time = lambda value: figure(value, unit)
    work, total = run.work.sum(), run.makespan * len(run.schedule)
    first = run.schedule.grid.first
    spans = np.maximum.reduceat(run.ends, first[:-1]) - run.starts[first[:-1]]
    rank = int(np.argmax(spans))
    goal = ""
    if par:
        goal = f" · par {time(par)} {'✓' if meets(run.makespan, par) else '✗'}"
    yield "makespan", time(run.makespan) + goal, "makespan: from the first start to the last end"
    yield (
        "bubble share",
        percent(run.bubble("share")),
        f"bubble, share: idle ÷ (ranks · makespan) = {time(total - work)} ÷ {time(total)}; "
        "GPipe's (p−1)/(m+p−1), arXiv 1811.06965",
    )
    yield (
        "bubble overhead",
        percent(run.bubble("overhead")),
        f"bubble, overhead: idle ÷ work = {time(total - work)} ÷ {time(work)}; "
        "Narayanan's (p−1)/m, arXiv 2104.04473",
    )
    yield (
        "bubble span",
        percent(run.bubble("span")),
        "bubble, span: (cost − m·T) ÷ cost, where cost is the longest span of one rank, "
        f"here rank {rank}: ({time(spans[rank])} − {time(run.work[rank])}) ÷ "
        f"{time(spans[rank])}; the zero-bubble paper's, arXiv 2401.10241",
    )


def waited_for(run: Run, at: int) -> str:
    """What came last of what an action had to wait for."""
    grid = run.schedule.grid
    both = [grid.waits[at], grid.waits[at + 1] if at in grid.overlapped else -1]
    both = [need for need in both if need >= 0]
    if not both:
        return "nothing"
    need = max(both, key=lambda need: run.ends[need])
    cell = grid.cell[need]
    return f"{cell % grid.stages}{'FBIW'[grid.kind[need]]}{cell // grid.stages}"


def kept_by(run: Run) -> list[float]:
    """The most microbatches alive at once on each rank; whole where all its stages keep it."""
    grid = run.schedule.grid
    alive = np.cumsum(np.array([1, -1, 0, -1])[grid.kind])  # nothing is left at a row's end
    most = np.maximum.reduceat(alive, grid.first[:-1])
    return (most / np.bincount(run.schedule.placement)).tolist()


def story(run: Run, unit: str) -> str:
    """The same in words."""
    made, table = run.schedule, run.costs.table(run.schedule.stages)
    times = {"F": table[0], "I": table[2], "W": table[3]}
    if run.costs.backward is not None:
        times["B"] = table[1]
    send = run.costs.each("send", made.stages - 1)
    times["send"] = send if len(send) else [0.0]
    plural = lambda number, noun: f"{number} {noun}{'s' * (number != 1)}"
    parts = ", ".join(f"{word} {_range(all_, unit)}" for word, all_ in times.items())
    return "\n".join((
        f"{made.name}: {plural(made.stages, 'stage')} on {plural(len(made), 'rank')}, "
        f"{batches(made.microbatches)}; {parts}",
        f"  makespan {figure(run.makespan, unit)}; bubble share {percent(run.bubble('share'))}, "
        f"overhead {percent(run.bubble('overhead'))}, span {percent(run.bubble('span'))}",
        "  microbatches alive at most, by stage: " + ", ".join(map(str, run.peak_microbatches)),
    ))  # fmt: skip


def _range(all_, unit: str) -> str:
    low, high = (figure(value, unit) for value in (min(all_), max(all_)))
    return low if low == high else f"{low} to {high}"
