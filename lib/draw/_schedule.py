"""A played schedule as marks, and in words; lib/draw/js/schedule_rows.js draws the same alive."""

import numpy as np

from lib.draw import style
from lib.draw.labels import tint
from lib.draw.picture import Mark
from lib.draw.scales import axis, legend
from lib.predict.play import Run

_LEFT, _RIGHT, _BETWEEN = 62, 14, 18  # px around the times, and between them and the memory
_ROW, _GAP = 20, 3  # px of a rank, and paper below
_MEMORY = 109  # px: 17 % of the width
_TOP = 2 * style.LINE + 10  # px of the numbers above
_SHARES = (1, 0.5, 0.3, 0.15)  # how full the colour is of a rank's first stage, its second ...
_NAMES = ("forward", "backward", "backward for the input", "backward for the weights")
_ORDINALS = ("1st", "2nd", "3rd", "4th and later")


def layout(run: Run, unit: str, par: float | None, limit: float | None):
    """(marks, height) of the still picture."""
    ranks = len(run.schedule)
    memory = style.WIDTH - _RIGHT - _MEMORY
    right, bottom = memory - _BETWEEN, _TOP + ranks * (_ROW + _GAP)
    span = max(run.makespan, par or 0)
    pixels = (right - _LEFT) / span
    marks = _numbers(run, unit, par)
    marks += _bars(run, pixels, unit)
    if par:
        x = _LEFT + par * pixels
        marks.append(Mark("line", edge=style.INK, dash=True, points=((x, _TOP - 3), (x, bottom)),
                          about=f"par {figure(par, unit)}"))  # fmt: skip
    marks += axis(_LEFT, right, bottom, span, unit)
    marks += _memory(run, limit, memory, bottom)
    keys, height = legend(_keys(run), _LEFT, bottom + 2 * style.LINE + 10)
    return marks + keys, height


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


def _numbers(run: Run, unit: str, par: float | None) -> list[Mark]:
    """Makespan and the three bubbles, each with its formula behind it."""
    marks, x = [], _LEFT
    for name, value, about in _worth(run, unit, par):
        w = max(len(name), len(value)) * style.LETTER
        marks.append(Mark("text", x, style.LINE / 2, fill=style.FAINT, text=name))
        marks.append(Mark("text", x, 1.5 * style.LINE, fill=style.INK, text=value))
        marks.append(Mark("box", x, 0, w, 2 * style.LINE, about=about))
        x += w + 14
    return marks


def _worth(run: Run, unit: str, par: float | None):
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


def meets(value: float, goal: float) -> bool:
    """Whether a number keeps to its limit, but for rounding."""
    return value <= goal * (1 + 1e-9)


def _levels(run: Run) -> list[int]:
    """For each stage, whether it is the first (0), second (1) ... of its rank."""
    seen: dict[int, int] = {}
    levels = []
    for rank in run.schedule.placement:
        levels.append(min(seen.get(rank, 0), len(_SHARES) - 1))
        seen[rank] = seen.get(rank, 0) + 1
    return levels


def _bars(run: Run, pixels: float, unit: str) -> list[Mark]:
    grid, levels = run.schedule.grid, _levels(run)
    together = set(run.schedule.overlapped.tolist()) if run.costs.overlap is not None else set()
    columns = (grid.kind, grid.stage, grid.cell // grid.stages, run.starts, run.ends)
    kinds, stages, numbers, starts, ends = (column.tolist() for column in columns)
    marks = []

    def idle(start, end, why):
        if (w := (end - start) * pixels) > 0.5:
            about = f"rank {rank} idle from {figure(start, unit)} to {figure(end, unit)}: {why}"
            marks.append(Mark("box", _LEFT + start * pixels, y, w, _ROW, about=about))

    for rank, (first, last) in enumerate(zip(grid.first, grid.first[1:])):
        y, free = _TOP + rank * (_ROW + _GAP), 0.0
        marks.append(Mark("text", _LEFT - 8, y + _ROW / 2, fill=style.INK, text=f"rank {rank}",
                          align="right"))  # fmt: skip
        for at in range(first, last):
            idle(free, starts[at], f"waits for {_waited_for(run, at)}")
            free = max(free, ends[at])
            half = (at in together) - (at - 1 in together)  # 1 above, -1 below, 0 the whole row
            if ends[at] > starts[at]:
                text = f"{stages[at]}{'FBIW'[kinds[at]]}{numbers[at]}"
                about = (
                    f"{text} on rank {rank}: {_NAMES[kinds[at]]}, stage {stages[at]}, microbatch "
                    f"{numbers[at]}, from {figure(starts[at], unit)} to {figure(ends[at], unit)}"
                )
                x, w = _LEFT + starts[at] * pixels, max((ends[at] - starts[at]) * pixels, 0.6)
                look = "FBIW"[kinds[at]], levels[stages[at]], str(numbers[at]), about
                marks += _bar(x, y, w, half, *look)
        idle(free, run.makespan, "has done all it has to do")
    return marks


def _bar(x, y, w, half, letter, level, text, about) -> list[Mark]:
    """One action: full colour for a rank's first stage, paler with an edge for its others."""
    full = style.colour(letter)
    fill = tint(full, _SHARES[level]) if level else full
    h = _ROW / 2 - 0.5 if half else _ROW
    top = y + _ROW / 2 + 0.5 if half < 0 else y
    if level and w > 5:
        box = Mark("box", x + 0.5, top + 0.5, w - 1, h - 1, fill=fill, edge=full, about=about)
    else:
        box = Mark("box", x, top, w, h, fill=fill, edge=style.PAPER if w > 3 else None, about=about)
    if half or w <= len(text) * style.LETTER + 3:
        return [box]
    middle = Mark("text", x + w / 2, y + _ROW / 2, fill=style.on(fill), text=text, align="middle")
    return [box, middle]


def _waited_for(run: Run, at: int) -> str:
    """What came last of what an action had to wait for."""
    grid = run.schedule.grid
    both = [grid.needs[at], grid.needs[at + 1] if at in run.schedule.overlapped else -1]
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


def _memory(run: Run, limit: float | None, left: float, bottom: float) -> list[Mark]:
    kept = kept_by(run)
    scale = (_MEMORY - 30) / max(*kept, limit or 0)
    fill = tint(style.COMPUTE["forward"], 0.45)
    faint = lambda y, text: Mark("text", left, y, fill=style.FAINT, text=text)
    marks = [faint(_TOP - 12, "peak memory"), faint(bottom + 14, "microbatches")]
    placement = np.array(run.schedule.placement)
    for rank, amount in enumerate(kept):
        y, h = _TOP + rank * (_ROW + _GAP) + 3, _ROW - 6
        inside = min(amount, limit or amount)
        peaks = (
            f"stage {s}: {run.peak_microbatches[s]}" for s in np.flatnonzero(placement == rank)
        )
        about = f"rank {rank} keeps the activations of at most {batches(amount)}; "
        marks.append(Mark("box", left, y, inside * scale, h, fill=fill,
                          about=about + ", ".join(peaks)))  # fmt: skip
        if amount > inside:
            marks.append(Mark("box", left + inside * scale, y, (amount - inside) * scale, h,
                              edge=style.INK, dash=True))  # fmt: skip
        marks.append(Mark("text", left + amount * scale + 6, y + h / 2, fill=style.INK,
                          text=figure(amount)))  # fmt: skip
    if limit:
        sign = "✓" if all(meets(amount, limit) for amount in kept) else "✗"
        x = left + limit * scale
        marks.append(Mark("line", edge=style.INK, dash=True, points=((x, _TOP), (x, bottom - _GAP)),
                          about=f"limit {figure(limit)}"))  # fmt: skip
        marks.append(faint(bottom + 14 + style.LINE, f"limit {figure(limit)} {sign}"))
    return marks


def _keys(run: Run):
    there = sorted(set(run.schedule.grid.kind.tolist()))
    keys = [(_NAMES[kind], style.colour("FBIW"[kind]), False) for kind in there]
    most, forward = max(_levels(run)), style.COMPUTE["forward"]
    if most:
        shades = [tint(forward, _SHARES[level]) if level else forward for level in range(most + 1)]
        keys += [(f"{_ORDINALS[i]} stage of a rank", s, False) for i, s in enumerate(shades)]
    return keys


def batches(number: float) -> str:
    """1 is "1 microbatch", 5.5 is "5.5 microbatches"."""
    return f"{figure(number)} microbatch{'es' * (number != 1)}"


def story(run: Run, unit: str) -> str:
    """The same in words."""
    made, table = run.schedule, run.costs.table(run.schedule.stages)
    times = {"F": table[0], "I": table[2], "W": table[3]}
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
